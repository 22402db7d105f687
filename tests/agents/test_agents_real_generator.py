"""The offline roles over the real generator, with the capture run in this process instead of the sandbox."""

from __future__ import annotations

import dataclasses

import pytest
from campaign_fakes import make_evaluation

from kernelwright import codegen
from kernelwright.agents import Attempt, CoderError, StepContext, Workbench
from kernelwright.agents._roofline import Peaks
from kernelwright.agents.blueprint import blueprint
from kernelwright.agents.offline_coder import OfflineCoder
from kernelwright.agents.offline_judge import OfflineJudge
from kernelwright.codegen._capture import capture_entry
from kernelwright.datasets import find_problem, parse_problem
from kernelwright.datasets._entries import fit
from kernelwright.datasets._fit import FIT_ENTRY
from kernelwright.evaluator.verdict.fitted_sizes import small_problem
from kernelwright.records import Status


def answer(entry, payload):
    """What a sandboxed worker would answer. TorchInductor gives no kernels."""
    return {codegen.CAPTURE_ENTRY: capture_entry, FIT_ENTRY: fit}.get(entry, lambda _: {"ok": False})(payload)


@pytest.fixture(scope="module")
def context() -> StepContext:
    bench = Workbench(answer)
    return StepContext(problem=find_problem("gemm_bias_gelu"), backend="cpp", round=0, rounds=6, bench=bench)


def grow(context: StepContext, proposal, **measured) -> StepContext:
    evaluation = make_evaluation(proposal.candidate, **measured)
    attempt = Attempt(context.round, str(context.round), proposal.candidate, evaluation.verdict, proposal.action)
    context = dataclasses.replace(context, attempts=(*context.attempts, attempt))
    advice = OfflineJudge(Peaks(10.0, 100.0)).advise(context, evaluation)
    advised = dataclasses.replace(attempt, advice=advice)
    return dataclasses.replace(context, attempts=(*context.attempts[:-1], advised), round=context.round + 1)


PRODUCT = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return {body}


def get_inputs():
    return [torch.rand(256, 64)]


def get_init_inputs():
    return []
"""
LARGE = """
import torch
from torch import nn

ROWS = 2048
{more}

class Model(nn.Module):
    def forward(self, x):
        return (x{used}).relu()


def get_inputs():
    return [torch.rand(ROWS, 1024)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("more", "used", "rows"),
    [
        ("", "", [2048, 32]),
        ("ALL = ROWS", " + torch.ones(ALL, 1)", [2048, 32]),
        ("", " + (1.0 if ROWS > 99 else torch.ones(()))", [2048]),
    ],
    ids=["a constant", "a constant that follows another", "two graphs"],
)
def test_kernels_for_a_gpu_are_also_for_the_sizes_that_an_interpreter_checks(more, used, rows):
    """The referee shrinks a problem that declares no small shapes. Without a common graph, its own sizes come first."""
    problem = parse_problem(LARGE.format(more=more, used=used), id="a/large", suite="a", level=0, name="large")
    bench = Workbench(answer, lambda backend: small_problem(problem, answer))
    found = blueprint(StepContext(problem=problem, backend="triton", round=0, rounds=2, bench=bench)).graph
    sizes = found.inputs[0].info.shape[0].values
    assert list(dict.fromkeys(sizes)) == rows


def test_sizes_for_an_interpreter_stay_apart():
    """Else a kernel that takes rows for columns passes."""
    text = LARGE.format(more="COLUMNS = 8192", used="").replace("1024)]", "COLUMNS), torch.rand(COLUMNS, ROWS)]")
    problem = parse_problem(text.replace("(self, x)", "(self, x, y)"), id="a/l", suite="a", level=0, name="l")
    sizes = dict(part.split("=") for part in small_problem(problem, answer).id.partition("@")[2].split(","))
    assert set(sizes) == {"ROWS", "COLUMNS"}
    assert sizes["ROWS"] != sizes["COLUMNS"]


def test_proposals_are_different_valid_files_that_keep_their_parent(context):
    coder = OfflineCoder()
    for _ in range(4):
        context = grow(context, coder.propose(context), speedup=1.5, latency_ms=2.0)
    sources = [attempt.candidate.source for attempt in context.attempts]
    assert len(set(sources)) == 4
    for source in sources:
        compile(source, "candidate.py", "exec")
        assert "class ModelNew" in source
    assert [len(attempt.candidate.parents) for attempt in context.attempts] == [0, 1, 1, 1]
    assert all(attempt.action["bytes_moved"] > 0 for attempt in context.attempts)


def test_a_failed_default_is_repaired_by_a_safer_schedule(context):
    coder = OfflineCoder()
    first = coder.propose(context)
    repaired = coder.propose(grow(context, first, status=Status.INCORRECT_NUMERICAL))
    assert first.action["schedule"]["gemm"] == "own"
    assert repaired.action["schedule"]["gemm"] == "library"
    assert repaired.candidate.operator == "repair"


def test_a_product_that_is_refused_on_matrix_units_is_tried_without_them():
    """Three TF32 products first, and then float32's own. Where the library multiplies, that choice changes nothing."""
    for body, changed in (("x @ x.mT", {"precision": "ieee"}), ("(x @ x.mT).relu().sum(1)", {"fusion": "none"})):
        problem = parse_problem(PRODUCT.format(body=body), id="a/b", suite="a", level=0, name="b")
        context = StepContext(problem=problem, backend="triton", round=0, rounds=6, bench=Workbench(answer))
        coder = OfflineCoder()
        advised = grow(context, coder.propose(context), status=Status.INCORRECT_NUMERICAL).advice
        assert advised.action["schedule"] == changed


def test_what_is_foreseen_comes_next_where_the_pending_one_brings_nothing(context):
    coder = OfflineCoder()
    context = grow(context, coder.propose(context), speedup=1.5, latency_ms=2.0)
    context = grow(context, coder.propose(context), speedup=1.1, latency_ms=2.5)
    pending = coder.propose(context)
    foreseen = coder.foresee(context, pending)
    assert len({pending.candidate.sha256, *(made.sha256 for made in foreseen)}) == 3
    assert not {made.sha256 for made in foreseen} & {attempt.candidate.sha256 for attempt in context.attempts}
    after = grow(context, pending, speedup=1.2, latency_ms=2.4)
    unadvised = dataclasses.replace(after.attempts[-1], advice=None)
    context = dataclasses.replace(after, attempts=(*after.attempts[:-1], unadvised))
    assert coder.propose(context).candidate.sha256 in {made.sha256 for made in foreseen}


def test_what_cannot_be_captured_says_why(context):
    refused = Workbench(lambda entry, payload: {"ok": False, "reason": "torch.export: data-dependent branch"})
    with pytest.raises(CoderError, match="data-dependent branch"):
        OfflineCoder().propose(dataclasses.replace(context, bench=refused))
