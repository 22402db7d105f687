"""What a candidate cannot be given or asked for is refused by lint and referee alike, in the same words."""

from __future__ import annotations

import warnings

import pytest
from referee_candidates import elementwise

from kernelwright.datasets import LintFinding, _lint_worker, lint, parse_problem
from kernelwright.errors import InvalidReferenceError
from kernelwright.evaluator import Check
from kernelwright.records import Candidate, Status

PROBLEM = """
import collections

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, INIT_NAMES):
        super().__init__()
        HELD

    def forward(self, NAMES):
        RETURN


def get_inputs():
    return [INPUTS]


def get_init_inputs():
    return [INIT]
"""
X = "torch.randn(64, 32)"


def problem(body="return x * 2", inputs=X, names="x", held="pass", init_names="", init=""):
    source = PROBLEM.replace("INIT_NAMES", init_names).replace("NAMES", names).replace("INPUTS", inputs)
    source = source.replace("INIT", init).replace("HELD", held).replace("RETURN", body)
    return parse_problem(source, id="test/level1/odd", suite="test", level=1, name="odd")


COMPLEX = "torch.randn(64, 32, dtype=torch.complex64)"
REFUSED = {
    "complex output": (
        problem("return torch.fft.rfft(x)"),
        "the output is a tensor of dtype complex64, which is not supported: "
        "return its real and imaginary parts (torch.view_as_real)",
    ),
    "sparse output": (
        problem("return x, x.relu().to_sparse()"),
        "output 1 is a sparse tensor of layout sparse_coo, which is not supported: return it dense (to_dense())",
    ),
    "quantized output": (
        problem("return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)"),
        "the output is a quantized tensor of dtype qint8",
    ),
    "nested output": (problem("return torch.nested.nested_tensor([x[:3], x[3:]])"), "the output is a nested tensor"),
    "string output": (problem("return x * 2, 'a'"), "output 1 is a str where a tensor is expected"),
    "float output": (problem("return float(x.sum())"), "the output is a float where a tensor is expected"),
    "many outputs": (problem("return [x * (i + 2) for i in range(17)]"), "forward returned 17 tensors, and at most 16"),
    "complex input": (problem("return x.real * 2", COMPLEX), "input 'x' is a tensor of dtype complex64"),
    "narrow input": (
        problem("return x.float()", f"{X}.to(torch.float8_e4m3fn)"),
        "input 'x' is a tensor of dtype float8_e4m3fn, which is not supported: use one of float32, float64",
    ),
    "sparse input": (
        problem("return x @ w", f"{X}.to_sparse_csr(), {X}.T", "x, w"),
        "input 'x' is a sparse tensor of layout sparse_csr, which is not supported: pass it dense (to_dense())",
    ),
    "list of tensors": (
        problem("return torch.cat(tensors)", f"3, [{X}, {X}]", "n, tensors"),
        "input 'tensors' is a list of tensors, which is not supported: pass them one by one",
    ),
    "dict of tensors": (
        problem("return d['a'][0] * 2", f"{{'a': ({X},)}}", "d"),
        "input 'd' is a dict of tensors, which is not supported: pass them one by one",
    ),
    "rest of the arguments": (
        problem("return xs[0] * 2", f"{X}, [{X}]", "*xs"),
        "input 1 is a list of tensors",
    ),
    "array": (
        problem("return torch.from_numpy(x) * 2", f"{X}.numpy()"),
        "input 'x' is a numpy.ndarray, which is not supported: use tensors, numbers",
    ),
    "device": (
        problem("return x.to(where) * 2", f"{X}, torch.device('cpu')", "x, where"),
        "input 'where' is a torch.device, which is not supported",
    ),
    "dtype": (
        problem("return x.to(kind).real", f"{X}, torch.complex64", "x, kind"),
        "input 'kind' is torch.complex64, which is not supported",
    ),
    "shape that changes": (
        problem("return x * 2", "torch.randn(int(torch.randint(3, 900, ())), 8)"),
        "each draw may change only its values",
    ),
    "complex parameter": (
        problem("return (x * self.w).real", held=f"self.w = nn.Parameter({COMPLEX})"),
        "parameter 'w' is a tensor of dtype complex64, which is not supported: hold its real and imaginary parts",
    ),
    "complex buffer": (
        problem("return (x * self.w).real", held=f"self.register_buffer('w', {COMPLEX})"),
        "buffer 'w' is a tensor of dtype complex64",
    ),
    "sparse parameter": (
        problem("return self.w @ x.T", held=f"self.w = nn.Parameter({X}.to_sparse())"),
        "parameter 'w' is a sparse tensor of layout sparse_coo",
    ),
    "tensor for the constructor": (
        problem("return x * self.w", held="self.w = nn.Parameter(weight)", init_names="weight", init=X),
        "argument 'weight' of Model's constructor is a tensor, which is not supported: make it inside of Model",
    ),
    "function for the constructor": (
        problem("return self.f(x)", held="self.f = f", init_names="f", init="torch.relu"),
        "argument 'f' of Model's constructor is a builtin_function_or_method, which is not supported",
    ),
}
NOTED = """


class Noted(nn.Linear):
    def get_extra_state(self):
        return {"a": 1}

    def set_extra_state(self, state):
        pass


class Model(Model):"""  # the rest of the file's class follows: its forward
TAKEN = {
    "plain values": problem("return x * n if s == 'a' else x", f"{X}, 3, 'a', None, (2, [1.5])", "x, n, s, o, t"),
    "a repeated row": problem("return x * w", f"{X}, torch.randn(1, 32).expand(64, 32)", "x, w"),
    "a mapping of its own": problem("return collections.UserDict(a=x * 2, b=x.exp())"),
    "complex inside": problem("return torch.fft.rfft(x).abs()"),
    "state besides tensors": problem(
        "return self.m(x)",
        held=f"self.m = Noted(32, 8){NOTED}",
    ),
}


def errors_of(made) -> list[LintFinding]:
    """What the lint calls an error after it has run the problem."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of nested, sparse and quantized tensors that it makes
        found = lint(made, lambda entry, payload: _lint_worker.lint(payload))
    return [finding for finding in found if finding.severity == "error" and finding.rule != "unused-input"]


@pytest.mark.untimed
@pytest.mark.parametrize(("made", "says"), REFUSED.values(), ids=REFUSED)
def test_lint_and_referee_refuse_it_in_the_same_words(referee, made, says):
    (error,) = errors_of(made)
    assert error.rule == "invalid-reference"
    assert says in error.message
    with pytest.raises(InvalidReferenceError) as caught:
        referee.open(made)
    if "each draw may change only" not in says:  # whose sizes are drawn each time
        assert f"{error.message} " in f"{caught.value.message} "
    assert says in caught.value.message
    assert caught.value.data["line"] == error.line


@pytest.mark.untimed
@pytest.mark.parametrize("made", TAKEN.values(), ids=TAKEN)
def test_lint_and_referee_take_what_looks_like_it(referee, made):
    assert errors_of(made) == []
    referee.open(made).close()


@pytest.mark.untimed
def test_a_candidate_that_returns_such_a_tensor_is_told_what_it_is(referee):
    made = problem()
    with referee.open(made) as session:

        def judge(returned: str):
            source = elementwise("2 * x[i]", returned)
            verdict = session.judge(Candidate(problem_id=made.id, source=source, backend="cpp"), depth=Check()).verdict
            return verdict.status, verdict.reason

        assert judge("y")[0] is Status.PASSED
        for returned in ("y.to_sparse()", "(y.to_sparse_csr(),)"):
            status, reason = judge(returned)
            assert status is Status.RUNTIME_ERROR
            assert "an output is a sparse tensor of layout sparse_" in reason
            assert "return it dense (to_dense())" in reason
        assert "an output is a nested tensor" in judge("torch.nested.nested_tensor([y[:3], y[3:]])")[1]
        assert judge("y + 0j") == (
            Status.INCORRECT_DTYPE,
            "the output has a dtype that is not supported, float32 expected",
        )
