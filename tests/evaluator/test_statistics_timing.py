"""Paired timing's statistics: exact values, and simulated error rates and coverage (seeded)."""

from __future__ import annotations

import math
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from kernelwright.evaluator.accuracy.judging import compare_layout
from kernelwright.evaluator.accuracy.redraws import Redraws
from kernelwright.evaluator.figures import intervals as statistics
from kernelwright.evaluator.host.door import Window
from kernelwright.evaluator.timing.turns import Comparison, ReadTimes
from kernelwright.evaluator.wire.claims import OutputClaim
from kernelwright.evaluator.wire.tensors import TensorSpec
from kernelwright.records import Interval, Speedup, Status, Timing


def noisy_pairs(rng, shape, deviation=0.025):
    """Log-ratios as measured on two cores: a normal core and 8% outliers on either side."""
    core = rng.normal(0, deviation, shape)
    return core + (rng.random(shape) < 0.08) * rng.uniform(0.05, 0.3, shape) * rng.choice([-1, 1], shape)


# ------------------------------------------------------------------------------------------------ signed ranks


def brute_force_quantile(n, confidence):
    sums = np.array([sum(rank for rank, taken in enumerate(signs, 1) if taken) for signs in product([0, 1], repeat=n)])
    k = 0
    while np.mean(sums <= k) <= (1 - confidence) / 2:
        k += 1
    return k


@pytest.mark.parametrize("n", [3, 6, 8, 11])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.9875])
def test_quantiles_equal_enumeration(n, confidence):
    assert statistics.signed_rank_quantile(n, confidence) == brute_force_quantile(n, confidence)


def test_quantiles_from_the_tables():
    # lower critical values of Wilcoxon's T at 5%, two-sided, are one less
    assert [statistics.signed_rank_quantile(n, 0.95) - 1 for n in (6, 10, 15, 20, 25)] == [0, 8, 25, 52, 89]


def test_the_normal_approximation_takes_over_smoothly():
    exact, beyond = statistics.signed_rank_quantile(200, 0.9875), statistics.signed_rank_quantile(201, 0.9875)
    assert 0 < beyond - exact < 150


def test_the_estimate_is_the_median_of_pairwise_averages():
    assert statistics.signed_rank_interval([1.0, 2.0, 10.0]).estimate == pytest.approx(3.75)  # 1, 1.5, 2, 5.5, 6, 10
    shifted = np.random.default_rng(1).normal(5.0, 1.0, 41)
    assert statistics.signed_rank_interval(shifted).estimate == pytest.approx(5.0, abs=0.5)
    shifted[:4] = 1e6
    assert statistics.signed_rank_interval(shifted).estimate == pytest.approx(5.0, abs=0.7)


def test_the_interval_is_a_pair_of_walsh_averages():
    x = np.random.default_rng(2).normal(0, 1, 20)
    averages = sorted((x[i] + x[j]) / 2 for i in range(20) for j in range(i, 20))
    interval = statistics.signed_rank_interval(x, 0.95)
    assert interval.low == pytest.approx(averages[52])
    assert interval.high == pytest.approx(averages[-53])
    assert interval.low < interval.estimate < interval.high
    mirrored = statistics.signed_rank_interval(-x, 0.95)
    assert mirrored.low == pytest.approx(-interval.high)


def test_too_few_samples_bound_nothing():
    assert statistics.signed_rank_interval([0.1, 0.2], 0.95).half_width == math.inf
    assert statistics.signed_rank_interval([], 0.95) == (0.0, -math.inf, math.inf)
    assert statistics.signed_rank_interval([0.1], 0.95).ratios() == (math.exp(0.1), 0.0, math.inf)


# ------------------------------------------------------------------------------------------------------- search


def run_test(samples, **options):
    test = statistics.SequentialTest(**options)
    for sample in samples:
        if test.add(float(sample)):
            break
    return test


def test_it_looks_only_where_planned():
    test = statistics.SequentialTest(noise_bound=0.014)
    for i in range(11):
        assert test.add(0.5 + i * 1e-3) is None
    assert not test.faster
    assert test.add(0.5) == "faster"
    assert test.faster
    assert test.pairs == 12


def test_an_ended_test_keeps_its_answer():
    test = run_test([0.5] * 12)
    before = test.interval()
    for _ in range(100):
        assert test.add(-9.0) == "faster"
    assert test.interval() == before
    assert test.pairs == 12


@pytest.mark.parametrize(
    ("decision", "make"),
    [
        ("faster", lambda rng: rng.normal(0.2, 0.02, 96)),
        ("not_faster", lambda rng: rng.normal(-0.2, 0.02, 96)),
        ("narrow", lambda rng: np.full(96, math.log1p(0.014)) + rng.normal(0, 0.01, 96)),
        ("exhausted", lambda rng: np.full(96, math.log1p(0.014)) + rng.normal(0, 0.5, 96)),
    ],
)
def test_every_way_to_end(decision, make):
    test = run_test(make(np.random.default_rng(4)))
    assert test.decision == decision
    assert test.faster == (decision == "faster")


def test_identical_code_is_rarely_called_faster():
    """Documented: 0.3% of A/A trials; 5% is what the levels promise even for a noise bound of zero."""
    rng = np.random.default_rng(11)
    tests = [run_test(noisy_pairs(rng, 96), noise_bound=0.014) for _ in range(600)]
    assert np.mean([t.faster for t in tests]) <= 0.01
    assert np.mean([t.pairs for t in tests]) < 40
    unbounded = [run_test(noisy_pairs(rng, 96), noise_bound=0.0) for _ in range(600)]
    assert np.mean([t.faster for t in unbounded]) <= 0.05


@pytest.mark.matrix(one_in=1)  # sees a fault of benchmarks/mutants.json
def test_on_a_disturbed_machine_nothing_is_claimed_that_lies_within_the_noise():
    """Windows that scatter by a half: the level alone lets identical code through in some of a thousand."""
    rng = np.random.default_rng(3)
    samples = [noisy_pairs(rng, 96, 0.5) for _ in range(1000)]
    tests = [run_test(found, noise_bound=0.03) for found in samples]
    assert not any(test.faster for test in tests)
    assert any(
        statistics.signed_rank_interval(found[:look], 0.9875).low > math.log1p(0.03)
        for found in samples
        for look in (12, 24, 48, 96)
    )
    halved = [run_test(math.log(2.0) + found, noise_bound=0.03) for found in samples[:200]]
    assert np.mean([test.faster for test in halved]) >= 0.99


@pytest.mark.parametrize(
    ("low", "high", "faster"), [(0.05, 0.14, True), (0.05, 0.16, False), (0.02, 0.03, False), (1.1, 3.2, True)]
)
def test_a_claim_clears_the_noise_bound_and_its_own_width(low, high, faster):
    interval = statistics.LogInterval((low + high) / 2, low, high)
    assert statistics.surely_faster(interval, math.log1p(0.03)) is faster


def test_a_real_gain_is_found():
    rng = np.random.default_rng(12)
    tests = [run_test(math.log(1.15) + noisy_pairs(rng, 96, 0.04)) for _ in range(200)]
    assert np.mean([t.faster for t in tests]) >= 0.98


def test_stopping_keeps_the_coverage():
    rng = np.random.default_rng(13)
    truth = math.log(1.02)
    intervals = [run_test(truth + noisy_pairs(rng, 96)).interval() for _ in range(600)]
    assert np.mean([i.low <= truth <= i.high for i in intervals]) >= 0.95


def test_an_interval_before_the_first_look_is_honest():
    test = statistics.SequentialTest()
    assert test.interval().half_width == math.inf
    for _ in range(9):
        test.add(0.1)
    assert test.interval().estimate == pytest.approx(0.1)
    assert not test.faster


# -------------------------------------------------------------------------------------------------------- races


def missed_while_watched(interval, runs: int, first: int) -> int:
    """Runs in which an interval, read after every pair from the first one on, ever misses the true median."""
    rng = np.random.default_rng(21)
    missed = 0
    for _ in range(runs):
        samples = noisy_pairs(rng, 120)
        found = [interval(samples[:n]) for n in range(first, 121)]
        missed += any(not one.low <= 0.0 <= one.high for one in found)
    return missed


def test_a_confidence_sequence_holds_at_all_times_together():
    """Read after every pair and stopped at the worst moment, it misses the median in 5% of runs at most."""
    missed = missed_while_watched(statistics.median_sequence, runs=300, first=1)
    assert missed <= 0.05 * 300 + 3 * math.sqrt(0.05 * 0.95 * 300)
    # what it is for: a 95% interval of so many samples misses far more often when it is watched
    assert missed_while_watched(statistics.signed_rank_interval, runs=100, first=6) > 15


def test_the_rank_of_a_sequence_is_the_martingale_s():
    for n in (1, 5, 7, 20, 96):
        k = statistics.median_rank(n)
        odds = [
            2.0**n * math.exp(math.lgamma(j + 0.5) + math.lgamma(n - j + 0.5) - math.lgamma(n + 1)) / math.pi
            for j in range(n // 2 + 1)
        ]
        assert all(found >= 20.0 for found in odds[:k])
        assert k == n // 2 or odds[k] < 20.0
    assert statistics.median_sequence([]).half_width == math.inf
    assert statistics.median_sequence([0.1] * 4).low == -math.inf
    assert statistics.median_sequence([0.1] * 8) == (0.1, 0.1, 0.1)


@pytest.mark.parametrize(
    ("truth", "decision", "most"), [(0.1, "faster", 12), (-0.1, "not_faster", 12), (0.0, "not_faster", 96)]
)
def test_races_end_early_where_they_are_decided(truth, decision, most):
    rng = np.random.default_rng(5)
    for _ in range(20):
        race = statistics.Race(noise_bound=0.014)
        for value in rng.normal(truth, 0.01, 96):
            if race.add(float(value)):
                break
        assert race.decision == decision
        assert race.faster is (decision == "faster")
        assert race.pairs <= most
        assert race.add(9.0) == decision
        assert race.pairs <= most


def test_a_race_with_an_equal_is_seldom_won():
    rng = np.random.default_rng(6)
    won = 0
    for _ in range(300):
        race = statistics.Race(noise_bound=0.0)
        for value in noisy_pairs(rng, 96):
            if race.add(float(value)):
                break
        won += race.faster
    assert won <= 0.05 * 300


# ------------------------------------------------------------------------------------------------- confirmation


def test_stein_asks_for_as_many_as_the_first_stage_calls_for():
    assert statistics.stein_confirmation([0.1] * 4) == 4
    assert statistics.stein_confirmation([0.0, 1.0, -1.0, 2.0]) == 20
    assert statistics.stein_confirmation([0.0, 1.0, -1.0, 2.0], most=8) == 8
    first = [0.01, 0.03, -0.01, 0.02]  # s0 = 0.017
    assert statistics.stein_confirmation(first) == math.ceil((3.1824 * np.std(first, ddof=1) / 0.02) ** 2)
    with pytest.raises(ValueError, match="4 process pairs"):
        statistics.stein_confirmation([0.1] * 5)


def test_what_is_decided_needs_fewer_pairs():
    equal, faster, slower = ([effect + d for d in (-0.02, 0.01, 0.02, -0.01)] for effect in (0.014, 0.3, -0.9))
    assert statistics.stein_confirmation(equal) > 8
    assert statistics.stein_confirmation(faster) == statistics.stein_confirmation(slower) == 4
    assert statistics.stein_confirmation(faster, noise_bound=math.expm1(0.29)) > 8
    noisy = [0.5 + d for d in (-0.08, 0.04, 0.08, -0.04)]
    assert statistics.stein_confirmation(noisy) == 20
    assert statistics.stein_confirmation(noisy, decides=False) == 4


def test_the_interval_takes_the_first_deviation_or_that_of_all():
    values = [0.0, 0.02, -0.02, 0.01, -0.01, 5.0]
    interval = statistics.stein_interval(values)
    assert interval.estimate == pytest.approx(np.mean(values))
    whole = 1.1 * 2.5706 * np.std(values, ddof=1) / math.sqrt(6)
    assert interval.half_width == pytest.approx(whole + statistics.SHARED, rel=1e-4)
    calm = [*values[:4], 0.0025, 0.0025]
    first = 3.1824 * np.std(values[:4], ddof=1) / math.sqrt(6) + statistics.SHARED
    assert statistics.stein_interval(calm).half_width == pytest.approx(first, rel=1e-4)
    assert statistics.stein_interval(calm, most=6).half_width < 0.8 * first  # their number was not decided by luck
    with pytest.raises(ValueError, match="at least 4"):
        statistics.stein_interval(values[:3])


def test_a_difference_that_all_processes_of_a_program_share_is_covered():
    rng = np.random.default_rng(8)
    covered = 0
    for shared in 500 * (-0.002, 0.002):
        interval = statistics.stein_interval(list(rng.normal(shared, 0.003, 4)))
        covered += interval.low <= 0 <= interval.high
    assert covered >= 0.96 * 1000


@pytest.mark.parametrize("between", [0.005, 0.02, 0.05])
def test_confirmation_covers_the_truth_over_processes(between):
    """Documented: 95% to 97% for deviations between processes of 0.5% to 5%."""
    rng = np.random.default_rng(int(between * 1000))
    covered = 0
    for _ in range(1500):
        values = np.median(noisy_pairs(rng, (20, 12), 0.03) + rng.normal(0, between, (20, 1)), axis=1)
        needed = statistics.stein_confirmation(values[:4])
        interval = statistics.stein_interval(values[:needed])
        covered += interval.low <= 0 <= interval.high
    assert 0.92 <= covered / 1500 <= 0.98


def test_a_process_speaks_by_its_median():
    assert statistics.process_value([0.1, 0.2, 9.0]) == 0.2
    with pytest.raises(ValueError, match="without window pairs"):
        statistics.process_value([])


# ------------------------------------------------------------------------------------------ noise and latencies


def test_a_run_is_void_where_two_processes_of_one_code_differ_for_sure():
    assert statistics.disturbed(statistics.LogInterval(0.05, 0.03, 0.07), 0.014)
    assert statistics.disturbed(statistics.LogInterval(-0.05, -0.07, -0.03), 0.014)
    assert not statistics.disturbed(statistics.LogInterval(0.05, 0.0, 0.1), 0.014)


def test_a_denied_speedup_says_what_the_machine_did_meanwhile():
    found = Speedup(median=1.15, low=0.99, high=1.33, faster=False)
    timing = Timing(
        latency_ms=Interval(median=1.0, low=0.9, high=1.1),
        processes=20,
        pairs=20,
        threads=1,
        confirmed=True,
        noise_bound=0.014,
        speedup={"eager": found, "compile": Speedup(median=1.0, low=0.9, high=1.1, faster=False)},
        control=Interval(median=1.01, low=0.95, high=1.07),
        control_scatter=0.09,
    )
    said = "1.15x measured [0.99, 1.33]; two processes of the same code differed by 9.0% meanwhile"
    assert timing.denial("eager") == said
    assert timing.denial("compile") == ""
    claimed = timing.model_copy(update={"speedup": {"eager": found.model_copy(update={"faster": True})}})
    assert claimed.denial("eager") == ""


def test_latency_interval_by_order_statistics():
    x = list(range(1, 16))
    assert statistics.latency_interval(x) == (8.0, 4.0, 12.0)  # the sign test's interval for n = 15
    assert statistics.latency_interval([3.0]) == (3.0, 3.0, 3.0)
    assert statistics.latency_interval([3.0, 5.0, 4.0]) == (4.0, 3.0, 5.0)
    with pytest.raises(ValueError, match="no samples"):
        statistics.latency_interval([])


def test_latency_interval_covers_the_median():
    rng = np.random.default_rng(21)
    samples = rng.lognormal(0, 0.3, (800, 24))
    covered = [low <= 1.0 <= high for _, low, high in map(statistics.latency_interval, samples)]
    assert np.mean(covered) >= 0.95


# ------------------------------------------------------------------------------------------------ reads


def test_binomial_tail_is_exact():
    assert statistics.binomial_tail(0, 5, 0.3) == pytest.approx(1.0)
    assert statistics.binomial_tail(2, 3, 0.5) == pytest.approx(0.5)
    assert statistics.binomial_tail(7, 7, 0.25) == pytest.approx(0.25**7)
    assert statistics.binomial_tail(4, 3, 0.5) == 0.0


def window(read_us: float, elements: int = 1000, call_us: float = 1.0) -> Window:
    claim = OutputClaim(0, "float32", (elements,), (1,), np.zeros(4 * elements, dtype=np.uint8))
    reads_ns, nonces = np.array([read_us, read_us]) * 1000, np.zeros(100, dtype=np.uint64)
    return Window(np.full(100, call_us * 1000), {3: (claim,), 8: (claim,)}, reads_ns, nonces)


def turns_until_refused(slow, most: int = 60) -> int | None:
    """Turns until reads are too slow: 40 us where ``slow(turn)``, else 10 us, which the reference's take."""
    reads = ReadTimes()
    for turn in range(most):
        wrong = reads.wrong(window(40.0 if slow(turn) else 10.0), window(10.0))
        if wrong is not None:
            assert wrong[0] is Status.REWARD_HACK
            return turn + 1
    return None


def test_outputs_that_are_slow_to_read_are_refused_however_the_machine_is():
    assert turns_until_refused(lambda turn: True) == 7
    assert turns_until_refused(lambda turn: turn % 6 != 5) == 10
    assert turns_until_refused(lambda turn: turn % 2 == 0) == 49
    assert turns_until_refused(lambda turn: turn % 4 == 3, most=240) is None


@pytest.mark.parametrize("slow_of_ten", [0, 4, 5, 6, 10])
def test_whether_slow_reads_are_the_candidates_is_open_while_most_are(slow_of_ten):
    reads = ReadTimes()
    assert not reads.doubtful
    for turn in range(10):
        reads.wrong(window(40.0 if turn < slow_of_ten else 10.0), window(10.0))
    assert reads.doubtful is (slow_of_ten > 5)


def test_reads_of_larger_outputs_may_take_longer_in_proportion():
    reads = ReadTimes()
    assert all(reads.wrong(window(45.0, 4000), window(10.0, 1000)) is None for _ in range(60))
    assert any(reads.wrong(window(95.0, 4000), window(10.0, 1000)) is not None for _ in range(60))


@pytest.mark.parametrize(
    ("read_us", "call_us", "refused"),
    [(55.0, 1500.0, False), (60.0, 1500.0, True), (55.0, 150.0, True), (29.0, 150.0, False)],
)
def test_outputs_of_long_calls_may_have_left_the_caches(read_us, call_us, refused):
    reads = ReadTimes()
    ours, theirs = window(read_us, 32_000, call_us), window(10.0, 32_000, 100.0)
    assert any(reads.wrong(ours, theirs) is not None for _ in range(60)) is refused


@pytest.mark.parametrize("random", [False, True])
def test_signalling_nans_are_wrong_and_nothing_worse(random):
    scale = np.full(64, 1e-7)
    trial = SimpleNamespace(
        distribution="normal", reductions=(), truths=[SimpleNamespace(rule=None, scale=scale)], draws=()
    )
    spec = TensorSpec("", "float32", (64,), (1,))
    theirs = np.linspace(-1.0, 1.0, 64, dtype=np.float32)
    ours = theirs.copy()
    ours.view(np.uint32)[7] = 0x7FA00000  # casting it raises the processor's flag for invalid operations
    claims = [(OutputClaim(0, "float32", (64,), (1,), numbers.view(np.uint8)),) for numbers in (ours, theirs)]
    wrong = Comparison([spec], [trial], 1.0, redraws=Redraws() if random else None).wrong(*claims, "normal")
    assert wrong is not None
    assert wrong[0] is Status.INCORRECT_NUMERICAL


# ------------------------------------------------------------------------------------------------ random outputs


READS = 72  # of a search, two processes of which follow each other here


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def some_left_out(rng, y, axes=2):
    """y without a quarter of what its first ``axes`` dimensions hold."""
    shape = y.shape[:axes] + (1,) * (y.ndim - axes)
    return np.where(rng.random(shape) < 0.25, 0.0, y / 0.75)


BIAS = 3.0 * np.random.default_rng(1).standard_normal((32, 128))
RANDOM = {
    "elements": ((32, 128), lambda rng, x: some_left_out(rng, x)),
    "elements of a softmax": ((64, 512), lambda rng, x: some_left_out(rng, softmax(x))),
    "elements of rows with one large value": ((7, 131), lambda rng, x: some_left_out(rng, softmax(30.0 * x))),
    "channels": ((8, 16, 64), lambda rng, x: some_left_out(rng, x)),
    "whole samples": ((16, 512), lambda rng, x: some_left_out(rng, x, 1)),
    "elements beside a bias": ((32, 128), lambda rng, x: some_left_out(rng, x + BIAS)),
    "noise": ((32, 128), lambda rng, x: x + rng.standard_normal(x.shape)),
    "gains": ((32, 128), lambda rng, x: x * rng.random()),
    "nothing but rounding": ((32, 128), lambda rng, x: x * (1.0 + 1e-6 * rng.random())),
}


def reads_until_refused(shape, ours, theirs, label, reads=READS):
    """Reads of random outputs until one is refused; ``ours`` and ``theirs`` make one from a generator and an input."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal(shape)
    draws = tuple((theirs(rng, x).astype(np.float32),) for _ in range(48))
    trial = SimpleNamespace(distribution="normal", truths=[SimpleNamespace(rule=None)], draws=draws)
    stride = tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
    redraws = Redraws()
    for read in range(reads):
        if read % (READS // 2) == 0:
            redraws.fresh_process()
            comparison = Comparison([TensorSpec("", "float32", shape, stride)], [trial], 1.0, redraws=redraws)
        x = rng.standard_normal(shape)
        claims = [
            (OutputClaim(0, "float32", shape, stride, y.astype(np.float32).reshape(-1).view(np.uint8)),)
            for y in (ours(rng, x), theirs(rng, x))
        ]
        if (found := comparison.wrong(*claims, label)) is not None:
            assert found[0] is Status.INCORRECT_NUMERICAL
            return read + 1
    return None


@pytest.mark.parametrize("kind", RANDOM)
def test_honest_draws_are_not_refused_however_elements_hang_together(kind):
    shape, draw = RANDOM[kind]
    for factor in (1.0, 1.0 + 1e-7):  # rounding to one side
        ours = lambda rng, x, factor=factor: factor * draw(rng, x)  # noqa: E731
        assert reads_until_refused(shape, ours, draw, "normal") is None


@pytest.mark.parametrize("label", ["normal", "uniform"])
@pytest.mark.parametrize("kind", ["elements", "elements of a softmax", "channels", "noise"])
@pytest.mark.parametrize("kept", ["as it was", "turned", "one of sixteen", "every other"])
def test_random_outputs_are_drawn_anew_for_every_call(kind, kept, label):
    shape, draw = RANDOM[kind]
    calls = iter(range(READS))

    def cheat(rng, x):
        call = next(calls)
        if kept == "every other" and call % 2:
            return draw(rng, x)
        generator = np.random.default_rng(int(rng.integers(16)) if kept == "one of sixteen" else 1)
        return turned(draw, shape, x, int(rng.integers(x.size))) if kept == "turned" else draw(generator, x)

    assert reads_until_refused(shape, cheat, draw, label) is not None


def turned(draw, shape, x, places):
    """A draw on x by the one mask, or noise, turned by some places."""
    back = np.roll(x.ravel(), -places).reshape(shape)
    return np.roll(draw(np.random.default_rng(1), back).ravel(), places).reshape(shape)


@pytest.mark.parametrize("wrong", [lambda y: 0.0 * y, lambda y: 1.5 * y], ids=["zero", "x1.5"])
@pytest.mark.parametrize("kind", RANDOM)
def test_random_outputs_of_another_size_are_refused(kind, wrong):
    shape, draw = RANDOM[kind]
    wrong = (lambda y: 4.0 * y) if kind == "gains" and wrong(1.0) else wrong  # its sizes are random themselves
    refused = reads_until_refused(shape, lambda rng, x: wrong(draw(rng, x)), draw, "normal")
    assert refused is not None
    assert refused == 1 or kind not in ("elements", "noise")


# ------------------------------------------------------------------------------------------------ where outputs lie


@pytest.mark.parametrize(
    ("shape", "stride", "wanted", "status"),
    [
        ((4, 8), (8, 1), (8, 1), None),
        ((4, 8), (1, 4), (8, 1), None),
        ((4, 8), (16, 2), (8, 1), None),
        ((4, 8), (0, 1), (8, 1), Status.INCORRECT_SHAPE),
        ((4, 8), (1, 1), (8, 1), Status.INCORRECT_SHAPE),
        ((4, 8), (0, 1), (0, 1), None),
        ((1, 8), (0, 1), (8, 1), None),
        ((0, 8), (0, 1), (8, 1), None),
    ],
)
def test_elements_of_an_output_share_memory_only_as_the_references_do(shape, stride, wanted, status):
    claim = OutputClaim(0, "float32", shape, stride, np.zeros(0, dtype=np.uint8))
    found = compare_layout(claim, TensorSpec("", "float32", shape, wanted), 0, 1)
    assert (None if found is None else found[0]) is status


# ------------------------------------------------------------------------------------------------ indices


def outputs_until_refused(
    different: int, of: int = 256, *, rule: str | None = "argmax", label: str = "normal", rounded: float = 0.0
):
    """Outputs, of which each has so many numbers that are not the reference's, until one is refused.

    ``rounded``: share of the numbers that rounding could flip in the check.
    """
    scale = np.arange(of) < rounded * of
    trial = SimpleNamespace(distribution="normal", truths=[SimpleNamespace(rule=rule, scale=scale)])
    spec = TensorSpec("", "int64", (of,), (1,))
    comparison = Comparison([spec], [trial], 1.0)
    theirs = np.arange(of)
    ours = np.where(np.arange(of) < different, theirs + 1, theirs)
    claims = [(OutputClaim(0, "int64", (of,), (1,), numbers.view(np.uint8)),) for numbers in (ours, theirs)]
    return next((n for n in range(1, 60) if comparison.wrong(*claims, label) is not None), None)


@pytest.mark.parametrize(
    ("case", "refused_at"),
    [
        ({"different": 1}, None),  # 0.4%
        ({"different": 2}, 3),  # a tie, twice
        ({"different": 14}, 1),
        ({"different": 1, "of": 1}, 3),
        ({"different": 3, "of": 40}, 1),
        ({"different": 200, "label": "constant_rows"}, None),
        ({"different": 2, "label": "uniform"}, 3),
        ({"different": 14, "label": "uniform"}, 1),
        ({"different": 1, "rule": None}, 3),  # a comparison at a tie, twice
        ({"different": 3, "of": 1000, "rule": None}, 1),
        ({"different": 4, "of": 1000, "rule": None, "rounded": 0.001}, None),
        ({"different": 5, "of": 1000, "rule": None, "rounded": 0.001}, 1),
        ({"different": 5, "of": 1000, "rule": None, "rounded": 0.5}, None),
        ({"different": 6, "of": 1000, "rule": None, "rounded": 0.5}, 1),
    ],
    ids=str,
)
def test_few_integers_may_differ_and_no_more_than_rounding_and_ties_explain(case, refused_at):
    assert outputs_until_refused(**case) == refused_at
