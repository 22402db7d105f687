"""The watchdog: what bounds the memory of a sandbox's processes where no control group does."""

from __future__ import annotations

import os
import shutil

import pytest

from kernelwright.sandbox import (
    Limits,
    SharedMemory,
    _cgroups,
    open_sandbox,
    product_memfd,
    recv_message,
    send_message,
)

LIMIT = 300 << 20
SIZE = 320 << 20


@pytest.fixture(scope="module", params=["bwrap", "process"])
def watched(request, guests):
    """Each rung that confines, on a host without control groups."""
    if request.param == "bwrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_cgroups, "_mounts", list)
        with open_sandbox(request.param, python_paths=[guests]) as sandbox:
            assert "memory:rlimit+watchdog" in sandbox.layers
            yield sandbox


@pytest.fixture
def start(watched, pair):
    """Starts one cold guest; returns it, and our end of its socket."""
    ours, theirs = pair
    workers = []

    def start(entry: str):
        limits = Limits(memory_bytes=LIMIT)
        workers.append(watched.start_worker(f"sandbox_guests:{entry}", sock=theirs, limits=limits, warm=False))
        return workers[-1], ours

    yield start
    for worker in workers:
        worker.kill()


@pytest.mark.parametrize(
    "entry",
    ["allocate_shared", "fill_memory_files", "fill_memory_files_without_a_first_thread", "fill_page_tables"],
)
def test_a_worker_that_takes_too_much_is_ended(start, entry):
    worker, _ = start(entry)
    end = worker.wait(30.0)
    assert end is not None
    assert end.reason == "oom"


@pytest.mark.parametrize("kind", ["open", "closed", "product"])
def test_what_is_handed_in_does_not_count(start, kind):
    """Neither while it is open here, nor after it was closed here."""
    worker, sock = start("keep")
    if kind == "product":
        send_message(sock, {}, [product := product_memfd(bytes(SIZE))])
        os.close(product)
        assert_it_lives(worker, sock, {"bytes": SIZE})
        return
    with SharedMemory.create(SIZE, "given") as memory:
        os.posix_fallocate(memory.fd, 0, SIZE)
        memory.seal()
        send_message(sock, {}, [memory.fd])
        if kind == "closed":
            memory.close()
        assert_it_lives(worker, sock, {"bytes": SIZE})


def test_a_memory_file_counts_once(start):
    worker, sock = start("fill_one_memory_file")
    assert_it_lives(worker, sock, {"copies": 16})


def assert_it_lives(worker, sock, answer):
    """It has said that it holds the memory, and the watchdog, which looks every 20 ms, lets it be."""
    assert recv_message(sock, timeout_s=30.0)[0] == answer
    assert worker.wait(0.5) is None
