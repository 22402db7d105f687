"""What the referee computes while something is timed keeps to its own thread."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os
import numpy as np
from kernelwright.evaluator.accuracy import budget, redraws
from kernelwright.evaluator.timing import turns

def ticks():
    '''CPU time of all threads but this one, in clock ticks.'''
    found = 0
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid():
            fields = open(f"/proc/self/task/{task}/stat").read().rpartition(")")[2].split()
            found += int(fields[11]) + int(fields[12])
    return found

a, b = (np.random.default_rng(i).standard_normal(400_000) for i in range(2))
before = ticks()
for _ in range(100):
    WORK
print(ticks() - before)
"""
WORK = """
    turns._within(a, b, 1e9, 1e9)
    budget.probe_beta(a, b, np.ones_like(a))
"""


def ticks_of_other_threads(work: str) -> int:
    lines = "\n    ".join(line.strip() for line in work.strip().splitlines())
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("WORK", lines)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_a_comparison_wakes_no_thread():
    """Threads of a BLAS library poll after their work, on the core where the next window is timed."""
    assert ticks_of_other_threads(WORK) == 0
