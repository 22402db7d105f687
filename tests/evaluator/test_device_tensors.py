"""Tensors over a keeper's memory: what one process writes, the other sees."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import kernelwright.evaluator.worker as worker
from kernelwright.evaluator.builds.referee_code import build_library
from kernelwright.evaluator.device.keeper_client import Keeper
from kernelwright.evaluator.driver.cuda import Driver
from kernelwright.evaluator.wire import tensors as wire
from kernelwright.evaluator.worker.arena import Arena
from kernelwright.evaluator.worker.device_tensors import MappedOnDevice
from kernelwright.sandbox import product_memfd


@pytest.fixture
def shared(rehearsed):
    keeper = Keeper(rehearsed.library, images=rehearsed.images)
    memory, fd = keeper.share(1 << 16)
    driver = Driver(rehearsed.library)
    mapped = MappedOnDevice.adopt(driver, fd, 1 << 16, torch.device("cpu"))
    os.close(fd)
    yield keeper, memory, mapped
    mapped.mapping.close()
    driver.close()
    keeper.close()


def test_an_arena_lies_where_a_replay_will_find_room_for_it(rehearsed, tmp_path):
    """The driver chooses where it maps memory, and another process may have something else at that address."""
    keeper = Keeper(rehearsed.library, images=rehearsed.images)
    driver = Driver(rehearsed.library)
    library = product_memfd(build_library(Path(worker.__file__).with_name("arena.c"), tmp_path).read_bytes())
    try:
        _, fd = keeper.share(1 << 20)
        arena = Arena(driver, library, fd, 1 << 20)
        assert arena.mapping.address == 0x600000000000
        arena.mapping.close()
        os.close(fd)
    finally:
        os.close(library)
        driver.close()
        keeper.close()


def test_weights_that_lie_on_a_device_are_copied_there():
    """The host cannot read at a device's address. Torch's device without memory ends a process that tries."""
    code = (
        "import torch\n"
        "from kernelwright.evaluator.worker.runner import Runner\n"
        "runner = Runner.__new__(Runner)\n"
        "runner.call, one = None, torch.ones(4, device='meta')\n"
        "runner.weights = [(one, [torch.zeros(4, device='meta')])]\n"
        "runner.take_weights(0)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_both_sides_see_the_same_tensor(shared, dtype):
    keeper, memory, mapped = shared
    spec = wire.TensorSpec("x", dtype, (6, 5), (7, 1), 128)
    tensor = mapped.tensor(spec, base=64)
    assert (tensor.shape, tensor.stride()) == ((6, 5), (7, 1))
    values = torch.arange(30).reshape(6, 5) % 2 if dtype == "bool" else torch.arange(30).reshape(6, 5)
    tensor.copy_(values)
    raw = torch.frombuffer(bytearray(keeper.get(memory, spec.span_bytes, 192)), dtype=getattr(torch, dtype))
    assert torch.equal(raw.as_strided((6, 5), (7, 1)), values.to(raw.dtype))
    keeper.put(memory, np.zeros(spec.span_bytes, dtype=np.uint8), 192)
    assert not tensor.any()


def test_a_tensor_without_elements_needs_no_memory(shared):
    spec = wire.TensorSpec("x", "float32", (0, 4), (4, 1), 1 << 20)
    assert shared[2].tensor(spec).shape == (0, 4)


def test_a_tensor_beyond_the_memory_is_refused(shared):
    with pytest.raises(ValueError, match="do not lie in"):
        shared[2].tensor(wire.TensorSpec("x", "float32", (4,), (1,), (2 << 20) - 8))
