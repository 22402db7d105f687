"""Windows of a check and of timing over sides of the test's own making: what is looked at, and what a time is."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kernelwright.evaluator.accuracy.budget import Reduction
from kernelwright.evaluator.accuracy.trials import Trial, Truth
from kernelwright.evaluator.device.empty import Beyond, Empty, EmptyCalls
from kernelwright.evaluator.device.recorder import ReplaySide
from kernelwright.evaluator.device.side import DeviceSide, Idle
from kernelwright.evaluator.device.turns import DeviceTurns
from kernelwright.evaluator.timing.check_windows import Checker
from kernelwright.evaluator.timing.turns import Comparison, Plan, ReadTimes, Turns
from kernelwright.evaluator.wire.claims import OutputClaim
from kernelwright.evaluator.wire.tensors import TensorSpec
from kernelwright.records import Status

SIZE = 64
SPEC = TensorSpec("", "float32", (SIZE,), (1,))
USUAL = np.linspace(-1.0, 1.0, SIZE, dtype=np.float32)
TRUTH = Truth("float", 2 * USUAL, 2.0 * USUAL.astype(np.float64), np.full(SIZE, 1e-7), None)
RESERVED = Trial("normal", 0, np.zeros(0, dtype=np.uint8), (Reduction(4),), (TRUTH,))
EXACT = np.linspace(-1.0, 1.0, SIZE)
SCALE = 1e-3
MOVED = EXACT + 30 * SCALE  # by a change of the input that lower precision does not see
PAIR = tuple(
    Trial(
        "normal",
        0,
        np.zeros(0, dtype=np.uint8),
        (Reduction(4),),
        (Truth("float", y, y, np.full(SIZE, SCALE), None),),
        partner,
    )
    for y, partner in ((EXACT, None), (MOVED, 0))
)
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


def right(trial: Trial | None) -> np.ndarray:
    return USUAL if trial is None else trial.truths[0].exact


class Side:
    """A worker that takes ``mean_ms`` a call, and lays its outputs in turn at ``places``.

    ``answer`` makes its output of the trial in a slot, or of None where there is none.
    """

    def __init__(self, name: str, pool: Pool, mean_ms: float = 0.3, places=FRESH_PLACES, answer=right) -> None:
        self.name, self._pool, self._mean_ms, self._places, self._answer = name, pool, mean_ms, places, answer

    def window(self, slots: np.ndarray, reads: np.ndarray, *, call_timeout_s: float):
        outputs = {int(call): (self._output(int(call), int(slots[call])),) for call in reads}
        return SimpleNamespace(
            outputs=outputs,
            mean_ms=self._mean_ms,
            durations_ns=np.full(len(slots), self._mean_ms * 1e6),
            reads_ns=np.full(len(reads), 1000.0),
        )

    def _output(self, call: int, slot: int) -> OutputClaim:
        values = np.asarray(self._answer(self._pool.placed.get(slot)), dtype=np.float32)
        return OutputClaim(self._places[call % len(self._places)], "float32", (SIZE,), (1,), values.view(np.uint8))


def turns(pool: Pool, *sides: Side, reserve=(), null_ms: float = 0.0, kind=Turns, **attributes):
    comparison = Comparison([SPEC], [RESERVED], 1.0)
    made = kind(
        sides, pool, Plan(16, 64), comparison, ReadTimes(), reserve=reserve, null_ms=null_ms, call_timeout_s=1.0
    )
    for name, value in attributes.items():
        setattr(made, name, value)
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


USUAL_MS, WAITING_MS = Empty(0.10, 0.13, 0.02, 0.08), Empty(0.20, 0.25, 0.05, 0.20)


def on_device(kind, name: str, pool: Pool, mean_ms: float, *, waits: bool = False):
    """A side of a device's kind, which takes windows as a :class:`Side`."""

    class Seat(Side, kind):
        synchronising = waits

    return Seat(name, pool, mean_ms)


@pytest.mark.parametrize(
    ("ours", "waits", "claimed"),
    [
        (DeviceSide, False, (0.5 - 0.13) / 0.3),  # E's upper limit, off the reference alone
        (DeviceSide, True, (0.5 - 0.25) / 0.3),
        (ReplaySide, False, (0.5 - 0.08) / (0.3 - 0.08 - 0.02)),  # its lower limit, off both, and a replay's own
        (ReplaySide, True, (0.5 - 0.25) / (0.3 - 0.08 - 0.02)),
    ],
    ids=["queue", "queue beside a reference that waits", "replay", "replay beside a reference that waits"],
)
def test_a_device_claims_no_more_than_an_empty_call_leaves_certain(ours, waits, claimed):
    pool = Pool()
    sides = on_device(ours, "candidate", pool, 0.3), on_device(DeviceSide, "eager", pool, 0.5, waits=waits)
    beyond = Beyond(0.03, 0.01)
    for turn in turns(pool, *sides, kind=DeviceTurns, empty=(USUAL_MS, lambda: WAITING_MS), beyond=beyond):
        assert np.exp(turn.claims["eager"]) == pytest.approx(claimed)
        candidate_ms = 0.2 - (0.03 if ours is ReplaySide else 0.0)
        assert turn.latency_ms == pytest.approx({"candidate": candidate_ms, "eager": 0.3 if waits else 0.4})


def test_a_candidate_that_pretends_to_wait_is_not_shown_faster():
    pool = Pool()
    sides = on_device(DeviceSide, "candidate", pool, 0.3, waits=True), on_device(DeviceSide, "eager", pool, 0.5)
    for turn in turns(pool, *sides, kind=DeviceTurns, empty=(USUAL_MS, lambda: WAITING_MS)):
        assert turn.latency_ms["candidate"] == pytest.approx(0.2)


class EmptyWorker:
    """A worker of ours whose calls take a time of their own kind; ``fill_ms``: of filling alone."""

    def __init__(self, fill_ms: float | None) -> None:
        self._fill_ms = fill_ms
        self.client = SimpleNamespace(worker=SimpleNamespace(alive=lambda: True))

    def idle(self, how: Idle) -> None:
        self._takes = {Idle(False, True): 0.14, Idle(True, True): 0.16, Idle(False, False): 0.30}[how]

    def enter(self, pool) -> None:
        pass

    def fill_ms(self, variant) -> float | None:
        return self._fill_ms

    def window(self, order, reads, *, call_timeout_s: float):
        return SimpleNamespace(mean_ms=self._takes)


@pytest.mark.parametrize(
    ("fill_ms", "ahead", "found"),
    [
        (0.05, True, (0.11, 0.14, 0.0, 0.14)),  # filling calls less filling; at most as idle ones
        (None, True, (0.14, 0.14, 0.0, 0.14)),
        (0.05, False, (0.30, 0.30, 0.0, 0.30)),
    ],
    ids=["filled", "where nothing can be filled", "waiting"],
)
def test_empty_calls_are_of_the_kind_that_a_side_takes(fill_ms, ahead, found):
    empties = EmptyCalls(lambda: EmptyWorker(fill_ms), lambda pool: pytest.fail("nothing is replayed"), 1.0)
    assert empties.measured("a shape", Pool(), 16, ahead=ahead) == pytest.approx(found)


def test_what_a_replays_door_costs_beyond_a_workers_is_measured_once():
    opened = []

    class IdleReplay(EmptyWorker):
        def window(self, order, reads, *, call_timeout_s: float):
            return SimpleNamespace(mean_ms=0.19)

        def end(self) -> None:
            opened.append("and ended")

    def open_replay(pool):
        opened.append("opened")
        return IdleReplay(None)

    empties = EmptyCalls(lambda: EmptyWorker(None), open_replay, 1.0)
    for _ in range(2):
        assert empties.beyond("a shape", Pool(), 16) == pytest.approx((0.05, 0.0))
    assert opened == ["opened", "and ended"]


@pytest.mark.parametrize("knows", [True, False])
def test_among_timed_calls_are_some_whose_answer_is_known_exactly(knows):
    pool = Pool()
    answer = right if knows else lambda trial: USUAL
    sides = [Side(name, pool, answer=answer) for name in ("candidate", "eager")]
    wrong = [turn.wrong for turn in turns(pool, *sides, reserve=[RESERVED]) if turn.wrong is not None]
    assert bool(wrong) is not knows
    assert all(status is Status.INCORRECT_NUMERICAL and "a timed call is wrong" in why for status, why in wrong)


@pytest.mark.parametrize(
    ("answer", "allowed", "status", "reduced"),
    [
        (right, False, None, False),
        (lambda trial: (EXACT + MOVED) / 2, False, Status.INCORRECT_NUMERICAL, True),
        (lambda trial: (EXACT + MOVED) / 2, True, None, True),
    ],
    ids=["full precision", "lower precision", "lower precision where it is allowed"],
)
def test_a_check_probes_precision_where_all_errors_are_within_the_budget(answer, allowed, status, reduced):
    pool = Pool()
    side = Side("candidate", pool, answer=answer)
    checker = Checker(side, pool, Plan(16, 64), tolerance_scale=10.0, reduced_precision=allowed, call_timeout_s=1.0)
    found = checker.check(PAIR)
    assert (found.judgement.status, found.reduced_precision) == (status, reduced)
    assert found.judgement.load <= 1.0
