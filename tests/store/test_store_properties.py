"""Records keep their rules, and whatever obeys them comes back from the store exactly as it went in."""

from __future__ import annotations

import itertools
import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from kernelwright.records import (
    Candidate,
    Correctness,
    Environment,
    Evaluation,
    Finding,
    Interval,
    Problem,
    Profile,
    Speedup,
    Stage,
    Status,
    Timing,
    TimingSample,
    Verdict,
)

bounded = settings(
    max_examples=30,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
numbers = itertools.count()
PROBLEM = Problem(id="suite/level1/softmax", suite="suite", level=1, name="softmax", source="class Model: ...\n")
text = st.text(max_size=12)
short = st.text(min_size=1, max_size=6)
count = st.integers(0, 2**31)
finite = st.floats(allow_nan=False, allow_infinity=False)
number = finite | st.just(math.inf)  # an error may be infinite; nan equals nothing, not even itself
knob = st.booleans() | st.integers(-(2**53), 2**53) | finite | text

intervals = st.builds(Interval, median=finite, low=finite, high=finite)
speedups = st.builds(Speedup, median=finite, low=finite, high=finite, faster=st.booleans())
timings = st.builds(
    Timing,
    latency_ms=intervals,
    processes=count,
    pairs=count,
    threads=count,
    confirmed=st.booleans(),
    noise_bound=finite,
    speedup=st.dictionaries(short, speedups, max_size=3),
)
findings = st.builds(Finding, rule=text, effect=st.sampled_from(["refuses", "informs"]), where=text, evidence=text)
correctness = st.builds(
    Correctness,
    trials=count,
    variants=count,
    check_set=text,
    max_error=number,
    error_budget=number,
    kernelbench_allclose=st.booleans(),
)
profiles = st.builds(
    Profile,
    rung=short,
    bound=st.sampled_from(["memory", "compute", "latency", "unknown"]),
    metrics=st.dictionaries(text, number, max_size=3),
    notes=st.lists(text, max_size=2).map(tuple),
)
samples = st.builds(
    TimingSample,
    role=short,
    process=count,
    pair=count,
    order=count,
    calls=count,
    latency_ms=finite,
    phase=st.sampled_from(["search", "confirm", "control"]),
)
candidates = st.builds(
    Candidate,
    problem_id=st.just(PROBLEM.id),
    source=text,
    backend=st.sampled_from(["cpp", "triton", "cuda"]),
    knobs=st.dictionaries(short, knob, max_size=3),
    parents=st.lists(st.sampled_from(["a" * 64, "b" * 64]), max_size=2, unique=True).map(tuple),
    operator=short,
    author=short,
    prompt_sha256=st.none() | st.just("c" * 64),
    note=text,
)
environments = st.builds(
    Environment,
    device=short,
    device_class=st.sampled_from(["cpu", "gpu", "interpreter"]),
    cpu=text,
    cores=count,
    os=text,
    python=text,
    torch=text,
    compiler=text,
    threads=count,
    extra=st.dictionaries(short, text, max_size=2),
)
failed_stages = st.sampled_from(["screen", "build", "check", "ghost", "time", "confirm", "floor"])
ORDER = [None, *Stage]

# All fields of a verdict that its rules tie together, in any combination.
claims = st.fixed_dictionaries(
    {
        "stage": st.sampled_from(ORDER),
        "status": st.sampled_from(Status),
        "failed_stage": st.none() | failed_stages,
        "reason": text,
        "timing": st.none() | timings,
        "eligible": st.booleans(),
    }
)


def allowed(claim) -> bool:
    """The rules of a verdict, said once more in other words."""
    passed, reached = claim["status"] is Status.PASSED, ORDER.index(claim["stage"])
    if claim["timing"] is not None and reached < ORDER.index(Stage.TIMED):
        return False
    if passed:
        return reached >= ORDER.index(Stage.CHECKED) and claim["failed_stage"] is None
    return claim["reason"] != ""


@st.composite
def evaluations(draw):
    candidate, environment = draw(candidates), draw(environments)
    verdict = Verdict(
        candidate=candidate.sha256,
        problem=candidate.problem_id,
        backend=candidate.backend,
        control=draw(st.booleans()),
        findings=tuple(draw(st.lists(findings, max_size=3))),
        correctness=draw(st.none() | correctness),
        own_kernel_share=draw(st.none() | st.floats(0, 1)),
        profile=draw(st.none() | profiles),
        environment=environment.id,
        sandbox=tuple(draw(st.lists(text, max_size=3))),
        seconds=draw(st.dictionaries(short, finite, max_size=3)),
        **draw(claims.filter(allowed)),
    )
    return Evaluation(
        candidate=candidate,
        verdict=verdict,
        samples=tuple(draw(st.lists(samples, max_size=4))),
        environment=environment,
        artifacts=draw(st.dictionaries(short, text, max_size=3)),
    )


@settings(bounded, max_examples=200)
@given(claims)
def test_a_verdict_exists_exactly_where_its_rules_allow_it(claim):
    fields = {"candidate": "c", "problem": "p", "backend": "cpp", "environment": "e", **claim}
    try:
        verdict = Verdict(**fields)
    except ValidationError:
        assert not allowed(claim)
        return
    assert allowed(claim)
    assert verdict.passed == (claim["status"] is Status.PASSED)
    assert verdict.speedup("nothing of that name") is None


@bounded
@given(evaluations())
def test_an_evaluation_is_the_same_after_json(evaluation):
    finite_only = evaluation.model_copy(
        update={"verdict": evaluation.verdict.model_copy(update={"correctness": None, "profile": None})}
    )
    back = Evaluation.model_validate_json(finite_only.model_dump_json())
    assert back == finite_only
    assert back.candidate.sha256 == evaluation.candidate.sha256
    assert [type(value) for value in back.candidate.knobs.values()] == [
        type(value) for value in evaluation.candidate.knobs.values()
    ]
    assert back.environment.id == evaluation.environment.id
    assert Evaluation.model_validate(evaluation.model_dump()) == evaluation


@bounded
@given(evaluations(), st.sampled_from(["candidate", "verdict", "environment"]), short)
def test_records_are_closed_to_fields_that_they_do_not_have(evaluation, part, name):
    plain = evaluation.model_dump()
    if name in plain[part]:
        return
    plain[part][name] = 1
    try:
        Evaluation.model_validate(plain)
    except ValidationError as error:
        assert (part, name) in [found["loc"] for found in error.errors()]  # noqa: PT017
    else:
        raise AssertionError(f"{part} took a field {name!r}")


def renamed(evaluation: Evaluation, source: str) -> Evaluation:
    """The same evaluation of a candidate with other source."""
    candidate = evaluation.candidate.model_copy(update={"source": source})
    verdict = evaluation.verdict.model_copy(update={"candidate": candidate.sha256})
    return evaluation.model_copy(update={"candidate": candidate, "verdict": verdict})


@bounded
@given(evaluations())
def test_the_store_gives_back_what_it_was_given(store, evaluation):
    new = renamed(evaluation, f"{next(numbers)}\n{evaluation.candidate.source}")
    back = store.evaluation(store.record_evaluation(new)).evaluation
    assert back == new
    assert repr(back.candidate.knobs) == repr(new.candidate.knobs)
    assert back.environment.id == new.verdict.environment


@bounded
@given(evaluations(), evaluations())
def test_a_candidate_that_comes_again_keeps_its_origin(store, first, second):
    first = renamed(first, f"again {next(numbers)}")
    same = first.candidate.model_copy(update={"note": "found again", "operator": "repair", "author": "user"})
    verdict = second.verdict.model_copy(update={"candidate": same.sha256, "backend": same.backend})
    again = second.model_copy(update={"candidate": same, "verdict": verdict})
    ids = [store.record_evaluation(evaluation) for evaluation in (first, again)]
    back = [store.evaluation(one).evaluation for one in ids]
    assert back == [first, again.model_copy(update={"candidate": first.candidate})]
    known = store.query("SELECT count(*) AS n FROM candidates WHERE sha256 = ?", [same.sha256])
    assert known == [{"n": 1}]
