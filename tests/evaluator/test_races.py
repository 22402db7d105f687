"""Data races of C++ kernels with OpenMP: what is found, what is right, and what is not looked at."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from race_kernels import RACY, RIGHT, Kernel
from referee_candidates import candidate
from referee_small_problems import SOFTMAX_PROBLEM, make_problem

from kernelwright.evaluator import Check, Confirm, Referee
from kernelwright.evaluator.cpu import races
from kernelwright.evaluator.cpu.races import FOUND, UNKNOWN, Race
from kernelwright.evaluator.worker.races import Product, Quiet, RaceWatch
from kernelwright.inline import BuildRequest, Library, parse_signatures
from kernelwright.records import Candidate, Status

pytestmark = pytest.mark.untimed

SOFTMAX = r"""
#include <cmath>
#include <cstdint>
extern "C" void softmax(const float* x, float* y, int64_t rows, int64_t cols) {
  #pragma omp parallel for
  for (int64_t i = 0; i < rows; i++) {
    const float* a = x + i * cols;
    float* b = y + i * cols;
    float largest = -INFINITY;
    for (int64_t j = 0; j < cols; j++) largest = std::fmax(largest, a[j]);
    double sum = 0;
    for (int64_t j = 0; j < cols; j++) { b[j] = std::exp(a[j] - largest); sum += b[j]; }
    for (int64_t j = 0; j < cols; j++) b[j] /= sum;
  }
}
"""
RACY_SOFTMAX = SOFTMAX.replace("  #pragma", "  double sum;\n  #pragma").replace("double sum = 0;", "sum = 0;")


class Looked:
    """One kernel called with watched products, by teams as the referee has them."""

    def __init__(self, referee: Referee, kernel: Kernel, folder) -> None:
        made = referee.host.builds.build_watched(BuildRequest("cpp", kernel.source))
        assert made.product is not None, made.log
        path = folder / "kernel.so"
        path.write_bytes(made.product)
        library = Library(str(path), parse_signatures(kernel.source))
        self.x = torch.rand(2 * kernel.n)
        self.races: list[Race] = []
        self.notes = 0
        watch = RaceWatch([Product(str(path), False)], [], Quiet(0, 0))
        for threads, last_first in races._TEAMS:
            self.y = torch.zeros(2 * kernel.n)
            reply = watch.look(lambda: [library.f(self.x, self.y, kernel.n)][:0], threads, last_first, 1 << 28, 5.0)
            assert reply["regions"] > 0
            self.notes |= reply["notes"]
            self.races += [race for claim in reply["races"] if (race := Race.of_claim(claim)) is not None]

    @property
    def text(self) -> str:
        return "; ".join(race.text((0, 0)) for race in self.races if not race.perhaps)


@pytest.fixture
def look(referee, tmp_path):
    return lambda kernel: Looked(referee, kernel, tmp_path)


@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_have_no_races_and_compute_what_they_should(look, name):
    kernel = RIGHT[name]
    found = look(kernel)
    assert (found.races, found.notes) == ([], 0)
    expected = np.asarray(kernel.expected(found.x[: kernel.n].numpy()))
    np.testing.assert_allclose(found.y[: len(expected)].numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("name", RACY)
def test_races_are_found_whatever_the_values(look, name):
    assert RACY[name].racy in look(RACY[name]).text


def test_a_race_is_named_by_argument_element_and_lines(look):
    found = look(Kernel("#pragma omp parallel for schedule(static, 1)\nfor (int64_t i = 0; i < 4; i++) y[7] = i;"))
    assert {race.what for race in found.races} == {"element 7 of 'y' (float32)"}
    assert all(race.threads[0] != race.threads[1] for race in found.races)


def test_accesses_that_only_a_flag_orders_are_no_race_and_not_called_right(look):
    kernel = """
std::atomic<int> flag{0}; float value = 0;
#pragma omp parallel num_threads(2)
{
  if (omp_get_thread_num() == 1) { value = x[0]; flag.store(1, std::memory_order_release); }
  else { while (!flag.load(std::memory_order_acquire)) {} y[0] = value; }
}
"""
    found = look(Kernel(kernel))
    assert found.text == ""
    assert any(race.perhaps for race in found.races)
    assert float(found.y[0]) == float(found.x[0])


def test_memory_and_time_are_bounded(referee, tmp_path):
    kernel = Kernel("#pragma omp parallel for\nfor (int64_t i = 0; i < n; i++) y[i] += x[i];", n=1 << 20)
    path = tmp_path / "kernel.so"
    path.write_bytes(referee.host.builds.build_watched(BuildRequest("cpp", kernel.source)).product)
    library = Library(str(path), parse_signatures(kernel.source))
    x, y = torch.ones(kernel.n), torch.zeros(kernel.n)
    watch = RaceWatch([Product(str(path), False)], [], Quiet(0, 0))
    for shadow_bytes, seconds, note in ((1 << 20, 5.0, 2), (1 << 28, 0.0, 1)):
        reply = watch.look(lambda: [library.f(x, y, kernel.n)][:0], 4, False, shadow_bytes, seconds)
        assert reply["notes"] == note
        assert races._NOTES[note]
    assert float(y[-1]) == 2.0


@pytest.mark.parametrize(
    "claim",
    [
        None,
        [],
        {},
        {"product": "0"},
        {"product": 0, "element": 0, "places": [1], "threads": [0, 1], "writes": [1, 1]},
        {"product": 0, "element": -1, "places": [1, 2], "threads": [0, 1], "writes": [1, 1]},
        {"product": 0, "element": 1 << 90, "places": [1, 2], "threads": [0, 1], "writes": [1, 1]},
        {"product": 0, "element": 0, "places": [1, 2], "threads": [0, True], "writes": [1, 1]},
        {"product": 0, "element": 0, "places": [1, 2], "threads": [0, 1], "writes": 1},
    ],
)
def test_nonsense_of_a_worker_is_no_race(claim):
    assert Race.of_claim(claim) is None


def test_hostile_text_of_a_worker_is_cut_to_plain_characters():
    claim = {"product": 0, "element": 3, "places": [1, 2], "threads": [0, 1], "writes": [1, 0]}
    race = Race.of_claim(claim | {"argument": "y\x1b[31m\n" + "a" * 500, "dtype": "float32"})
    assert "\x1b" not in race.what
    assert "\n" not in race.what
    assert len(race.what) < 100


# ------------------------------------------------------------------------------------------------ in an evaluation


def notes(evaluation) -> dict[str, str]:
    return {f.rule: f.evidence for f in evaluation.verdict.findings if f.rule in (FOUND, UNKNOWN)}


def test_a_right_kernel_passes_and_its_verdict_says_what_was_looked_at(judge_softmax):
    evaluation = judge_softmax(candidate(kernel=SOFTMAX), depth=Check())
    assert evaluation.verdict.status is Status.PASSED, evaluation.verdict.reason
    assert notes(evaluation) == {FOUND: "none found on 2 of 2 shapes, with teams of 7 and 4 threads"}


def test_a_race_refuses_a_kernel_whose_answers_are_right(judge_softmax):
    verdict = judge_softmax(candidate(kernel=RACY_SOFTMAX)).verdict
    assert (verdict.status, verdict.failed_stage) == (Status.RUNTIME_ERROR, "check")
    assert verdict.reason.startswith("data race: ")
    assert "memory of its own at line" in verdict.reason
    assert verdict.correctness.kernelbench_allclose
    assert verdict.timing is None


def test_a_race_of_odd_sizes_alone_is_found(judge_softmax):
    kernel = SOFTMAX.replace(
        "float largest = -INFINITY;", "if (cols % 2 && i + 1 < rows) b[cols] = 0;\n    float largest = -INFINITY;"
    )
    verdict = judge_softmax(candidate(kernel=kernel)).verdict
    assert verdict.status is Status.RUNTIME_ERROR
    assert verdict.reason.startswith("data race: ")
    assert "of 'y' (float32) at line" in verdict.reason


def test_kernels_without_threads_are_left_alone(judge_softmax):
    evaluation = judge_softmax(candidate(), depth=Check())
    assert evaluation.verdict.status is Status.PASSED
    assert notes(evaluation) == {}


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (SOFTMAX.replace("#pragma omp parallel for", "#pragma omp teams distribute parallel for"), "GOMP_teams"),
        (
            SOFTMAX.replace("#include <cmath>", "#include <cmath>\n#include <thread>").replace(
                "  #pragma omp parallel for", "  int64_t seen = 0;\n  std::thread([&] { seen = rows; }).join();"
            ),
            "starts threads by itself",
        ),
    ],
    ids=["an entry that the runtime lacks", "std::thread"],
)
def test_what_cannot_be_looked_at_is_said_and_not_refused(judge_softmax, kernel, why):
    evaluation = judge_softmax(candidate(kernel=kernel), depth=Check())
    assert evaluation.verdict.status is Status.PASSED, evaluation.verdict.reason
    assert why in notes(evaluation)[UNKNOWN]
    assert FOUND not in notes(evaluation)


@pytest.fixture
def judge_with(referee):
    def judge(source: str, depth: Check | None = None, **settings):
        method = referee.settings.measurement.with_values(check_trials=2)
        changed = referee.settings.with_values(measurement=method, **settings)
        with Referee(changed, referee.host.sandbox) as made:
            with made.open(make_problem(SOFTMAX_PROBLEM, "softmax"), baselines=("eager",)) as session:
                candidate = Candidate(problem_id=session.problem.id, source=source, backend="cpp")
                return [session.judge(candidate, depth or Check()) for _ in range(2)]

    return judge


def test_nothing_is_looked_for_where_the_setting_says_never(judge_with):
    first, _ = judge_with(candidate(kernel=RACY_SOFTMAX), race_check="never")
    assert first.verdict.status is Status.PASSED
    assert "race_check" in notes(first)[UNKNOWN]


def test_what_is_known_of_a_candidate_is_kept_unless_always_is_asked_for(judge_with, monkeypatch):
    searched = []
    search = races.RaceStage._search
    monkeypatch.setattr(races.RaceStage, "_search", lambda *given: searched.append(1) or search(*given))
    counts = []
    for wanted in ("auto", "always"):
        evaluations = judge_with(candidate(kernel=SOFTMAX), race_check=wanted)
        assert all(FOUND in notes(evaluation) for evaluation in evaluations)
        counts.append(len(searched))
    assert counts == [1, 3]


def test_a_search_that_takes_too_long_informs(judge_with, monkeypatch):
    monkeypatch.setattr(races, "_BUDGET_S", 0.0)
    first, _ = judge_with(candidate(kernel=RACY_SOFTMAX), race_check="always")
    assert first.verdict.status is Status.PASSED
    assert "did not end within" in notes(first)[UNKNOWN]
    assert FOUND not in notes(first)


def test_a_kernel_that_fails_only_while_it_is_watched_is_not_refused(judge_softmax):
    kernel = SOFTMAX.replace("#include <cmath>", "#include <cmath>\n#include <cstdlib>\n#include <omp.h>").replace(
        "  #pragma", "  if (omp_get_max_threads() > 1) std::abort();\n  #pragma"
    )
    evaluation = judge_softmax(candidate(kernel=kernel), depth=Check())
    assert evaluation.verdict.status is Status.PASSED, evaluation.verdict.reason
    assert "its watched copy failed" in notes(evaluation)[UNKNOWN]


# Of torch's headers this needs none, which would take longer to read than all else here takes.
EXTENSION = """
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r'''
#include <pybind11/pybind11.h>
KERNEL
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("softmax", [](int64_t x, int64_t y, int64_t rows, int64_t cols) {
    softmax(reinterpret_cast<const float*>(x), reinterpret_cast<float*>(y), rows, cols);
  });
}
'''
lib = load_inline("watched", SOURCE, no_implicit_headers=True)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.softmax(x.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1])
        return y
"""


def test_extensions_are_searched_when_they_are_confirmed(judge_with):
    racy, _ = judge_with(EXTENSION.replace("KERNEL", RACY_SOFTMAX))
    assert racy.verdict.status is Status.PASSED, racy.verdict.reason
    assert "confirmed" in notes(racy)[UNKNOWN]
    confirmed, _ = judge_with(EXTENSION.replace("KERNEL", RACY_SOFTMAX), depth=Confirm())
    assert confirmed.verdict.reason.startswith("data race: ")
    assert "memory of its own at line" in confirmed.verdict.reason
