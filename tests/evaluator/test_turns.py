"""Turns of timing over sides of the test's own making: what a time is, and which outputs are looked at."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kernelwright.evaluator._clock import OutputClaim
from kernelwright.evaluator._timing import Comparison, Plan, ReadTimes, Turns
from kernelwright.evaluator._truth import Trial, Truth
from kernelwright.evaluator._wire import TensorSpec
from kernelwright.records import Status

SIZE = 64
SPEC = TensorSpec("", "float32", (SIZE,), (1,))
USUAL = np.linspace(-1.0, 1.0, SIZE, dtype=np.float32)
TRUTH = Truth("float", 2 * USUAL, 2.0 * USUAL.astype(np.float64), np.full(SIZE, 1e-7), None)
RESERVED = Trial("normal", 0, np.zeros(0, dtype=np.uint8), 4, (TRUTH,))
KEPT_PLACES = (0x1000,)
FRESH_PLACES = (0x1000, 0x2000)


class Pool:
    """Slots of which some hold trials with known answers."""

    slots = 64
    variant = SimpleNamespace(weights=(b"",), outputs=(SPEC,), state=())

    def __init__(self) -> None:
        self.placed: dict[int, Trial] = {}

    def refill(self, slots: np.ndarray) -> None:
        self.placed = {}

    def place(self, trials: dict[int, Trial]) -> None:
        self.placed = trials

    def label(self, slot: int) -> str:
        return "normal"


class Side:
    """A worker that takes ``mean_ms`` a call, and lays its outputs in turn at ``places``."""

    def __init__(self, name: str, pool: Pool, mean_ms: float = 0.3, places=FRESH_PLACES, knows_trials=True) -> None:
        self.name, self._pool, self._mean_ms, self._places, self._knows = name, pool, mean_ms, places, knows_trials

    def window(self, slots: np.ndarray, reads: np.ndarray, *, call_timeout_s: float):
        outputs = {int(call): (self._output(int(call), int(slots[call])),) for call in reads}
        return SimpleNamespace(
            outputs=outputs,
            mean_ms=self._mean_ms,
            durations_ns=np.full(len(slots), self._mean_ms * 1e6),
            reads_ns=np.full(len(reads), 1000.0),
        )

    def _output(self, call: int, slot: int) -> OutputClaim:
        values = 2 * USUAL if self._knows and slot in self._pool.placed else USUAL
        return OutputClaim(self._places[call % len(self._places)], "float32", (SIZE,), (1,), values.view(np.uint8))


def turns(pool: Pool, *sides: Side, reserve=(), null_ms: float = 0.0):
    comparison = Comparison([SPEC], [RESERVED], 1.0)
    made = Turns(
        sides, pool, Plan(16, 64), comparison, ReadTimes(), reserve=reserve, null_ms=null_ms, call_timeout_s=1.0
    )
    return [made.turn(pair, 0, "search") for pair in range(60)]


def test_what_an_empty_call_takes_is_no_part_of_a_time():
    pool = Pool()
    taken = turns(pool, Side("candidate", pool, 0.3), Side("eager", pool, 0.5), null_ms=0.1)
    for turn in taken:
        assert turn.latency_ms == pytest.approx({"candidate": 0.2, "eager": 0.4})
        assert {sample.role: sample.latency_ms for sample in turn.samples} == turn.latency_ms
    assert {sample.order for turn in taken for sample in turn.samples if sample.role == "candidate"} == {0, 1}


def test_a_call_is_never_shorter_than_nothing():
    pool = Pool()
    taken = turns(pool, Side("candidate", pool, 0.1), Side("eager", pool, 0.5), null_ms=0.2)
    assert {turn.latency_ms["candidate"] for turn in taken} == {1e-6}


@pytest.mark.parametrize(
    ("ours", "theirs", "refused"),
    [
        (FRESH_PLACES, FRESH_PLACES, False),
        (KEPT_PLACES, FRESH_PLACES, True),
        (KEPT_PLACES, KEPT_PLACES, False),
        (FRESH_PLACES, KEPT_PLACES, False),
    ],
    ids=["fresh", "kept", "as the reference", "fresh where the reference keeps"],
)
def test_a_result_may_not_lie_where_the_one_before_lay(ours, theirs, refused):
    pool = Pool()
    for turn in turns(pool, Side("candidate", pool, places=ours), Side("eager", pool, places=theirs)):
        assert (turn.wrong is not None) is refused
        if turn.wrong is not None:
            assert turn.wrong[0] is Status.REWARD_HACK
            assert "overwrites" in turn.wrong[1]


@pytest.mark.parametrize("knows", [True, False])
def test_among_timed_calls_are_some_whose_answer_is_known_exactly(knows):
    pool = Pool()
    sides = [Side(name, pool, knows_trials=knows) for name in ("candidate", "eager")]
    wrong = [turn.wrong for turn in turns(pool, *sides, reserve=[RESERVED]) if turn.wrong is not None]
    assert bool(wrong) is not knows
    assert all(status is Status.INCORRECT_NUMERICAL and "a timed call is wrong" in why for status, why in wrong)
