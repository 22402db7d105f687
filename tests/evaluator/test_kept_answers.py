"""When samples say that a candidate keeps answers: by stand-ins that answer with shares of the test's own choice."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from kernelwright.evaluator.cpu.share_sampling import sample_share, sample_shares
from kernelwright.evaluator.own.evidence import Evidence
from kernelwright.evaluator.own.shares import Share

PLAN = SimpleNamespace(calls=4)


def share(own: int, samples: int) -> Share:
    part = own / samples
    return Share(own=part, library=0.0, python=1.0 - part, other=0.0, samples=samples)


class Scene:
    """A worker and its sampler. ``new`` and ``again`` are what each look at new and at known inputs finds."""

    def __init__(self, new: list[Share], again: list[Share]) -> None:
        self._found = {True: itertools.cycle(new), False: itertools.cycle(again)}
        self._refilled = False
        self.pool = SimpleNamespace(
            slots=16, refill=self._refill, rewrite=self._rewrite, variant=SimpleNamespace(capacity=list)
        )
        worker = SimpleNamespace(products={}, worker=SimpleNamespace(pid=1), door_files=frozenset())
        self.side = SimpleNamespace(
            client=worker, door=self, freeze=lambda: None, thaw=lambda: None, copy_written=lambda slots: None
        )
        self.looks = 0
        self.call_ns = 10**7
        self.again_ns: int | None = None  # of calls on known inputs, where they take another time
        self.lengths: list[int] = []  # of the windows, in calls
        self.rewritten: list[list[int]] = []  # slots whose known inputs were written anew, before each window
        self._anew: list[int] = []

    def _refill(self, slots: np.ndarray) -> np.ndarray:
        self._refilled = True
        return slots[:0]  # no others change

    def _rewrite(self, slots: np.ndarray) -> None:
        self._anew = slots.tolist()

    def window(self, client: object, order: np.ndarray, reads: object, capacity: object, **_: object):
        self.lengths.append(len(order))
        self.rewritten.append(self._anew)
        self._anew = []
        known = self.again_ns is not None and not self._refilled
        return SimpleNamespace(durations_ns=np.full(len(order), self.again_ns if known else self.call_ns))

    def sampling(self, pid: int, **_: object):
        self._refilled = False
        return SimpleNamespace(over=lambda calls: calls(None), result=self._result)

    def _result(self) -> Share:
        self.looks += 1
        return next(self._found[self._refilled])

    def objection(self) -> str:
        shares = sample_shares(self, self.side, self.pool, PLAN, call_timeout_s=1.0)
        return Evidence(shares.first, shares.again, None, "needed", "", 0, 0, {}, [], shares.lengths_ns).objection()


RARELY = [share(5, 24), *[share(1, 24)] * 9]  # 6% of the time, and 21% of the first 24 samples


@pytest.mark.parametrize(
    ("new", "again", "refused"),
    [
        ([share(80, 100)], [share(80, 100)], False),
        ([share(80, 100)], [share(2, 100)], True),
        ([share(80, 100)], RARELY, True),
        ([share(80, 100)], [share(40, 100)], False),
        ([share(20, 100)], [share(1, 100)], False),
    ],
    ids=["honest", "kept", "kept, by chance not seen at once", "half", "kernels that hardly run"],
)
def test_answers_that_are_kept(new, again, refused):
    assert Scene(new, again).objection().startswith("it keeps answers") is refused


def test_a_machine_that_gives_few_samples_refuses_nobody(monkeypatch):
    monkeypatch.setattr("kernelwright.evaluator.cpu.share_sampling._SAMPLED_AT_MOST_S", 0.0)
    assert Scene([share(20, 23)], [share(0, 23)]).objection() == ""


def test_what_looks_like_keeping_is_looked_at_twice():
    scene = Scene([share(80, 100)], [share(2, 100), share(80, 100)])
    assert scene.objection() == ""
    assert scene.looks == 4


@pytest.mark.parametrize(("again_ns", "refused"), [(100_000, False), (20_000, False), (2_000, True)])
def test_calls_too_short_to_be_sampled_tell_by_their_lengths_that_answers_are_kept(monkeypatch, again_ns, refused):
    monkeypatch.setattr("kernelwright.evaluator.cpu.share_sampling._SAMPLED_AGAIN_AT_MOST_S", 0.0)
    scene = Scene([share(80, 100)], [None])  # a busy machine: no sample hits such a call
    scene.call_ns, scene.again_ns = 100_000, again_ns
    said = "it keeps answers: calls take 100 us or more, and 2 us when the same inputs come again"
    assert scene.objection() == (said if refused else "")
    assert scene.looks == (4 if refused else 2)


@pytest.mark.parametrize(
    ("first", "later", "refused"),
    [
        (share(80, 100), share(70, 100), False),
        (share(80, 100), share(30, 100), False),
        (share(80, 100), share(8, 100), True),
        (share(80, 100), share(1, 100), True),
        (share(15, 100), share(7, 100), False),
        (share(80, 100), share(0, 20), False),
        (None, share(50, 100), False),
    ],
)
def test_own_kernels_that_rest_once_they_are_timed(first, later, refused):
    evidence = Evidence(first, None, None, "needed", "", 10**6, 10**6, {}, [])
    assert bool(evidence.objection_while_timed(later)) is refused


@pytest.mark.parametrize(
    ("first", "later", "looks", "refused"),
    [
        (share(60, 100), [share(0, 24)], 2, True),  # none of 24 may still be an eighth
        (share(60, 100), [share(2, 24), share(0, 24)], 4, True),
        (share(60, 100), [share(12, 24)], 1, False),
        (share(60, 100), [share(6, 24)], 3, False),
        (share(1, 100), [share(0, 24)], 1, False),  # where overhead is all that there is
    ],
)
def test_samples_are_taken_until_they_tell_whether_own_kernels_rest(first, later, looks, refused):
    scene = Scene(later, [])
    evidence = Evidence(first, None, None, "needed", "", 0, 10**6, {}, [])
    found = sample_share(scene, scene.side, scene.pool, PLAN, evidence.is_settled_while_timed, call_timeout_s=1.0)
    assert found is not None
    assert scene.looks == looks
    assert bool(evidence.objection_while_timed(found)) is refused


def test_a_worker_that_cannot_be_sampled_is_not_looked_at_for_ever():
    scene = Scene([None], [])
    assert sample_share(scene, scene.side, scene.pool, PLAN, lambda share: True, call_timeout_s=1.0) is None
    assert scene.looks == 3


def test_windows_of_answers_that_are_kept_are_not_over_before_a_look_is():
    scene = Scene([share(80, 100)], [share(2, 100)])
    scene.call_ns = 2000
    assert scene.objection().startswith("it keeps answers")
    new, once, again = scene.lengths[:4], scene.lengths[4], scene.lengths[5 : scene.lengths.index(4, 5)]
    assert new == [4] * 4
    assert once == 8
    assert again[:4] == [8, 16, 32, 64]
    assert max(again) * scene.call_ns > 1_000_000


def test_known_inputs_are_written_anew_before_each_window_so_that_they_come_from_the_same_caches_as_new_ones():
    scene = Scene([share(80, 100)], [share(80, 100)])
    assert scene.objection() == ""
    new, once, *again = zip(scene.lengths, scene.rewritten, strict=True)
    assert (new, once) == ((4, []), (8, []))
    assert again
    assert all((calls, len(set(slots))) == (8, 8) for calls, slots in again)
