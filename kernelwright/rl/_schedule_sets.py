"""The problems that a schedule policy is trained on unless others are named, and those that it is kept from.

Reductions, of which no schedule suits all. Rows of a few dozen numbers want narrow vectors, and reductions down columns
wide ones. Minima with their places want rows of up to about 1000 columns in one piece, and longer ones in small pieces.
Held out are other sizes, most of them in between, and operators that no training problem has.
"""

from __future__ import annotations

from typing import Final

TRAINING: Final = (
    "level1/logsumexp@ROWS=8192,COLUMNS=24",
    "level1/logsumexp@ROWS=4096,COLUMNS=40",
    "level1/variance@ROWS=8192,COLUMNS=20",
    "level1/argmax@ROWS=4096,COLUMNS=24",
    "level1/min_with_indices@ROWS=400,COLUMNS=350",
    "level1/min_with_indices@ROWS=300,COLUMNS=450",
    "level1/min_with_indices@ROWS=500,COLUMNS=700",
    "level1/min_with_indices@ROWS=200,COLUMNS=850",
    "level1/min_with_indices@ROWS=300,COLUMNS=1000",
    "level1/min_with_indices@ROWS=100,COLUMNS=1400",
    "level1/min_with_indices@ROWS=100,COLUMNS=1800",
    "level1/min_with_indices@ROWS=80,COLUMNS=2600",
    "level1/norm_middle_dim@BATCH=4,TOKENS=60,FEATURES=1000",
    "level1/sum_middle_dim@BATCH=4,TERMS=100,POINTS=1000",
)
HELD_OUT: Final = (
    "level1/logsumexp@ROWS=5500,COLUMNS=26",
    "level1/argmax@ROWS=5500,COLUMNS=38",
    "level1/softmax@ROWS=2000,COLUMNS=27",
    "level1/l2_normalize@ROWS=2000,COLUMNS=42",
    "level1/min_with_indices@ROWS=380,COLUMNS=420",
    "level1/min_with_indices@ROWS=310,COLUMNS=600",
    "level1/min_with_indices@ROWS=270,COLUMNS=770",
    "level1/min_with_indices@ROWS=250,COLUMNS=920",
    "level1/min_with_indices@ROWS=130,COLUMNS=1280",
    "level1/min_with_indices@ROWS=110,COLUMNS=1530",
    "level1/min_with_indices@ROWS=140,COLUMNS=1680",
    "level1/min_with_indices@ROWS=105,COLUMNS=1950",
    "level1/min_with_indices@ROWS=95,COLUMNS=2150",
    "level1/min_with_indices@ROWS=90,COLUMNS=2350",
    "level1/norm_middle_dim@BATCH=4,TOKENS=70,FEATURES=950",
    "level1/sum_middle_dim@BATCH=4,TERMS=80,POINTS=1150",
)
