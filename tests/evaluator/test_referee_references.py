"""References that cannot be used end as INVALID_REFERENCE with the line at fault, and nothing else suffers."""

from __future__ import annotations

import os

import pytest
from referee_candidates import RIGHT, elementwise
from referee_problem_text import HEAD, TAIL

from kernelwright.config import Settings
from kernelwright.datasets import LintFinding, lint, parse_problem
from kernelwright.errors import InvalidReferenceError, UsageError
from kernelwright.evaluator import Check, Confirm, Referee
from kernelwright.evaluator.truth.oracle_client import Asker
from kernelwright.evaluator.verdict.search_and_confirm import Timekeeper
from kernelwright.records import Candidate, ProblemMeta, Status, TimingSample
from kernelwright.sandbox import Limits, WorkerFailed, open_sandbox

RANDOM = ProblemMeta(randomness="seeded")


def problem(forward: str, head: str = HEAD, tail: str = TAIL):
    source = head + f"        {forward}\n" + tail
    return parse_problem(source, id="test/level1/broken", suite="test", level=1, name="broken")


@pytest.mark.untimed
@pytest.mark.parametrize(
    ("made", "says", "line"),
    [
        (problem("return torch.rand_like(x)"), "random", None),
        (problem("y = None\n        return y"), "nothing", None),
        (problem("return x @ x @ x.nonsense"), "nonsense", 8),
        (problem("return x[x[:, 0] > 0] * 2"), "depends on the values of the inputs", None),
        (problem("return torch.relu(x)").model_copy(update={"meta": RANDOM}), "does not depend on the generator", None),
        (problem("return x", head="import not_a_package\n" + HEAD), "not_a_package", 1),
        (problem("return x", tail=TAIL.replace("torch.randn(8, 8)", "1 / 0")), "ZeroDivisionError", 12),
    ],
    ids=["random", "nothing", "raises", "shape of data", "not random", "missing package", "inputs"],
)
def test_unusable_references(referee, made, says, line):
    with pytest.raises(InvalidReferenceError) as caught:
        referee.open(made)
    assert says in str(caught.value)
    if line is not None:
        assert caught.value.data["line"] == line
    evaluation = referee.evaluate(Candidate(problem_id=made.id, source=RIGHT, backend="cpp"), made)
    assert evaluation.verdict.status is Status.INVALID_REFERENCE
    assert says in evaluation.verdict.reason


@pytest.mark.untimed
@pytest.mark.parametrize(("warns", "accepted"), [(True, True), (False, False)])
def test_sums_in_any_order_are_no_fault_where_torch_says_that_it_has_no_other(referee, warns, accepted):
    """So it is on a GPU: some operators add by atomics."""
    head = HEAD.replace("import torch\n", "import torch\nimport itertools, warnings\nCALLS = itertools.count()\n", 1)
    said = "warnings.warn('this does not have a deterministic implementation')" if warns else "pass"
    made = problem(f"{said}\n        return torch.relu(x) * (1.0 + 1e-6 * (next(CALLS) % 2))", head)
    if accepted:
        referee.open(made).close()
        return
    with pytest.raises(InvalidReferenceError, match="not reproducible"):
        referee.open(made)


@pytest.mark.untimed
def test_none_among_outputs_is_part_of_their_structure(referee):
    made = problem("return torch.relu(x) * 2, None")
    with referee.open(made) as session:

        def judge(returned: str):
            source = elementwise("x[i] > 0 ? 2 * x[i] : 0", returned)
            return session.judge(Candidate(problem_id=made.id, source=source, backend="cpp"), depth=Check()).verdict

        right = judge("y, None")
        assert right.passed, right.reason
        wrong = [judge(returned) for returned in ("y, x", "y", "(y,)")]
        assert [verdict.status for verdict in wrong] == [Status.INCORRECT_SHAPE] * 3
        assert "forward returns [tensor], [tensor, None] expected" in wrong[2].reason


def test_a_scalar_output_can_be_timed(referee):
    made = problem("return (x * x).mean()")
    control = made.source.replace("class Model(", "class ModelNew(")
    with referee.open(made, baselines=("eager",)) as session:
        candidate = Candidate(problem_id=made.id, source=control, backend="cpp")
        verdict = session.judge(candidate, control=True).verdict
    assert verdict.passed, verdict.reason
    assert 0.1 < verdict.speedup("eager").median < 10


@pytest.mark.parametrize(("result", "little"), [("x.sum(-1)", True), ("(x @ x.T).repeat(16, 16) * 2", False)])
def test_nothing_is_called_faster_where_there_is_hardly_anything_to_do(referee, monkeypatch, result, little):
    monkeypatch.setattr("kernelwright.evaluator.verdict.search_and_confirm._TIMEABLE_MS", 0.0)
    made = problem(f"return {result}")
    source = made.source.replace("class Model(", "class ModelNew(")
    with referee.open(made, baselines=("eager",)) as session:
        verdict = session.judge(Candidate(problem_id=made.id, source=source, backend="cpp"), control=True).verdict
    assert verdict.passed, verdict.reason
    assert ("too-small-to-time" in {finding.rule for finding in verdict.findings}) is little
    assert not (little and verdict.speedup("eager").faster)


@pytest.mark.untimed
def test_an_unknown_compile_mode_is_named_before_anything_runs(referee):
    with pytest.raises(UsageError, match="fastest") as caught:
        referee.open(problem("return x + 1"), baselines=("eager", "fastest"))
    assert "compile-max-autotune" in caught.value.hint


def test_threads_on_all_cores_are_refused_because_the_clock_needs_one(tmp_path):
    cores = len(os.sched_getaffinity(0))
    settings = Settings(threads=max(cores, 2), cache_dir=str(tmp_path))
    with pytest.raises(UsageError, match=rf"{cores} cores? can be used here, and the referee's clock needs one"):
        Referee(settings)


@pytest.mark.untimed
def test_a_baseline_that_fails_in_the_middle_of_a_confirmation_is_left_out(softmax, monkeypatch):
    def pair(timekeeper, candidate, check_set, process, progress, rivals):
        for role in ("candidate", "eager"):
            progress.samples.append(
                TimingSample(role=role, process=process, pair=0, order=0, calls=4, latency_ms=1.0, phase="confirm")
            )
        control = {"control": process / 1000 - 0.002}
        return control | {"eager": 0.1 + process / 1000, **({"compile": 0.2} if process < 2 else {})}

    monkeypatch.setattr(Timekeeper, "_process_pair", pair)
    verdict = softmax.judge(
        Candidate(problem_id=softmax.problem.id, source=RIGHT, backend="cpp"), depth=Confirm()
    ).verdict
    assert verdict.passed, verdict.reason
    assert set(verdict.timing.speedup) == {"eager"}
    assert verdict.timing.processes == 5


@pytest.fixture
def claimed(softmax, monkeypatch):
    """The speedup of a kernel whose windows say 1.5x, scattered as asked for, with its verdict."""

    def judge(scatter: float):
        turn = Timekeeper._turn

        def scattered(timekeeper, turns, pair, process, phase, progress):
            taken = turn(timekeeper, turns, pair, process, phase, progress)
            log_ratio = 0.4 + scatter * (2 * (5 * pair % 12) / 11 - 1)
            return taken._replace(claims={**taken.claims, "eager": log_ratio})

        monkeypatch.setattr(Timekeeper, "_turn", scattered)
        verdict = softmax.judge(Candidate(problem_id=softmax.problem.id, source=RIGHT, backend="cpp")).verdict
        speedup = verdict.speedup("eager")
        assert speedup.low > 1 + verdict.timing.noise_bound
        return speedup, verdict

    return judge


@pytest.mark.parametrize(("scatter", "faster"), [(0.05, True), (0.5, False)])
def test_a_search_claims_nothing_that_lies_within_the_scatter_of_its_windows(claimed, scatter, faster):
    assert claimed(scatter)[0].faster is faster


@pytest.mark.matrix(one_in=1)  # sees a fault of benchmarks/mutants.json
def test_no_speedup_counts_where_the_reference_takes_too_little_time(claimed, monkeypatch):
    monkeypatch.setattr("kernelwright.evaluator.verdict.search_and_confirm._TIMEABLE_MS", 1e6)
    speedup, verdict = claimed(0.05)
    assert not speedup.faster
    assert "too-small-to-time" in {finding.rule for finding in verdict.findings}


@pytest.mark.untimed
@pytest.mark.parametrize(
    ("result", "most"),
    [("x * x", 8), ("x.sum()", 32), ("x.argmax()", 8)],
    ids=["many numbers", "one number", "an index"],
)
def test_few_numbers_get_more_monte_carlo_runs(referee, monkeypatch, result, most):
    asked, ask = [], Asker.ask

    def counting(self, op, variant, data, **fields):
        asked.extend([fields["runs"]] if op == "truth" else [])
        return ask(self, op, variant, data, **fields)

    monkeypatch.setattr(Asker, "ask", counting)
    with referee.open(problem(f"return {result}"), baselines=("eager",)) as session:
        session.prepare_for("cpp")
    assert max(asked) == most


@pytest.mark.untimed
def test_too_much_memory_is_told_with_whose_how_much_and_what_to_set(referee):
    """Its worker's limit; the file itself may well be right."""
    made = problem("return (x * torch.ones(3 * 2**28)[:8]).sum()", head=f"batch_size = 8\n{HEAD}")
    with pytest.raises(InvalidReferenceError) as caught:
        referee.open(made)
    assert caught.value.message == (
        "test/level1/broken: the reference needs more than memory_bytes (1 GiB): raise it with --set "
        "memory_bytes=4GiB, or choose smaller sizes with test/level1/broken@batch_size=... "
        "('kernelwright problems lint --fit test/level1/broken' finds some)"
    )
    with open_sandbox("process") as sandbox:
        limits = Limits(memory_bytes=1 << 30)
        with pytest.raises(WorkerFailed, match=r"^needs more than memory_bytes \(1 GiB\)") as failed:
            lint(made, lambda entry, payload: sandbox.call(entry, payload, limits=limits))
    finding = LintFinding.of_error(failed.value, made)
    assert finding.message == caught.value.message.partition("the reference ")[2]
