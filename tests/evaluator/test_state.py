"""Weights that the referee writes into a frozen worker, and places that a worker may claim to have them at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from kernelwright.evaluator.timing.state import are_dense, may_write, mixed, places_from_claims, write_state
from kernelwright.evaluator.wire.tensors import TensorSpec, place

SPECS = place([TensorSpec("matrix", "float32", (3, 4), (4, 1)), TensorSpec("bias", "float32", (5,), (1,))])[0]
ADDRESSES = [0x7F0000001000, 0x7F0000002000]
HOLDER = """
import ctypes, sys, time
block = ctypes.create_string_buffer(4096)
print(ctypes.addressof(block), flush=True)
sys.stdin.read(1)
sys.stdout.buffer.write(bytes(block))
"""


def drawn(seed: int) -> np.ndarray:
    """State bytes, normal numbers throughout."""
    size = SPECS[-1].offset + SPECS[-1].span_bytes
    return np.random.default_rng(seed).standard_normal(size // 4 + 16).astype(np.float32).view(np.uint8)[:size]


def numbers(data: np.ndarray, spec: TensorSpec) -> np.ndarray:
    return data[spec.offset : spec.offset + spec.span_bytes].view(np.float32)


@pytest.mark.parametrize("stride", [[4, 1], [1, 3]], ids=["as the reference", "transposed"])
def test_a_stopped_process_gets_weights_in_its_own_order(stride):
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        address = int(process.stdout.readline())
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert may_write(process.pid)
        places = places_from_claims([[address, stride], [address + 64, [1]]], SPECS, [True, True])
        assert places is not None
        write_state(process.pid, places, SPECS, drawn(1))
        process.send_signal(signal.SIGCONT)
        found = np.frombuffer(process.communicate(b"x")[0], dtype=np.float32)
    matrix = numbers(drawn(1), SPECS[0]).reshape(3, 4)
    assert (found[:12] == (matrix if stride == [4, 1] else matrix.T).ravel()).all()
    assert (found[16:21] == numbers(drawn(1), SPECS[1])).all()
    assert not found[21:].any()


def test_memory_that_is_not_there_is_an_error():
    places = places_from_claims([[8, [4, 1]], None], SPECS, [True, False])
    assert places is not None
    assert len(places) == 1
    with pytest.raises(OSError, match=r"[Ee]rror"):
        write_state(os.getpid(), places, SPECS, drawn(1))


@pytest.mark.parametrize(
    "claims",
    [
        None,
        [],
        [[ADDRESSES[0], [4, 1]]],
        [[ADDRESSES[0], [4, 1]], None],
        [[ADDRESSES[0], [4, 1]], []],
        [[ADDRESSES[0], [8, 1]], [ADDRESSES[1], [1]]],
        [[ADDRESSES[0], [0, 1]], [ADDRESSES[1], [1]]],
        [[ADDRESSES[0], [-4, 1]], [ADDRESSES[1], [1]]],
        [[ADDRESSES[0], [4]], [ADDRESSES[1], [1]]],
        [[ADDRESSES[0], [4, "1"]], [ADDRESSES[1], [1]]],
        [[float(ADDRESSES[0]), [4, 1]], [ADDRESSES[1], [1]]],
        [[0, [4, 1]], [ADDRESSES[1], [1]]],
        [[1 << 63, [4, 1]], [ADDRESSES[1], [1]]],
        [{"address": 1}, [ADDRESSES[1], [1]]],
    ],
)
def test_claims_that_make_no_sense_are_no_places(claims):
    assert places_from_claims(claims, SPECS, [True, True]) is None


def test_weights_with_gaps_are_not_dense():
    assert are_dense(SPECS)
    assert not are_dense([TensorSpec("padded", "float32", (3, 4), (5, 1))])
    assert not are_dense([TensorSpec("expanded", "float32", (3, 4), (0, 1))])


def test_a_mixture_is_none_of_the_draws_and_changes_in_few_places_or_many():
    draws, rng = [drawn(seed) for seed in range(3)], np.random.default_rng(2)
    changes = set()
    for _ in range(40):
        made = mixed(SPECS, draws, rng)
        values = np.concatenate([numbers(made, spec) for spec in SPECS])
        known = [np.concatenate([numbers(draw, spec) for spec in SPECS]) for draw in draws]
        assert all(any(v == k[i] for k in known) for i, v in enumerate(values))
        changes.add(min(int((values != k).sum()) for k in known))
    assert 1 in changes
    assert max(changes) > 4
    assert all((draw == drawn(seed)).all() for seed, draw in enumerate(draws)), "the draws stay as they were"


def test_a_mixture_of_nothing_is_nothing():
    empty = [TensorSpec("none", "float32", (0,), (1,))]
    data = [np.zeros(64, dtype=np.uint8)] * 2
    assert not mixed(empty, data, np.random.default_rng(1)).any()
