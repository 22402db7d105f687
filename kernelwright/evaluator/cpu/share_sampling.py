"""Shares of a worker's time in own kernels, by samples of its instruction pointer while it takes calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from kernelwright.evaluator.cpu.pool import Pool
from kernelwright.evaluator.cpu.share import ShareSampler
from kernelwright.evaluator.cpu.side import Side
from kernelwright.evaluator.host.door import Meanwhile
from kernelwright.evaluator.own.evidence import Shares, are_looked_up, is_compared, is_decided
from kernelwright.evaluator.own.shares import Share
from kernelwright.evaluator.timing.turns import Plan

_MOST_WINDOWS = 1000  # of known inputs: their calls are short if answers are kept,
_WINDOW_S = 0.001  # and windows of a few short calls end before a look that began in them: so windows are made longer
_MOST_CALLS = 1 << 14
_SAMPLED_S = 0.015
_EMPTY_LOOKS = 3  # looks without a sample, after which a worker counts as impossible to sample
_SAMPLED_AT_MOST_S = 2.0  # for a machine so busy that the sampler hardly gets to run
_SAMPLED_AGAIN_AT_MOST_S = 8.0  # calls that only look up an answer are rarely sampled, and long ones soon often enough
_INTERVAL_US = 150


def sample_shares(sampler: ShareSampler, side: Side, pool: Pool, plan: Plan, *, call_timeout_s: float) -> Shares:
    """Sample a worker that waits frozen at the door, over calls on new and on known inputs. It ends up frozen again.

    If it seems to keep answers, it is sampled once more, and the second result counts.

    Raises:
        WorkerFailed: the worker died, raised or hung.
    """
    shares = _sample_both(sampler, side, pool, plan, call_timeout_s=call_timeout_s)
    if shares.keep_answers():
        shares = _sample_both(sampler, side, pool, plan, call_timeout_s=call_timeout_s)
    return shares


def sample_share(
    sampler: ShareSampler,
    side: Side,
    pool: Pool,
    plan: Plan,
    enough: Callable[[Share], bool],
    *,
    call_timeout_s: float,
) -> Share | None:
    """Sample a worker that waits frozen at the door, over calls on new inputs only. These windows are not timed.

    Args:
        enough: whether a share rests on enough samples.

    Raises:
        WorkerFailed: the worker died, raised or hung.
    """

    def look() -> Share | None:
        return _burst(sampler, side, pool, _new_windows(side, pool, plan), [], call_timeout_s=call_timeout_s)

    return _gathered(look, enough)


def _sample_both(sampler: ShareSampler, side: Side, pool: Pool, plan: Plan, *, call_timeout_s: float) -> Shares:
    new_ns: list[np.ndarray] = []
    again_ns: list[np.ndarray] = []

    def look() -> Share | None:
        return _burst(sampler, side, pool, _new_windows(side, pool, plan), new_ns, call_timeout_s=call_timeout_s)

    def look_again() -> Share | None:
        windows = _known_windows(side, pool, known)
        return _burst(sampler, side, pool, windows, again_ns, call_timeout_s=call_timeout_s, at_least_s=_WINDOW_S)

    def lengths() -> tuple[float, float]:
        return float(np.min(np.concatenate(new_ns))), float(np.median(np.concatenate(again_ns)))

    first = _gathered(look, is_decided)
    if first is None:
        return Shares(None, None)
    known = _seen_once(side, pool, call_timeout_s)
    again = _gathered(
        look_again,
        lambda again: is_compared(first, again),
        seen_before=True,
        looked_up=lambda: are_looked_up(*lengths()),
    )
    return Shares(first, again, lengths())


def _gathered(
    look: Callable[[], Share | None],
    enough: Callable[[Share], bool],
    *,
    seen_before: bool = False,
    looked_up: Callable[[], bool] = lambda: False,
) -> Share | None:
    """Repeat a look until its samples are enough or time is up, and return them together; None if a few saw nothing.

    ``seen_before``: the worker can be sampled, so a look without samples only means that its calls are short.
    ``looked_up``: whether the lengths of the calls already decide, so that no more samples are needed.
    """
    share, empty = None, 0
    deadline = time.monotonic() + (_SAMPLED_AGAIN_AT_MOST_S if seen_before else _SAMPLED_AT_MOST_S)
    while share is None or not enough(share):
        found = look()
        share, empty = _together(share, found), empty + (found is None)
        hopeless = share is None and not seen_before and empty >= _EMPTY_LOOKS
        if hopeless or looked_up() or time.monotonic() > deadline:
            break
    return share


def _new_windows(side: Side, pool: Pool, plan: Plan) -> Iterator[np.ndarray]:
    """Windows of new inputs."""
    slots = np.random.default_rng().permutation(pool.slots)
    for order in np.split(slots, range(plan.calls, len(slots), plan.calls)):
        side.freeze()
        pool.refill(order)
        side.copy_written(order)
        side.thaw()
        yield order


def _seen_once(side: Side, pool: Pool, call_timeout_s: float) -> np.ndarray:
    """Have a worker answer new inputs in half of the slots, once. Returns these slots."""
    order = np.random.default_rng().permutation(pool.slots)[: max(pool.slots // 2, 1)]
    side.freeze()
    pool.refill(order)
    side.copy_written(order)
    side.thaw()
    side.door.window(side.client, order, [], pool.variant.capacity(), call_timeout_s=call_timeout_s)
    side.freeze()
    return order


def _known_windows(side: Side, pool: Pool, known: np.ndarray) -> Iterator[np.ndarray]:
    """Windows of all known inputs, written anew before each, so that they come from the same caches as new ones.

    Inputs of a few calls would stay in the caches of the worker's core, where a kernel that scales 8,192 numbers takes
    0.3 us instead of 2.6 on new ones. It would look as if answers were kept.
    """
    for _ in range(_MOST_WINDOWS):
        side.freeze()
        pool.rewrite(known)
        side.copy_written(known)
        side.thaw()
        yield known


def _burst(
    sampler: ShareSampler,
    side: Side,
    pool: Pool,
    windows: Iterable[np.ndarray],
    lengths_ns: list[np.ndarray],
    *,
    call_timeout_s: float,
    at_least_s: float = 0.0,
) -> Share | None:
    """The share over windows of slots, for a fixed time. The duration of each call is added to ``lengths_ns``.

    ``at_least_s``: while windows are shorter than this, each repeats its slots twice as often as the one before.
    """
    files, worker, capacity = frozenset(side.client.products), side.client.worker.pid, pool.variant.capacity()
    running = sampler.sampling(worker, own=files, waiting=side.client.door_files, mean_interval_us=_INTERVAL_US)

    def take_calls(meanwhile: Meanwhile | None) -> None:
        spent_s, times = 0.0, 1
        for order in windows:
            window = side.door.window(
                side.client, np.tile(order, times), [], capacity, call_timeout_s=call_timeout_s, meanwhile=meanwhile
            )
            lengths_ns.append(window.durations_ns)
            taken_s = float(window.durations_ns.sum()) / 1e9
            spent_s += taken_s
            if spent_s >= _SAMPLED_S:
                break
            if taken_s < at_least_s and 2 * times * len(order) <= _MOST_CALLS:
                times *= 2

    side.thaw()
    try:
        running.over(take_calls)
    finally:
        side.freeze()
    return running.result()


def _together(first: Share | None, second: Share | None) -> Share | None:
    """Two shares as one, weighted by their samples."""
    if first is None or second is None:
        return second or first
    total = first.samples + second.samples
    weight = first.samples / total
    return Share(
        own=weight * first.own + (1 - weight) * second.own,
        library=weight * first.library + (1 - weight) * second.library,
        python=weight * first.python + (1 - weight) * second.python,
        other=weight * first.other + (1 - weight) * second.other,
        samples=total,
    )
