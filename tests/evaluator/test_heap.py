"""Where a worker's tensors lie: beyond the holes that were in its heap when it began."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kernelwright.sandbox._view import base_environment

HOLES = 40
PROGRAM = f"""
import ctypes, platform, socket
import torch
from kernelwright.evaluator.worker.runner import Runner

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_size_t, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_size_t]
blocks = [libc.malloc(200_000) for _ in range(2 * {HOLES})]
for at in blocks[::2]:
    libc.free(at)
before = torch.empty(40_000).data_ptr()
runner = Runner(socket.socketpair()[0])
tensors = [torch.empty(n) for n in (5_000, 40_000, 500_000) for _ in range(5)]
last = max(blocks) + 200_000
print(platform.libc_ver()[1], before < last, sum(t.data_ptr() < last for t in tensors))
"""


def test_tensors_of_a_worker_lie_in_no_hole_of_the_heap_that_it_was_forked_with():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=base_environment(1, []),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    version, hole_was_used, in_holes = done.stdout.split()
    assert hole_was_used == "True"
    if tuple(map(int, version.split("."))) < (2, 33):
        pytest.skip("the C library tells nothing of its heap")
    assert in_holes == "0"
