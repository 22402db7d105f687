"""The timekeeper over a clock whose times are drawn: what each constant of the method does to what is claimed."""

from __future__ import annotations

import contextlib
import math
from types import SimpleNamespace

import numpy as np
import pytest
from referee_small_problems import SOFTMAX_PROBLEM, make_problem

from kernelwright.config import Measurement, Settings
from kernelwright.evaluator.timing.turns import Turn
from kernelwright.evaluator.verdict.progress import Progress, Refused
from kernelwright.evaluator.verdict.search_and_confirm import Timekeeper
from kernelwright.records import Candidate, Status, TimingSample

CHECK_SET = SimpleNamespace(variants=[SimpleNamespace(bytes_moved=1 << 20)], flops=1e6)
PROBLEM = make_problem(SOFTMAX_PROBLEM, "softmax")
EAGER_MS = 1.0


def candidate(text: str = "ours") -> Candidate:
    return Candidate(problem_id=PROBLEM.id, source=text, backend="cpp")


class Side(SimpleNamespace):
    def end(self) -> None: ...

    def leave(self, *, timeout_s: float) -> None: ...


class DrawnClock:
    """Times are the truth times noise: lognormal in each window, and again in each process.

    Args:
        ratio: by how many times the candidate, and a rival of each name, is faster than the reference.
    """

    may_confirm = True

    def __init__(self, ratio: dict[str, float], *, window: float, process: float, seed: int) -> None:
        self.ratio, self.window, self.process = ratio, window, process
        self.rng = np.random.default_rng(seed)
        self.workers, self.clockwork = self, self
        self.unavailable: dict[str, str] = {}
        self.remarks: dict[str, str] = {}
        self.pairs = 0

    def twin(self, name: str, check_set: object) -> Side:
        return Side(name=name)

    live_twin = twin

    def start_all(self, starts):
        return [start() for start in starts]

    def floor_ms(self, check_set: object, *, anew: bool = False) -> float:
        return 0.0

    @contextlib.contextmanager
    def turns(self, sides, check_set, read_times, redraws):
        level = {side.name: self.process * self.rng.standard_normal() for side in sides}

        def turn(pair: int, process: int, phase: str) -> Turn:
            self.pairs += 1
            made = {}
            for name, shift in level.items():
                truth = EAGER_MS / self.ratio.get("rival" if name.startswith("rival") else name, 1.0)
                made[name] = truth * math.exp(shift + self.window * self.rng.standard_normal())
            samples = [
                TimingSample(role=name, process=process, pair=pair, order=place, calls=8, latency_ms=ms, phase=phase)
                for place, (name, ms) in enumerate(made.items())
            ]
            claims = {name: math.log(taken / made["candidate"]) for name, taken in made.items()}
            return Turn(made, tuple(samples), None, claims)

        yield SimpleNamespace(turn=turn)


class SlowlyReadClock(DrawnClock):
    """In some processes, numbered as they start, the candidate's outputs take a hundred times as long to read."""

    def __init__(self, slow: set[int]) -> None:
        super().__init__({"candidate": 1.5}, window=0.01, process=0.001, seed=0)
        self.slow, self.started = slow, 0

    @contextlib.contextmanager
    def turns(self, sides, check_set, read_times, redraws):
        reads_us = 1_000 if self.started in self.slow else 10
        self.started += 1
        with super().turns(sides, check_set, read_times, redraws) as drawn:

            def turn(pair: int, process: int, phase: str) -> Turn:
                ours, theirs = window_read_in(reads_us), window_read_in(10)
                return drawn.turn(pair, process, phase)._replace(wrong=read_times.wrong(ours, theirs))

            yield SimpleNamespace(turn=turn)


def window_read_in(microseconds: float) -> SimpleNamespace:
    """A window of calls of a millisecond, whose outputs of 4 KB took so long to read."""
    outputs = {0: [SimpleNamespace(size=4096)]}
    return SimpleNamespace(outputs=outputs, reads_ns=[1e3 * microseconds], durations_ns=[1e6])


class Starts:
    """Starts what is timed beside the reference."""

    def start(self, *arguments: object) -> Side:
        return Side(name="candidate")

    def start_rival(self, rival: Candidate, check_set: object, role: str) -> Side:
        return Side(name=role)


def timed(ratio: float, *, confirm=False, rival=None, window=0.0, process=0.0, seed=0, **method):
    """One timing of a candidate of known speed: what was found, and how many turns that took."""
    rivals = [] if rival is None else [candidate("rival")]
    clock = DrawnClock({"candidate": ratio, "rival": rival or 1.0}, window=window, process=process, seed=seed)
    settings = Settings(measurement=Measurement(**method))
    keeper = Timekeeper(settings, PROBLEM, clock, Starts(), ("eager",))
    progress = Progress(own_kernels="any", timeable=True, screening=True)
    if confirm:
        keeper.confirm(candidate(), CHECK_SET, progress, rivals)
    else:
        keeper.search(candidate(), Side(name="candidate"), CHECK_SET, progress, rivals)
    return progress.timing, clock.pairs


def test_what_is_much_faster_or_slower_is_decided_at_the_first_look():
    for ratio, faster in ((3.0, True), (0.3, False)):
        found, pairs = timed(ratio, window=0.05)
        assert (found.speedup["eager"].faster, pairs) == (faster, 12)
        assert found.speedup["eager"].median == pytest.approx(ratio, rel=0.05)


def test_what_is_close_is_timed_up_to_the_last_look():
    found, pairs = timed(1.03, window=0.2)
    assert pairs == 96
    assert not found.speedup["eager"].faster
    assert timed(1.03, window=0.2, looks=(6, 20))[1] == 20


def test_a_wider_interval_is_enough_where_the_method_says_so():
    assert timed(1.02, window=0.05)[1] > 12
    assert timed(1.02, window=0.05, target_half_width=0.2)[1] == 12


def test_the_bound_of_a_search_decides_what_it_calls_faster():
    assert timed(1.05, window=0.005)[0].speedup["eager"].faster
    held = timed(1.05, window=0.005, search_noise_bound=0.08)[0]
    assert not held.speedup["eager"].faster
    assert held.noise_bound == 0.08


def test_the_bound_of_a_confirmation_decides_what_it_calls_faster():
    assert timed(1.05, confirm=True, window=0.005)[0].speedup["eager"].faster
    held = timed(1.05, confirm=True, window=0.005, noise_bound=0.08)[0]
    assert not held.speedup["eager"].faster
    assert held.confirmed


def test_a_confirmation_has_as_many_processes_as_its_scatter_asks_for_within_the_bounds():
    quiet, noisy = {"window": 0.02, "process": 0.002}, {"window": 0.02, "process": 0.2}
    assert timed(1.5, confirm=True, **quiet)[0].processes == 4
    assert timed(1.5, confirm=True, confirm_pairs=7, **quiet)[0].processes == 7
    assert timed(1.5, confirm=True, **noisy)[0].processes == 20
    assert timed(1.5, confirm=True, confirm_max_pairs=9, **noisy)[0].processes == 9


def test_a_race_ends_where_the_method_says_that_two_kernels_are_equal():
    assert timed(2.0, rival=2.0, window=0.1)[1] == 96
    assert timed(2.0, rival=2.0, window=0.1, race_pairs=24, looks=(4,))[1] == 24


def test_the_bound_of_a_race_decides_whose_place_is_taken():
    def won(**method):
        (rival,) = timed(2.1, rival=2.0, window=0.005, **method)[0].rivals.values()
        return rival.faster

    assert won()
    assert not won(race_noise_bound=0.08)


@pytest.mark.parametrize("slow", [{0}, {1, 2}])
def test_a_confirmation_whose_outputs_become_slow_to_read_times_that_process_anew(slow):
    clock = SlowlyReadClock(slow)
    progress = confirmed_over(clock)
    assert progress.timing.processes == clock.started - 1 >= 4
    assert {sample.process for sample in progress.samples} == set(range(progress.timing.processes))
    assert len({(sample.role, sample.process, sample.pair) for sample in progress.samples}) == len(progress.samples)


def test_a_confirmation_is_refused_whose_outputs_are_slow_to_read_once_more():
    for slow in ({0, 1}, {0, 2, 3}):
        with pytest.raises(Refused, match="far longer to read") as refused:
            confirmed_over(SlowlyReadClock(slow))
        assert refused.value.status is Status.QUARANTINED


def confirmed_over(clock: DrawnClock) -> Progress:
    progress = Progress(own_kernels="any", timeable=True, screening=True)
    Timekeeper(Settings(), PROBLEM, clock, Starts(), ("eager",)).confirm(candidate(), CHECK_SET, progress)
    return progress


def test_identical_code_is_hardly_ever_called_faster():
    noise = {"window": 0.05, "process": 0.01}
    false = [timed(1.0, confirm=True, seed=seed, **noise)[0].speedup["eager"].faster for seed in range(60)]
    assert sum(false) <= 3
    found = [timed(1.15, confirm=True, seed=seed, **noise)[0].speedup["eager"].faster for seed in range(60)]
    assert sum(found) >= 57
