"""Slots between windows: what a candidate that looks at a few places of each can tell."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kernelwright.evaluator.accuracy.distributions import distributions_for
from kernelwright.evaluator.cpu.fresh import FreshLibrary
from kernelwright.evaluator.cpu.pool import Pool, Source
from kernelwright.evaluator.wire.tensors import TensorSpec
from kernelwright.records import InputDomain

SLOTS, CALLS = 48, 12


class Draws:
    """A source of normal numbers."""

    def __init__(self):
        self.rng = np.random.default_rng(3)
        self.filled: list[int] = []

    def fill(self, memory, slots):
        self.filled = [int(slot) for slot in slots]
        for slot in slots:
            memory[slot].view(np.float32)[:] = self.rng.standard_normal(memory.shape[1] // 4)
        return ["normal"] * len(slots)


@pytest.mark.parametrize("elements", [1024, 8192], ids=["small", "large"])
def test_what_has_changed_does_not_tell_which_calls_are_to_come(elements, monkeypatch):
    # By chance two moves of a large slot cancel, once in 8,192: these draws have no such pair.
    monkeypatch.setattr("kernelwright.evaluator.cpu.pool.secrets", SimpleNamespace(randbits=lambda bits: 5))
    source, rng = Draws(), np.random.default_rng(4)
    spec = TensorSpec("x", "float32", (elements,), (1,))
    variant = SimpleNamespace(inputs=(spec,), domains=(InputDomain(fill="normal"),), slot_bytes=4 * elements)
    pool = Pool(variant, source, SLOTS)
    contents = np.frombuffer(pool.memory.view, dtype=np.float32).reshape(SLOTS, elements)
    pool.refill(np.arange(SLOTS))
    seen: set[float] = set()
    for _ in range(6):
        before = contents[:, 7].copy()
        used = rng.choice(SLOTS, size=CALLS, replace=False)
        pool.refill(used)
        assert source.filled == list(used), "what is computed on is drawn anew"
        changed = np.flatnonzero(contents[:, 7] != before)
        assert set(used) < set(changed)
        assert len(changed) == 2 * CALLS
        shown = {float(value) for value in contents[changed, 7]}
        assert len(shown) == 2 * CALLS, "each is another"
        assert not shown & seen, "and none was there before"
        seen |= shown | {float(value) for value in before}
    del contents
    pool.close()


def test_what_only_the_problem_can_draw_stays_whole():
    """Slots that are not used change as well, and none ever holds what no draw gave."""
    spec = TensorSpec("offsets", "int64", (4096,), (1,))
    variant = SimpleNamespace(inputs=(spec,), domains=(InputDomain(fill="structured"),), slot_bytes=8 * 4096)
    drawn = 0

    def fill(memory, slots):
        nonlocal drawn
        for slot in slots:
            memory[slot].view(np.int64)[:] = drawn  # a draw's numbers are all one, so that a mixture shows
            drawn += 1
        return ["own"] * len(slots)

    pool, rng = Pool(variant, SimpleNamespace(fill=fill), SLOTS), np.random.default_rng(4)
    contents = np.frombuffer(pool.memory.view, dtype=np.int64).reshape(SLOTS, 4096)
    pool.refill(np.arange(SLOTS))
    for _ in range(6):
        before = contents[:, 0].copy()
        used = rng.choice(SLOTS, size=CALLS, replace=False)
        others = pool.refill(used)
        assert (contents == contents[:, :1]).all()
        assert set(np.flatnonzero(contents[:, 0] != before)) == {*used, *others}
        assert len(others) == CALLS
    del contents
    pool.close()


@pytest.mark.parametrize("fill", ["normal", "uniform"])
def test_slots_hold_what_the_check_tries_and_mostly_the_plainest_of_it(fill, tmp_path):
    domain = InputDomain(fill=fill, low=-1e4, high=1e4)
    names = distributions_for(domain)
    trials = [SimpleNamespace(distribution=n, weights=0) for n in ("own", *names, "probe", "uniform probe")]
    spec = TensorSpec("x", "float32", (1024,), (1,))
    source = Source(SimpleNamespace(inputs=(spec,), domains=(domain,)), trials, FreshLibrary(tmp_path), None)
    memory = np.zeros((32, 4096), dtype=np.uint8)
    coded, labels = [], []
    for _ in range(40):
        labels += source.fill(memory, np.arange(len(memory)))
        bits = memory.view(np.uint32)
        coded += [bool(same) for same in ((bits >> 12 & 1) == (bits >> 15 & 1)).all(axis=1)]
    assert set(labels) == set(names)
    assert labels.count(fill) > 0.85 * len(labels)
    assert {coded for coded, label in zip(coded, labels, strict=True) if label == fill} == {True}, "as a probe is"
