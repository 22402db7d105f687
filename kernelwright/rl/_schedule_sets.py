"""The problems that a schedule policy is trained on unless others are named, and those that it is kept from.

Reductions along a dimension that is not the last one: how many columns are worked on at once is the better the larger
in one size and the smaller in another, and the generator's default is a compromise. Held out are other sizes, and an
operator that no training problem has.
"""

from __future__ import annotations

from typing import Final

TRAINING: Final = (
    "level1/min_with_indices@ROWS=600,COLUMNS=1000",
    "level1/min_with_indices@ROWS=200,COLUMNS=2000",
    "level1/min_with_indices@ROWS=1000,COLUMNS=300",
    "level1/min_with_indices@ROWS=300,COLUMNS=120",
    "level1/norm_middle_dim@BATCH=32,TOKENS=100,FEATURES=120",
    "level1/norm_middle_dim@BATCH=8,TOKENS=100,FEATURES=500",
    "level1/norm_middle_dim@BATCH=4,TOKENS=30,FEATURES=2000",
    "level1/norm_middle_dim@BATCH=32,TOKENS=60,FEATURES=40",
    "level1/sum_middle_dim@BATCH=16,TERMS=96,POINTS=400",
    "level1/sum_middle_dim@BATCH=4,TERMS=40,POINTS=2000",
    "level1/sum_middle_dim@BATCH=32,TERMS=80,POINTS=60",
    "level1/sum_middle_dim@BATCH=4,TERMS=100,POINTS=1000",
)
HELD_OUT: Final = (
    "level1/min_with_indices@ROWS=400,COLUMNS=600",
    "level1/min_with_indices@ROWS=150,COLUMNS=1500",
    "level1/min_with_indices@ROWS=800,COLUMNS=200",
    "level1/norm_middle_dim@BATCH=16,TOKENS=80,FEATURES=250",
    "level1/norm_middle_dim@BATCH=4,TOKENS=60,FEATURES=1000",
    "level1/norm_middle_dim@BATCH=32,TOKENS=40,FEATURES=80",
    "level1/sum_middle_dim@BATCH=8,TERMS=64,POINTS=700",
    "level1/sum_middle_dim@BATCH=16,TERMS=50,POINTS=150",
    "level1/softmax_middle_dim@BATCH=16,KEYS=64,POINTS=100",
    "level1/softmax_middle_dim@BATCH=4,KEYS=40,POINTS=600",
)
