"""Real parts throughout: one referee with its sandbox for the whole folder, small problems of its own."""

from __future__ import annotations

import pytest
from evaluator_gpu_kernels import ARCHITECTURE, KernelJudge, Verdicts
from referee_small_problems import LINEAR_PROBLEM, SOFTMAX_PROBLEM, make_problem
from stand_in import Builds, stand_in

from kernelwright.config import Settings
from kernelwright.evaluator import Referee
from kernelwright.evaluator.host.device import rehearsal
from kernelwright.evaluator.profile import static
from kernelwright.records import Candidate


@pytest.fixture(scope="session")
def referee(make_cache):
    settings = Settings.load(
        flags={
            "cache_dir": str(make_cache()),
            "device": "none",
            "measurement": {
                "looks": (8, 12),
                "window_ms": 0.5,
                "confirm_pairs": 5,
                "confirm_max_pairs": 5,
                "noise_bound": 0.3,  # tests run on busy machines, where a control strays far
            },
            "call_timeout_s": 8.0,
            "memory_bytes": 1 << 30,
        },
        env={},
    )
    with Referee(settings) as made:
        yield made


@pytest.fixture(scope="session")
def softmax(referee):
    with referee.open(make_problem(SOFTMAX_PROBLEM, "softmax"), baselines=("eager",)) as session:
        yield session


@pytest.fixture(scope="session")
def linear(referee):
    with referee.open(make_problem(LINEAR_PROBLEM, "linear"), baselines=("eager",)) as session:
        yield session


@pytest.fixture
def judge_softmax(softmax):
    def judge(source: str, **options):
        return softmax.judge(Candidate(problem_id=softmax.problem.id, source=source, backend="cpp"), **options)

    return judge


@pytest.fixture
def judge_linear(linear):
    def judge(source: str, **options):
        return linear.judge(Candidate(problem_id=linear.problem.id, source=source, backend="cpp"), **options)

    return judge


@pytest.fixture(scope="session")
def rehearsed(tmp_path_factory):
    """The stand-in for CUDA's driver; processes that run the tests side by side build it once."""
    return stand_in(tmp_path_factory.getbasetemp().parent / "stand-in")


@pytest.fixture(scope="session")
def stand_in_device(rehearsed):
    """This CPU as a device, through the stand-in."""
    return rehearsal(rehearsed.library, rehearsed.images)


@pytest.fixture(scope="session")
def stand_in_builds(tmp_path_factory):
    """Makes a build service build CUDA for the stand-in."""
    return lambda builds: Builds(builds, tmp_path_factory.mktemp("modules"))


@pytest.fixture(scope="module")
def one_architecture():
    """Of three: what differs between them is tested for single kernels elsewhere."""
    one = {ARCHITECTURE: static.ARCHITECTURES[ARCHITECTURE]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(static, "ARCHITECTURES", one)
        yield


@pytest.fixture(scope="module")
def judge_kernel(referee, one_architecture):
    """Judges what lies in ``gpu_candidates``."""
    with KernelJudge(referee) as judge:
        yield judge


@pytest.fixture(scope="module")
def verdicts(referee, one_architecture):
    """Of the kernels in ``gpu_candidates``, by a referee that checks little: whether a kernel can be checked at all
    shows in its first trials."""
    few_trials = referee.settings.with_values(measurement=referee.settings.measurement.with_values(check_trials=2))
    with Referee(few_trials, referee.host.sandbox) as made, KernelJudge(made) as judge:
        yield Verdicts(judge)
