"""Problems that are too large are made smaller by their own constants, and say so in their names."""

from __future__ import annotations

import pytest

from kernelwright.datasets import _runtime, fitted, parse_problem, with_sizes
from kernelwright.errors import MachineError, UsageError

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features, groups):
        super().__init__()
        self.linear = nn.Linear(features, features)
        self.norm = nn.GroupNorm(groups, features)

    def forward(self, x):
        return self.norm(self.linear(x))

batch_size = 2048 * 2; features = 4096  # a comment: größer
GROUPS = 64
EPS = 1e-5
half = features // 2

def get_inputs():
    return [torch.randn(batch_size, features)]

def get_init_inputs():
    return [features, GROUPS]
"""


def problem(source=SOURCE, name="gemm"):
    return parse_problem(source, id=f"other/level1/{name}", suite="other", level=1, name=name)


def here(entry, payload):
    module, _, function = entry.partition(":")
    assert module == "kernelwright.datasets._runtime"
    return getattr(_runtime, function)(payload)


def test_a_large_problem_is_halved_until_it_fits_and_still_runs():
    fit = fitted(problem(), here, most_bytes=1 << 20, most_flops=10_000_000)
    assert (fit.fits, fit.reason) == (True, "")
    sizes = dict(part.split("=") for part in fit.problem.id.partition("@")[2].split(","))
    assert set(sizes) <= {"batch_size", "features", "GROUPS"}
    features = int(sizes["features"])
    assert features % int(sizes.get("GROUPS", 64)) == 0
    batch = int(sizes.get("batch_size", 4096))
    assert 0.25 <= batch / features <= 4, "the sizes keep their proportions"
    assert 4 * (2 * batch * features + features * (features + 3)) <= 1 << 20
    assert 2 * batch * features * features <= 10_000_000
    assert 16 * batch * features * features > 10_000_000, "it was halved more than it had to be"
    module = _runtime.load_reference(fit.problem.source, {})
    model = _runtime.make_model(module, _runtime.make_init_inputs(module))
    assert _runtime.run_forward(model, _runtime.make_inputs(module))[0].shape == (batch, features)
    assert "# a comment: größer" in fit.problem.source


def test_a_batch_may_come_to_one_and_no_width_to_less_than_eight():
    """A layer of width 1 computes something else; what does not fit above that is said not to fit."""
    source = SOURCE.replace("nn.GroupNorm(groups, features)", "nn.Identity()")
    fit = fitted(problem(source), here, most_bytes=1, most_flops=1)
    assert fit.problem.id == "other/level1/gemm@batch_size=1,features=8"
    assert not fit.fits
    assert "no constant of it can be halved any more" in fit.reason


def test_a_problem_that_fits_is_left_as_it_is():
    given = problem(SOURCE.replace("4096", "64").replace("2048 * 2", "64"))
    assert fitted(given, here) == (given, True, "")


def test_a_constructor_may_read_the_numbers_of_a_range():
    """As networks with a depth of random skips do."""
    source = SOURCE.replace(
        "self.norm = nn.GroupNorm(groups, features)",
        "self.rates = [x.item() for x in torch.linspace(0, 0.2, groups)]\n"
        "        self.register_buffer('places', torch.arange(features))\n"
        "        self.norm = nn.GroupNorm(groups, features)",
    ).replace("self.linear(x)", "self.linear(x) + self.places")
    fit = fitted(problem(source), here, most_bytes=1 << 20, most_flops=10_000_000)
    assert (fit.fits, fit.reason) == (True, "")


RECURRENT = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features, layers):
        super().__init__()
        self.layer = nn.LAYER(features, 4 * features, layers, batch_first=True, bidirectional=True)

    def forward(self, x):
        y, state = self.layer(x)
        return y + y.new_zeros(x.shape[0], x.shape[1], 8 * x.shape[2]), state

features = 32
steps = 63

def get_inputs():
    return [torch.randn(2, steps, features)]

def get_init_inputs():
    return [features, 3]
"""


@pytest.mark.parametrize("layer", ["LSTM", "GRU", "RNN"])
def test_a_recurrent_layer_is_counted_as_it_is(layer):
    given = problem(RECURRENT.replace("nn.LAYER", f"nn.{layer}"))
    module = _runtime.load_reference(given.source, {})
    model = _runtime.make_model(module, _runtime.make_init_inputs(module))
    products = 2 * 2 * 63 * sum(weight.numel() for weight in model.parameters() if weight.dim() == 2)
    fits = [fitted(given, here, most_bytes=1 << 30, most_flops=most) for most in (products * 2, products - 1)]
    assert [fit.problem.id for fit in fits] == [given.id, "other/level1/gemm@steps=31"]
    outputs = _runtime.run_forward(model, _runtime.make_inputs(module))
    held = [*_runtime.make_inputs(module), *model.parameters(), *outputs]
    taken = sum(tensor.nbytes for tensor in held)
    fits = [fitted(given, here, most_bytes=most, most_flops=1 << 40) for most in (taken, taken - 1)]
    assert [fit.problem.id for fit in fits] == [given.id, "other/level1/gemm@steps=31"]


def test_a_recurrent_layer_is_not_followed_step_by_step():
    given = problem(RECURRENT.replace("nn.LAYER", "nn.LSTM").replace("63", str(1 << 30)))
    fit = fitted(given, here, most_bytes=1 << 20, most_flops=1 << 40)
    assert fit.fits


def test_what_cannot_be_made_smaller_says_why():
    literal = SOURCE.replace("(batch_size, features)", "(4096, 4096)").replace("[features, GROUPS]", "[4096, 64]")
    fit = fitted(problem(literal), here, most_bytes=1 << 20)
    assert (fit.fits, fit.problem.id) == (False, "other/level1/gemm")
    assert "no constant of it can be halved" in fit.reason
    none = literal.replace("batch_size = 2048 * 2; features = 4096", "features = 1").replace(
        "GROUPS = 64", "GROUPS = 1.0"
    )
    assert "its sizes are no constants" in fitted(problem(none), here, most_bytes=1 << 20).reason


def test_what_does_not_run_at_all_says_so():
    broken = SOURCE.replace("return self.norm(self.linear(x))", "return self.missing(x)")
    fit = fitted(problem(broken), here)
    assert not fit.fits
    assert "no attribute 'missing'" in fit.reason
    assert fit.problem.id == "other/level1/gemm"


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"sizes": {"EPS": 1}, "fits": True, "reason": ""},
        {"sizes": {"features": 8192}, "fits": True, "reason": ""},
        {"sizes": {"features": "1"}, "fits": True, "reason": ""},
        {"sizes": {"features": True}, "fits": True, "reason": ""},
        {"sizes": [], "fits": True, "reason": ""},
        {"sizes": {}, "fits": 1, "reason": ""},
        {"sizes": {}, "fits": False, "reason": 3},
    ],
)
def test_a_lying_worker_changes_nothing(reply):
    with pytest.raises(MachineError, match="malformed"):
        fitted(problem(), lambda entry, payload: reply)


def test_sizes_are_set_where_a_file_has_them_and_wrong_names_are_told():
    other = problem(SOURCE.replace("batch_size", "rows"), "rows")
    first, second = with_sizes([problem(), other], {"batch_size": 16})
    assert first.id == "other/level1/gemm@batch_size=16"
    assert second == other
    with pytest.raises(UsageError, match="batch_siz is no setting, and no constant of these problems") as error:
        with_sizes([problem()], {"batch_siz": 16})
    assert "batch_size" in error.value.hint
    with pytest.raises(UsageError, match="no constant"):
        with_sizes([], {"batch_size": 16})
