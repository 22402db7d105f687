"""Kernels that are known already: found before anything is paid for them, and told to whoever wrote them."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from campaign_fakes import FakeReferee, FakeSession, ScriptedCoder, make_evaluation, no_point
from test_agents_step import PROBLEM, Dead, Step, dying, judging

from kernelwright.agents import Attempt
from kernelwright.agents.duplicates import find_twin, program_of
from kernelwright.agents.roles import Proposal
from kernelwright.agents.strategy import rounds_without_gain
from kernelwright.records import Candidate

KERNEL = '''"""A softmax."""
import torch
from torch import nn
from kernelwright.inline import cpp

UNROLL = 4
KNOBS = {"UNROLL": [4, 8]}
lib = cpp(r"""
#include <cmath>
extern "C" void f(const float* x, float* y, long n) {
  // one after the other
  for (long i = 0; i < n; i++) y[i] = std::exp(x[i]) + 0x1p-3f;
}
""", defines={"UNROLL": UNROLL})


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.f(x, y, x.numel())  # the whole of it
        return y
'''


def made(source: str, **more) -> Candidate:
    return Candidate(problem_id=PROBLEM.id, source=source, backend=more.pop("backend", "cpp"), **more)


def changed(old: str, new: str) -> Candidate:
    assert KERNEL.count(old) == 1
    return made(KERNEL.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""A softmax."""', '"""The fastest softmax of all."""'),
        ('"""A softmax."""\n', ""),
        ("  # the whole of it", ""),
        ("// one after the other", "/* in\n turn */"),
        ("  // one after the other\n", "\n\n"),
        ("y[i] = std::exp(x[i]) + 0x1p-3f", "y [ i ]=std :: exp( x[i] )+0x1p-3f"),
        ("#include <cmath>", "#  include   <cmath> // exp"),
        ("        return y\n", "\n        return (\n            y\n        )\n"),
        ("UNROLL = 4\n", "UNROLL = 0x4\n"),
    ],
)
def test_the_same_program_in_other_words(old, new):
    assert program_of(changed(old, new)) == program_of(made(KERNEL))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x[i]) +", "x[i]) -"),
        ("0x1p-3f", "0x1p-3"),
        ("i++", "i + +"),
        ("<cmath>", "<math.h>"),
        ("#include <cmath>\n", "#include <cmath>\n#pragma GCC unroll 4\n"),
        ("x.numel())", "x.numel() - 1)"),
        ("UNROLL = 4\n", "UNROLL = 5\n"),
        ("        return y\n", "        return y.clone()\n"),
    ],
)
def test_another_program(old, new):
    assert program_of(changed(old, new)) != program_of(made(KERNEL))


def test_a_value_that_is_set_is_one_that_is_written():
    assert program_of(made(KERNEL, knobs={"UNROLL": 4})) == program_of(made(KERNEL))
    assert program_of(made(KERNEL, knobs={"UNROLL": 8})) != program_of(made(KERNEL))
    assert program_of(made(KERNEL, backend="cuda")) != program_of(made(KERNEL))


@pytest.mark.parametrize("source", ["def (", "x = 1\0", "(" * 5000, "v0\n"], ids=["syntax", "null", "deep", "a word"])
def test_what_is_no_python_is_like_itself_alone(source):
    assert program_of(made(source)) == program_of(made(source))
    assert program_of(made(source)) != program_of(made(source + "+ 1"))


def judged(candidate: Candidate, **action) -> Attempt:
    return Attempt(0, candidate.sha256, candidate, make_evaluation(candidate).verdict, action)


def test_the_first_of_those_that_are_alike_is_named():
    attempts = [judged(made("one()")), judged(changed("  # the whole of it", "")), judged(changed("// one", "// One"))]
    twin = find_twin(made(KERNEL), attempts)
    assert (twin.attempt, twin.same) == (attempts[1], "program")
    assert find_twin(attempts[2].candidate, attempts).same == "file"
    assert find_twin(made("two()"), attempts) is None


def test_machine_code_is_the_same_kernel_only_in_the_same_python():
    renamed = changed(
        "for (long i = 0; i < n; i++) y[i] = std::exp(x[i])", "for (long j = 0; j < n; j++) y[j] = std::exp(x[j])"
    )
    known = [judged(made(KERNEL), machine_code="m")]
    assert find_twin(renamed, known) is None
    assert find_twin(renamed, known, "m").same == "machine code"
    assert find_twin(renamed, known, "n") is None
    assert find_twin(renamed, [judged(made(KERNEL), machine_code="")], "") is None, "nothing is known of either"
    assert find_twin(changed("x.numel())", "x.numel() - 1)"), known, "m") is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("UNROLL = 4\n", "UNROLL = 8\n"),
        ('KNOBS = {"UNROLL": [4, 8]}\n', 'FLAGS = ("-O3", f"-funroll={UNROLL}")\nFAST = FLAGS\n'),
        ('defines={"UNROLL": UNROLL}', 'defines={}, flags=("-ffast-math",) if UNROLL else ()'),
    ],
)
def test_what_only_the_compiler_is_told_makes_no_other_kernel_of_the_same_machine_code(old, new):
    known = [judged(made(KERNEL), machine_code="m")]
    assert find_twin(changed(old, new), known, "m").same == "machine code"
    assert find_twin(changed(old, new), known) is None, "as texts they differ"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("torch.empty_like(x)", "torch.empty_like(x) if UNROLL else x"),
        ("defines={", "flags=options(), defines={"),
        ("UNROLL = 4\n", "UNROLL = 4\ntorch.set_num_threads(4)\n"),
        ('KNOBS = {"UNROLL": [4, 8]}\n', "THREADS = torch.set_num_threads(4)\n"),
    ],
)
def test_what_python_does_besides_makes_another_kernel_of_the_same_machine_code(old, new):
    assert find_twin(changed(old, new), [judged(made(KERNEL), machine_code="m")], "m") is None


class Repeating(ScriptedCoder):
    """Its second round is the first one with other comments, or with another name in its C."""

    def propose(self, context):
        self.told = context.failures
        number = 0 if context.round == 1 else context.round
        extra = "# again\n" if context.round == 1 else ""
        source = f'{extra}cpp("""int f{context.round if self.renames else number}() {{ return {number}; }}""")\n'
        candidate = Candidate(problem_id=context.problem.id, source=source, backend="cpp", author="scripted")
        return Proposal(candidate, f"version {context.round}", {"round": context.round, "assignment": {}})

    renames = False


class Renaming(Repeating):
    renames = True


def repeating(coder, **more) -> Step:
    """Three rounds; the kernels of the first two have one machine code."""
    step = Step(coder=coder, **more)
    session = FakeSession(step.referee, PROBLEM, no_point)
    built = []

    def machine_code(candidate):
        built.append(candidate)
        return "2" if "return 2" in candidate.source else "0"

    step.tools = dataclasses.replace(step.tools, evaluate=judging(session, machine_code))
    step.built = built
    return step


@pytest.mark.parametrize(("coder", "same", "builds"), [(Repeating, "program", 2), (Renaming, "machine code", 3)])
def test_a_duplicate_is_not_judged_and_its_author_is_told(coder, same, builds):
    step = repeating(coder())
    result = step.run()
    assert len(step.referee.judged) == 2
    assert len(step.built) == builds
    (duplicate,) = step.ledger.duplicates
    first, _ = step.ledger.evaluations
    assert (duplicate.same, duplicate.round, duplicate.after) == (same, 1, 1)
    assert duplicate.twin == first.candidate.sha256
    (told,) = step.tools.coder.told
    assert f"the same {same} as kernel {first.candidate.sha256[:12]} of round 1 (PASSED, 1.00x)" in told
    assert [attempt["round"] for attempt in result.state["attempts"]] == [0, 2]
    assert result.state["stop"] == "all 3 rounds done"


@pytest.mark.parametrize("coder", [Repeating, Renaming])
@pytest.mark.parametrize(("count", "after"), list(itertools.product(range(1, 11), [False, True])))
def test_a_loop_that_died_at_a_duplicate_ends_like_a_whole_one(monkeypatch, coder, count, after):
    whole, step = repeating(coder()), repeating(coder())
    whole.run()
    with monkeypatch.context() as dead:
        dying(dead, step.ledger, count, after=after)
        with pytest.raises(Dead):
            step.run()
    step.run()
    assert step.ledger.duplicates == whole.ledger.duplicates
    assert step.ledger.actions == whole.ledger.actions


def test_rounds_of_duplicates_are_rounds_without_a_gain():
    class Stuck(Repeating):
        def propose(self, context):
            source = f"nothing_new()  # {context.round}\n"
            return Proposal(Candidate(problem_id=PROBLEM.id, source=source, backend="cpp"), "again", {})

    step = repeating(Stuck(), rounds=9, referee=FakeReferee())
    step.tools = dataclasses.replace(
        step.tools, finished=lambda context: "stalled" if rounds_without_gain(context) >= 4 else ""
    )
    result = step.run()
    assert len(step.referee.judged) == 1
    assert (result.state["stop"], len(step.ledger.duplicates)) == ("stalled", 4)
