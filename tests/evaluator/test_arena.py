"""The allocator over a contestant's memory: pieces never overlap, and what is released can be had again."""

from __future__ import annotations

import ctypes
import random
from pathlib import Path

import pytest

import kernelwright.evaluator.worker as worker
from kernelwright.evaluator.builds.referee_code import build_library

BASE, SIZE, ALIGNMENT, PAGE = 0x7B0000000100, 1 << 20, 512, 2 << 20


@pytest.fixture
def arena(tmp_path):
    library = ctypes.CDLL(str(build_library(Path(worker.__file__).with_name("arena.c"), tmp_path)))
    library.kw_arena_open.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
    library.kw_arena_allocate.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    library.kw_arena_allocate.restype = ctypes.c_void_p
    library.kw_arena_release.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    library.kw_arena_used.restype = library.kw_arena_most.restype = library.kw_arena_missed.restype = ctypes.c_uint64
    assert library.kw_arena_open(BASE, SIZE) == 0
    return library


def test_pieces_lie_in_the_arena_and_never_overlap(arena):
    rng, held = random.Random(5), {}
    for _ in range(3000):
        if held and rng.random() < 0.5:
            at = rng.choice(list(held))
            arena.kw_arena_release(at, held.pop(at), 0, None)
            continue
        size = rng.choice([0, 1, 511, 512, 513, rng.randrange(1, 60_000)])
        at = arena.kw_arena_allocate(size, 0, None)
        if at is None:
            continue
        assert at % ALIGNMENT == 0
        assert at >= BASE
        assert at + size <= BASE + SIZE
        assert all(at + max(size, 1) <= other or other + max(n, 1) <= at for other, n in held.items())
        held[at] = size
    assert held
    assert arena.kw_arena_most() >= arena.kw_arena_used() > 0
    for at, size in held.items():
        arena.kw_arena_release(at, size, 0, None)
    assert arena.kw_arena_used() == 0
    assert arena.kw_arena_allocate(SIZE - 2 * ALIGNMENT, 0, None) is not None  # all pieces have become one


def test_more_than_there_is_cannot_be_had(arena):
    assert arena.kw_arena_allocate(SIZE + 1, 0, None) is None
    first = arena.kw_arena_allocate(SIZE // 2, 0, None)
    assert arena.kw_arena_allocate(SIZE // 2, 0, None) is None
    arena.kw_arena_release(first, SIZE // 2, 0, None)
    assert arena.kw_arena_allocate(SIZE // 2, 0, None) == first


def test_large_tensors_begin_where_torch_lets_them_begin_if_there_is_room(arena):
    assert arena.kw_arena_open(BASE, 64 << 20) == 0
    small = arena.kw_arena_allocate(100, 0, None)
    first, second = (arena.kw_arena_allocate(5 << 20, 0, None) for _ in range(2))
    assert (first % PAGE, second % PAGE, small) == (0, 0, BASE - BASE % ALIGNMENT + ALIGNMENT)
    assert second - first >= 5 << 20
    assert arena.kw_arena_allocate(1000, 0, None) == small + ALIGNMENT  # what lies between is not lost
    rest = arena.kw_arena_allocate(101 << 19, 0, None)  # aligned, it would not fit
    assert rest % ALIGNMENT == 0
    assert rest % PAGE
    assert arena.kw_arena_missed() == 0
    assert arena.kw_arena_allocate(50 << 20, 0, None) is None
    assert arena.kw_arena_missed() == 50 << 20


def test_memory_of_others_is_not_taken_back(arena):
    arena.kw_arena_release(BASE - 4096, 1024, 0, None)
    arena.kw_arena_release(BASE + SIZE, 1024, 0, None)
    assert arena.kw_arena_allocate(SIZE + 512, 0, None) is None
    assert arena.kw_arena_used() == 0
