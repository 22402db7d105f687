"""Shared memory: what the seals forbid, and that nothing leaks."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os

import numpy as np
import pytest

from kernelwright.sandbox import SharedMemory, product_memfd


@pytest.fixture
def memory():
    with SharedMemory.create(8192, "test") as memory:
        yield memory


def test_the_creator_writes_and_the_other_side_sees(memory):
    memory.seal()
    with mmap.mmap(memory.fd, 8192, prot=mmap.PROT_READ) as other:
        memory.view[:5] = b"hello"
        assert other[:6] == b"hello\0"


def test_after_sealing_nobody_else_gets_a_writable_mapping(memory):
    memory.seal()
    again = os.open(f"/proc/self/fd/{memory.fd}", os.O_RDWR)
    try:
        for fd in (memory.fd, again):
            with pytest.raises(PermissionError):
                mmap.mmap(fd, 8192, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            with pytest.raises(PermissionError):
                os.pwrite(fd, b"x", 0)
            with pytest.raises(PermissionError):
                os.ftruncate(fd, 4096)
            with pytest.raises(PermissionError):
                os.ftruncate(fd, 1 << 20)
    finally:
        os.close(again)


def test_sealing_is_final(memory):
    memory.seal()
    with pytest.raises(PermissionError):
        memory.seal()


def test_even_before_sealing_the_size_is_fixed(memory):
    with pytest.raises(PermissionError):
        os.ftruncate(memory.fd, 4096)


def test_arrays_share_it_and_outlive_close(open_fds):
    before = open_fds()
    memory = SharedMemory.create(4096, "test")
    array = np.frombuffer(memory.view, dtype=np.float32)
    array[3] = 2.5
    memory.close()
    memory.close()
    assert array[3] == 2.5
    del array
    assert open_fds() == before


def test_nothing_leaks(open_fds):
    before = open_fds()
    for _ in range(50):
        with SharedMemory.create(4096, "test") as memory:
            memory.seal()
    forgotten = SharedMemory.create(4096, "test")
    del forgotten
    assert open_fds() == before


def test_a_product_holds_its_bytes_for_ever():
    data = os.urandom(100_000)
    fd = product_memfd(data)
    try:
        assert os.pread(fd, 1 << 20, 0) == data
        with open(f"/proc/self/fd/{fd}", "r+b", buffering=0) as file, pytest.raises(PermissionError):
            file.write(b"x")
        for size in (0, 1 << 20):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, size)
    finally:
        os.close(fd)


@pytest.mark.parametrize(("refusals", "made"), [(7, True), (8, False)])
def test_a_seal_that_the_kernel_refuses_for_a_while_is_asked_for_again(monkeypatch, open_fds, refusals, made):
    before, left, seal = open_fds(), [refusals], fcntl.fcntl

    def busy(fd, *given):
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        return seal(fd, *given)

    monkeypatch.setattr(fcntl, "fcntl", busy)
    if made:
        fd = product_memfd(b"data")
        assert os.pread(fd, 8, 0) == b"data"
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"x", 0)
        os.close(fd)
    else:
        with pytest.raises(OSError, match="busy"):
            product_memfd(b"data")
    assert open_fds() == before
