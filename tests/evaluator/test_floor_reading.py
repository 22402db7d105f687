"""Merely reading memory, which the floor of a latency is measured by: all of it, in one stream and in four."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from kernelwright.evaluator.host.door import DoorLibrary


@pytest.mark.parametrize("abreast", [0, 1])
@pytest.mark.parametrize("sizes", [(0,), (1,), (31, 32), (33, 4099, 64), (1, 1024, 7)])
def test_every_word_is_read_once(tmp_path, sizes, abreast):
    rng = np.random.default_rng(0)
    pieces = [rng.integers(0, 1 << 63, size, dtype=np.uint64) for size in sizes]
    table = (ctypes.c_int64 * (2 * len(pieces)))(*(n for piece in pieces for n in (piece.ctypes.data, piece.nbytes)))
    path = tmp_path / "door.so"
    path.write_bytes(DoorLibrary(tmp_path).data)
    read = ctypes.CDLL(str(path)).kw_read
    read.argtypes, read.restype = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int], ctypes.c_uint64
    wanted = sum(int(word) for piece in pieces for word in piece) % (1 << 64)
    assert read(table, len(pieces), abreast) == wanted
