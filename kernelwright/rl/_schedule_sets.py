"""The default training problems of a schedule policy, and its default held-out problems.

They are reductions, for which no single schedule is best. On machines with 512-bit vectors, rows of a few dozen numbers
want narrow vectors if their remainder is half a vector or more; reductions down columns want wide ones. The best number
of columns in a block depends on the machine. Held out are other sizes, and operators that no training problem has.
"""

from __future__ import annotations

from typing import Final

TRAINING: Final = (
    "level1/logsumexp@ROWS=8192,COLUMNS=24",
    "level1/logsumexp@ROWS=4096,COLUMNS=40",
    "level1/variance@ROWS=8192,COLUMNS=20",
    "level1/variance@ROWS=5000,COLUMNS=44",
    "level1/argmax@ROWS=4096,COLUMNS=24",
    "level1/tempered_softmax@ROWS=3000,COLUMNS=28",
    "level1/tempered_softmax@ROWS=2500,COLUMNS=40",
    "level1/min_with_indices@ROWS=400,COLUMNS=350",
    "level1/min_with_indices@ROWS=500,COLUMNS=700",
    "level1/min_with_indices@ROWS=300,COLUMNS=1000",
    "level1/min_with_indices@ROWS=100,COLUMNS=1400",
    "level1/min_with_indices@ROWS=80,COLUMNS=2600",
    "level1/norm_middle_dim@BATCH=4,TOKENS=60,FEATURES=1000",
    "level1/sum_middle_dim@BATCH=4,TERMS=100,POINTS=1000",
)
HELD_OUT: Final = (
    "level1/logsumexp@ROWS=4300,COLUMNS=30",
    "level1/variance@ROWS=4500,COLUMNS=29",
    "level1/argmax@ROWS=2800,COLUMNS=47",
    "level1/tempered_softmax@ROWS=5200,COLUMNS=25",
    "level1/softmax@ROWS=4200,COLUMNS=31",
    "level1/l2_normalize@ROWS=3200,COLUMNS=41",
    "level1/rms_norm@TOKENS=2800,FEATURES=46",
    "level1/layer_norm@BATCH=20,TOKENS=140,FEATURES=45",
    "level1/min_with_indices@ROWS=440,COLUMNS=370",
    "level1/min_with_indices@ROWS=350,COLUMNS=830",
    "level1/min_with_indices@ROWS=190,COLUMNS=1490",
    "level1/min_with_indices@ROWS=80,COLUMNS=1610",
    "level1/min_with_indices@ROWS=70,COLUMNS=1700",
    "level1/min_with_indices@ROWS=120,COLUMNS=1870",
    "level1/norm_middle_dim@BATCH=4,TOKENS=75,FEATURES=1250",
    "level1/sum_middle_dim@BATCH=4,TERMS=77,POINTS=1280",
)
