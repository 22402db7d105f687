"""The problems that a schedule policy is trained on unless others are named, and those that it is kept from.

Both are problems of the suite, in sizes at which what is the fastest differs from one to the next. No operator of the
suite is in both lists with the same file: what is held out are other problems, not other sizes.
"""

from __future__ import annotations

from typing import Final

TRAINING: Final = (
    "level1/square_matmul@N=208",
    "level1/square_matmul@N=96",
)
HELD_OUT: Final = ("level1/transposed_matmul@K=96,M=96,N=112",)
