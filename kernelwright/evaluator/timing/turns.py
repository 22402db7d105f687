"""Paired timing: candidate and baselines take turns over the same fresh inputs, one running, the others frozen.

Every turn reveals the same slots in the same order to every side, with the same weights. Before each turn, with all
sides frozen, the slots to be used are refilled and the weights rewritten; after it, outputs that were read at secret
calls are compared with those of the eager reference on the same data. The check uses windows of the same kind
(``checking``), so that a candidate cannot tell one from the other, or idle once it was checked.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from kernelwright.evaluator.accuracy import arrays, budget
from kernelwright.evaluator.accuracy.judging import Judge, compare_layout
from kernelwright.evaluator.accuracy.redraws import Redraws, alike_in_size, size_limits
from kernelwright.evaluator.accuracy.trials import Trial, data_of, is_normal
from kernelwright.evaluator.figures.intervals import binomial_tail
from kernelwright.evaluator.host.door import Window
from kernelwright.evaluator.host.seat import Seat
from kernelwright.evaluator.timing.slots import Slots
from kernelwright.evaluator.timing.state import mixed
from kernelwright.evaluator.wire import tensors as wire
from kernelwright.evaluator.wire.claims import OutputClaim
from kernelwright.records import Status, TimingSample

Seen = TypeVar("Seen")

_READ_SHARE = 1 / 16  # secret probability with which a call's output is read
_LEAST_READS = 2
_MOST_CALLS = 1024
_LEAST_CALLS = 4
_MANY_CALLS = 32
_LONG_WINDOW_MS = 10.0
_SLOTS_PER_CALL = 4
_STRAY = 2.0  # a timed output may stray this many times the budget of a check: two low-precision outputs are compared
_RESERVE_PAUSE = 0.4  # share of turns without a trial of the reserve
_SLOW_READ = 2.0  # a slow read takes this many times as long as the twin's outputs of the same size
_SLOW_READ_NS = 5_000.0
_COLD_NS_PER_BYTE = 0.25  # outputs of a call of milliseconds have left the caches: 4 GB/s, from memory
_COLD_SHARE = 0.03  # and never more than this share of a call
_SLOW_TURNS = 0.25  # share of turns in which a disturbed machine may read an honest candidate's outputs so slowly
_SURELY = 1e-4
_MIXED_WEIGHTS = 0.75  # of turns without the first draw, the share whose weights no other turn has
_FLIPS = 0.005  # share of integer outputs that may differ from the reference's own, which rounds as well
_FLIPS_OF_ROUNDED = 4.0  # at most this many times the share that rounding flips in the check's trials
# Ties may change this many indices, or this share, in this many outputs of a process. A tie among the eight largest of
# 256 values comes once in about 2,300 outputs and can make two differences. Three in 75 outputs: probability 6e-6.
_TIED = 2
_TIED_SHARE = 0.05
_TIED_OUTPUTS = 2

OVERWRITTEN = Status.REWARD_HACK, "each call overwrites the output of the call before"


class Plan(NamedTuple):
    """The length of a window: ``calls`` over a pool of ``slots``."""

    calls: int
    slots: int


def plan(fastest_ms: float, slowest_ms: float, window_ms: float, slot_bytes: int, pool_bytes: int) -> Plan:
    """Windows of ``window_ms`` or more for the fastest side, 32 calls if the slowest allows, within ``pool_bytes``."""
    calls = max(
        math.ceil(window_ms / max(fastest_ms, 1e-6)),
        min(_MANY_CALLS, math.ceil(_LONG_WINDOW_MS / max(slowest_ms, 1e-6))),
        _LEAST_CALLS,
    )
    most_slots = max(pool_bytes // slot_bytes, 2 * _LEAST_CALLS)
    calls = min(calls, _MOST_CALLS, max(most_slots // 2, _LEAST_CALLS))
    return Plan(calls, min(_SLOTS_PER_CALL * calls, most_slots))


def secret_calls(rng: np.random.Generator, plan_: Plan, slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Which slots a window reveals, in order, and the positions of the calls whose outputs are read, ascending."""
    order = rng.choice(slots, size=plan_.calls, replace=False)
    count = min(max(_LEAST_READS, int(rng.binomial(plan_.calls, _READ_SHARE))), plan_.calls)
    first = int(rng.integers(plan_.calls - 1))
    others = np.setdiff1d(np.arange(plan_.calls), (first, first + 1))
    return order, np.sort([first, first + 1, *rng.choice(others, size=count - 2, replace=False)])


class Turn(NamedTuple):
    """One turn of all sides.

    latency_ms: mean latency by side. wrong: the first thing wrong with the candidate's outputs. claims: by side, the
    logarithm of the candidate's speedup over it, as far as it may be claimed.
    """

    latency_ms: dict[str, float]
    samples: tuple[TimingSample, ...]
    wrong: tuple[Status, str] | None
    claims: dict[str, float]


class Comparison:
    """Compares outputs of a timed call with the twin's on the same data, by the error scales of the check's trials."""

    def __init__(
        self,
        outputs: Sequence[wire.TensorSpec],
        trials: Sequence[Trial],
        tolerance_scale: float,
        *,
        redraws: Redraws | None = None,
    ) -> None:
        """``redraws``: given if outputs are random. Then only their size is compared, and whether they are new."""
        self._outputs = outputs
        self._trials: dict[str, Trial] = {}
        for trial in trials:
            self._trials.setdefault(trial.distribution, trial)
        self._first = trials[0]
        self._limits: dict[tuple[str, int], tuple[float, float]] = {}  # norm and maximum of a scale
        self.tolerance_scale = tolerance_scale
        self._redraws = redraws
        self._sizes: dict[tuple[str, int], tuple[float, float]] = {}  # limits of sizes of random outputs
        self._rounded: dict[int, float] = {}
        self._tied_outputs = 0

    def wrong(
        self, claims: Sequence[OutputClaim], others: Sequence[OutputClaim], label: str
    ) -> tuple[Status, str] | None:
        """What is wrong with one call's outputs, or None. ``label`` is the distribution of its inputs."""
        for j, (claim, other, spec) in enumerate(zip(claims, others, self._outputs, strict=True)):
            found = compare_layout(claim, spec, j, len(claims))
            if found is None and not self._agrees(claim, other, spec, j, label):
                found = Status.INCORRECT_NUMERICAL, "a timed call's output differs from the reference's"
            if found is not None:
                return found
        return None

    def _agrees(self, claim: OutputClaim, other: OutputClaim, spec: wire.TensorSpec, j: int, label: str) -> bool:
        try:
            ours = arrays.decode(claim.data.data, spec.dtype, claim.shape, claim.stride)
            theirs = arrays.decode(other.data.data, spec.dtype, other.shape, other.stride)
        except arrays.DecodeError:
            return False
        if self._redraws is not None:
            return self._is_a_draw(ours, theirs, j, label, self._redraws)
        if spec.dtype not in wire.FLOATS:
            is_index = self._trials.get(label, self._first).truths[j].rule is not None
            return self._same_numbers(ours, theirs, None if is_index else self._rounded_share(j), label)
        return _within(ours, theirs, *self._allowed(j, ours.size, label))

    def _allowed(self, j: int, elements: int, label: str) -> tuple[float, float]:
        """How far output ``j`` may stray: the norm and the largest element of the difference."""
        trial = self._trials.get(label, self._first)
        told, scale, data = trial.reductions, self.tolerance_scale, data_of(label)
        allowed = _STRAY * budget.limit(told, elements, scale, data=data)
        norm, largest = self._scale(trial, j)
        return allowed * norm, 40.0 * allowed * largest

    def _is_a_draw(self, ours: np.ndarray, theirs: np.ndarray, j: int, label: str, redraws: Redraws) -> bool:
        """Whether a random output looks like a draw of the reference's, and like none that was drawn before."""
        trial = self._trials.get(label, self._first)
        key = trial.distribution, j
        if key not in self._sizes:
            self._sizes[key] = size_limits([drawn[j] for drawn in trial.draws])
        if not (alike_in_size(ours, theirs, self._sizes[key]) and redraws.sizes.alike(ours, theirs, j)):
            return False
        return not (is_normal(label) or label == "uniform") or redraws.alike(ours, theirs, j)

    def _same_numbers(self, ours: np.ndarray, theirs: np.ndarray, rounded: float | None, label: str) -> bool:
        """Whether integers agree.

        Args:
            rounded: share of them that rounding could flip in the check's trials; None for indices. Any index of
                equal values is right, but equal values are rare in normal and in uniform data.
        """
        if rounded is None and not (is_normal(label) or label == "uniform"):
            return True
        different = int(np.count_nonzero(ours != theirs))
        if different <= (_FLIPS if rounded is None else min(_FLIPS, _FLIPS_OF_ROUNDED * rounded)) * ours.size:
            return True
        if different > max(_TIED, _TIED_SHARE * ours.size if rounded is None else 0):
            return False
        self._tied_outputs += 1
        return self._tied_outputs <= _TIED_OUTPUTS

    def _rounded_share(self, j: int) -> float:
        """The largest share of an output's integers that rounding could flip in one of the check's trials."""
        if j not in self._rounded:
            scales = [trial.truths[j].scale for trial in self._trials.values()]
            self._rounded[j] = max(float(np.mean(scale > 0)) if scale.size else 0.0 for scale in scales)
        return self._rounded[j]

    def _scale(self, trial: Trial, j: int) -> tuple[float, float]:
        key = trial.distribution, j
        if key not in self._limits:
            scale = trial.truths[j].scale
            self._limits[key] = math.sqrt(float(np.sum(np.square(scale)))), float(np.max(scale, initial=0.0))
        return self._limits[key]


def _within(ours: np.ndarray, theirs: np.ndarray, norm: float, largest: float) -> bool:
    """Whether the norm of a difference, and its largest element, stay within limits."""
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.atleast_1d(np.subtract(ours, theirs, dtype=np.float64)).ravel()
        square = arrays.sum_of_squares(difference)
        if not math.isfinite(square):  # infinities and NaN may agree
            difference = np.abs(difference)
            difference[np.atleast_1d((ours == theirs) | (np.isnan(ours) & np.isnan(theirs))).ravel()] = 0.0
            square = arrays.sum_of_squares(difference)
    if not difference.size:
        return True
    return math.sqrt(square) <= norm and max(float(difference.max()), -float(difference.min())) <= largest


class ReadTimes:
    """Compares how long outputs of candidate and reference take to read, over all turns of a judgement.

    Outputs that are slow to read were not ready: the candidate computes them while they are read. A disturbed machine
    makes some turns slow as well, so the share of slow turns decides. Outputs of long calls have left the caches when
    they are read: 128 KB of a softmax of 1.5 ms take 16 to 55 us longer than those of a softmax of 0.3 ms.
    """

    def __init__(self) -> None:
        self._turns = 0
        self._slow = 0
        self.refused = False  # whether slow turns were surely too many

    @property
    def doubtful(self) -> bool:
        """Whether most turns were slow. With more turns an honest candidate's share falls; any other is refused."""
        return 2 * self._slow > self._turns

    def wrong(self, ours: Window, theirs: Window) -> tuple[Status, str] | None:
        """Count one turn of candidate and reference. Return a status once slow turns are surely too many."""
        size, other = (float(np.median([sum(c.size for c in o) for o in w.outputs.values()])) for w in (ours, theirs))
        expected = float(np.median(theirs.reads_ns)) * max(size / max(other, 1), 1.0)
        cold = min(_COLD_NS_PER_BYTE * size, _COLD_SHARE * float(np.median(ours.durations_ns)))
        self._turns += 1
        self._slow += float(np.median(ours.reads_ns)) > _SLOW_READ * expected + _SLOW_READ_NS + cold
        if binomial_tail(self._slow, self._turns, _SLOW_TURNS) >= _SURELY:
            return None
        self.refused = True
        reason = "its outputs take far longer to read than the reference's: they were not yet there"
        return Status.REWARD_HACK, f"{reason} ({self._slow} of {self._turns} turns)"


class Turns:
    """Takes turns of ``sides`` over ``pool``. ``sides[0]`` is the candidate, compared with ``eager``."""

    def __init__(
        self,
        sides: Sequence[Seat],
        pool: Slots,
        plan: Plan,
        comparison: Comparison,
        read_times: ReadTimes,
        *,
        reserve: Sequence[Trial] = (),
        probing: bool = True,
        null_ms: float,
        call_timeout_s: float,
        judge: Judge | None = None,
    ) -> None:
        """Args besides the obvious ones.

        Args:
            reserve: trials that no worker has seen. probing: whether lower precision inside is refused.
            null_ms: what an empty call takes.
        """
        self._judge = judge or Judge()
        self._reserve = list(reserve)
        self._probing = probing
        self._seen: dict[int, list[Any]] = {}  # the candidate's outputs on trials of the reserve
        self._sides = list(sides)
        self._pool = pool
        self._plan = plan
        self._comparison = comparison
        self._null_ms = null_ms
        self._call_timeout_s = call_timeout_s
        self._rng = np.random.default_rng(secrets.randbits(128))
        self._read_times = read_times

    def turn(self, pair: int, process: int, phase: Literal["search", "confirm", "control"]) -> Turn:
        """Take one turn.

        Raises:
            WorkerFailed: a side failed; ``worker`` names it.
        """
        slots, reads = secret_calls(self._rng, self._plan, self._pool.slots)
        weights = self._change_weights()
        self._pool.refill(slots)
        known = self._place_reserve(slots, reads) if weights == 0 else {}
        windows: dict[str, Window] = {}
        samples: list[TimingSample] = []
        latency: dict[str, float] = {}
        for position, i in enumerate(self._rng.permutation(len(self._sides))):
            side = self._sides[i]
            windows[side.name] = side.window(slots, reads, call_timeout_s=self._call_timeout_s)
            latency[side.name] = max(windows[side.name].mean_ms - self._empty_ms(side), 1e-6)
            samples.append(
                TimingSample(
                    role=side.name,
                    process=process,
                    pair=pair,
                    order=position,
                    calls=self._plan.calls,
                    latency_ms=latency[side.name],
                    phase=phase,
                )
            )
        wrong = self._judge_reserve(known, windows[self._sides[0].name]) or self._compare(windows, slots)
        return Turn(latency, tuple(samples), wrong, self._claimed(latency, windows))

    def _empty_ms(self, side: Seat) -> float:
        """What an empty call of a side takes."""
        return self._null_ms

    def _claimed(self, latency_ms: Mapping[str, float], windows: Mapping[str, Window]) -> dict[str, float]:
        """By side, the logarithm of the candidate's speedup over it that may be claimed."""
        own = latency_ms[self._sides[0].name]
        return {name: math.log(taken / own) for name, taken in latency_ms.items()}

    def apart(self, look: Callable[[Seat, Slots, Plan], Seen]) -> Seen:
        """Look at the candidate between two turns and return what ``look`` finds. The candidate is frozen before."""
        side = self._sides[0]
        side.freeze()
        return look(side, self._pool, self._plan)

    def _change_weights(self) -> int | None:
        """Give all sides other weights. Return the number of their draw, or None for a mixture of two draws."""
        variant, draw = self._pool.variant, int(self._rng.integers(max(len(self._pool.variant.weights), 1)))
        if len(variant.weights) < 2:
            return 0
        # trials of the reserve have the first draw, and must not become rarer
        writers = [side.writer for side in self._sides]
        if draw and self._rng.random() < _MIXED_WEIGHTS and all(writers):
            drawn = mixed(variant.state, variant.weights, self._rng)
            for write in writers:
                assert write is not None
                write(drawn)
            return None
        for side in self._sides:
            side.take_weights(draw, call_timeout_s=self._call_timeout_s)
        return draw

    def _place_reserve(self, slots: np.ndarray, reads: np.ndarray) -> dict[int, int]:
        """Now and then, put a trial of the reserve where an output will be read. Return its number, by its call."""
        if not self._reserve or self._rng.random() < _RESERVE_PAUSE:
            return {}
        known = {int(self._rng.choice(reads)): int(self._rng.integers(len(self._reserve)))}
        self._pool.place({int(slots[call]): self._reserve[k] for call, k in known.items()})
        return known

    def _judge_reserve(self, known: Mapping[int, int], window: Window) -> tuple[Status, str] | None:
        for call, k in known.items():
            trial, variant = self._reserve[k], self._pool.variant
            found, values = self._judge.trial(trial, variant, window.outputs[call], self._comparison.tolerance_scale)
            if found.status is not None:
                return found.status, f"a timed call is wrong: {found.reason}"
            self._seen[k] = values
        for k, trial in enumerate(self._reserve) if self._probing else ():
            other = trial.partner
            if other is None or not {k, other} <= self._seen.keys() or not {k, other} & set(known.values()):
                continue
            if reason := self._judge.probe(trial, self._reserve[other], self._seen[k], self._seen[other]):
                return Status.INCORRECT_NUMERICAL, f"while timed, {reason}"
        return None

    def _compare(self, windows: Mapping[str, Window], slots: np.ndarray) -> tuple[Status, str] | None:
        if "eager" not in windows:
            return None
        theirs = windows["eager"].outputs
        if (overwritten := self._overwritten(windows)) is not None:
            return overwritten
        for call, claims in windows[self._sides[0].name].outputs.items():
            wrong = self._comparison.wrong(claims, theirs[call], self._pool.label(int(slots[call])))
            if wrong is not None:
                return wrong
        return self._late(windows)

    def _late(self, windows: Mapping[str, Window]) -> tuple[Status, str] | None:
        """A refusal if the candidate's outputs are not there yet when they are read."""
        return self._read_times.wrong(windows[self._sides[0].name], windows["eager"])

    def _overwritten(self, windows: Mapping[str, Window]) -> tuple[Status, str] | None:
        """A refusal if outputs overwrite those of the call before, which their user loses, and the reference's do not.

        A worker frees a result only once it has the next one, so freshly allocated memory cannot be the same memory.
        """
        ours, theirs = windows[self._sides[0].name].outputs, windows["eager"].outputs
        for call in ours.keys() & {k - 1 for k in ours}:
            mine, others = (meet(side[call], side[call + 1]) for side in (ours, theirs))
            if mine and not others:
                return OVERWRITTEN
        return None


def meet(first: Sequence[OutputClaim], second: Sequence[OutputClaim]) -> bool:
    """Whether outputs of two calls share memory."""
    return any(itertools.starmap(_overlap, itertools.product(first, second)))


def _overlap(a: OutputClaim, b: OutputClaim) -> bool:
    """Whether two outputs share memory."""
    return a.address < b.address + b.size and b.address < a.address + a.size
