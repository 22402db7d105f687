"""Tensors over a keeper's memory: what one process writes, the other sees."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from kernelwright.evaluator.device.keeper_client import Keeper
from kernelwright.evaluator.driver.cuda import Driver
from kernelwright.evaluator.wire import tensors as wire
from kernelwright.evaluator.worker.device_tensors import MappedOnDevice


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
