"""Sandboxes for the tests, opened once: the first warm worker of each costs an import of torch."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from kernelwright.sandbox import open_sandbox

GUESTS = str(Path(__file__).parent / "guests")
needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@pytest.fixture(scope="session")
def guests():
    return GUESTS


@pytest.fixture(scope="session")
def only_bwrap():
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    with open_sandbox("bwrap", python_paths=[GUESTS]) as sandbox:
        yield sandbox


@pytest.fixture
def bwrap(only_bwrap):
    return only_bwrap


@pytest.fixture(scope="session")
def process():
    with open_sandbox("process", python_paths=[GUESTS]) as sandbox:
        yield sandbox


@pytest.fixture(params=["bwrap", "process"])
def sandbox(request):
    """Each rung that confines."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def pair():
    """A socket pair: our end, and the end to give to a worker."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def open_fds():
    """Counts this process's descriptors."""
    return lambda: len(os.listdir("/proc/self/fd"))
