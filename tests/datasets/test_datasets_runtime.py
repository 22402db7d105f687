"""Running a problem: variants, seeds, faults with their line, and the randomising of parameters."""

from __future__ import annotations

import inspect
import pickle
import sys

import pytest
import torch
from torch import nn

from kernelwright.datasets.runtime import (
    ReferenceFault,
    load_reference,
    make_init_inputs,
    make_inputs,
    make_model,
    randomise_parameters,
    run_forward,
)


def run(source, variant=None):
    module = load_reference(source, variant or {})
    model = make_model(module, make_init_inputs(module))
    return run_forward(model, make_inputs(module))


def test_a_variant_sets_the_constants_before_anything_runs(good):
    module = load_reference(good, {"ROWS": 2, "FEATURES": 9})
    model = make_model(module, make_init_inputs(module, seed=1))
    assert model.weight.shape == (9,)
    assert make_inputs(module, seed=1)[0].shape == (2, 9)
    assert run_forward(model, make_inputs(module, seed=1))[0].shape == (2, 9)


def test_two_variants_of_one_file_live_side_by_side(good):
    small, large = load_reference(good, {"ROWS": 1}), load_reference(good, {"ROWS": 8})
    assert make_inputs(small, 0)[0].shape[0] == 1
    assert make_inputs(large, 0)[0].shape[0] == 8


def test_inputs_depend_on_the_seed_alone(good):
    module = load_reference(good, {})
    assert torch.equal(make_inputs(module, 5)[0], make_inputs(module, 5)[0])
    assert not torch.equal(make_inputs(module, 5)[0], make_inputs(module, 6)[0])


def test_the_mode_is_applied(good):
    module = load_reference(good, {})
    assert not make_model(module, [3]).training
    assert make_model(module, [3], mode="train").training


def test_source_and_tracebacks_work_without_a_file(good):
    module = load_reference(good, {})
    assert "return x * self.weight" in inspect.getsource(module.Model)
    assert sys.modules[module.__name__] is module


def test_outputs_are_flattened(good):
    source = good.replace("return x * self.weight", "return x, [x + 1], {'z': x + 2}")
    assert len(run(source)) == 3
    assert len(run(good.replace("return x * self.weight", "return x, None, {'y': None, 'z': x + 2}"))) == 2


FAULTS = [
    # (old, new, text at the line at fault or None, stage, part of the message)
    ("import torch\n", "import torch\nimport no_such_package_here\n", "no_such", "import", "needs the package no_such"),
    ("ROWS = 4", "ROWS = 4 / 0", "4 / 0", "import", "ZeroDivisionError"),
    ("ROWS = 4", "ROWS = = 4", "= = 4", "import", "SyntaxError"),
    ("ROWS = 4", "raise SystemExit(3)", "SystemExit", "import", "SystemExit"),
    ("class Model(nn.Module)", "class Net(nn.Module)", None, "Model", "no class Model"),
    ("class Model(nn.Module):", "class Model(object):", "def __init__", "Model", "not a subclass"),
    ("def get_inputs", "def make_inputs", None, "get_inputs", "no function"),
    ("def get_init_inputs", "def init_inputs", None, "get_init_inputs", "no function"),
    ("torch.ones(features)", "torch.ones(features, -1)", "torch.ones(features", "Model", "RuntimeError"),
    ("return [torch.randn(ROWS, FEATURES)]", "return torch.nothing()", "torch.nothing", "get_inputs", "Attribute"),
    ("return [torch.randn(ROWS, FEATURES)]", "pass", "def get_inputs", "get_inputs", "returned nothing"),
    ("return [FEATURES]", "return FEATURES", "def get_init", "get_init_inputs", "returned int"),
    ("return x * self.weight", "return x @ x", "x @", "forward", "RuntimeError"),
    ("return x * self.weight", "pass", "def forward", "forward", "returned nothing"),
    ("return x * self.weight", "return None, [None]", "def forward", "forward", "forward returned nothing"),
    ("return x * self.weight", "return 3", "def forward", "forward", "the output is an int where a tensor"),
    ("return x * self.weight", "return []", "def forward", "forward", "forward returned nothing"),
]


@pytest.mark.parametrize(("old", "new", "at", "stage", "message"), FAULTS)
def test_each_fault_names_its_stage_and_line(good, line_of, old, new, at, stage, message):
    assert old in good
    source = good.replace(old, new)
    with pytest.raises(ReferenceFault) as caught:
        run(source)
    fault = caught.value
    assert (fault.stage, fault.line) == (stage, at and line_of(source, at))
    assert message in fault.message
    assert fault.to_json()["line"] == fault.line
    assert pickle.loads(pickle.dumps(fault)).to_json() == fault.to_json()


def test_a_fault_in_a_helper_names_the_innermost_line(good, line_of):
    source = good.replace("return x * self.weight", "return helper(x)") + "\n\ndef helper(x):\n    return x.no_such\n"
    with pytest.raises(ReferenceFault) as caught:
        run(source)
    assert caught.value.line == line_of(source, "x.no_such")
    assert "return helper(x)" in caught.value.traceback


def test_an_unknown_constant_is_a_fault(good):
    with pytest.raises(ReferenceFault, match="COLUMNS"):
        load_reference(good, {"COLUMNS": 3})


class Everything(nn.Module):
    """One of each kind of state."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(64)
        self.layer = nn.LayerNorm(64)
        self.conv = nn.Conv2d(16, 64, 3)
        self.scale = nn.Parameter(torch.ones(64, 1, 1))
        self.gain = nn.Parameter(torch.full((64,), 0.01))
        self.position = nn.Parameter(torch.zeros(16, 64))
        self.tied = self.conv.weight
        self.register_buffer("causal", torch.full((8, 8), float("-inf")).triu(1))
        self.register_buffer("zero_one", torch.ones(8, 8).tril())
        self.register_buffer("keep", torch.ones(8, dtype=torch.bool))
        self.register_buffer("positive", torch.rand(200) + 1)
        self.register_buffer("hidden", torch.rand(8), persistent=False)


@pytest.fixture
def randomised():
    torch.manual_seed(0)
    model = Everything()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hidden = model.hidden.clone()
    randomise_parameters(model, 7)
    assert torch.equal(model.hidden, hidden)
    return model, before


def test_nothing_stays_an_identity(randomised):
    model, _ = randomised
    after = model.state_dict()
    for name in ("norm.weight", "layer.weight", "scale"):
        assert 0.7 <= float(after[name].min()) < 0.9
        assert 1.1 < float(after[name].max()) <= 1.3
    for name in ("norm.bias", "layer.bias", "conv.bias", "position"):
        assert float(after[name].min()) < -0.15
        assert 0.15 < float(after[name].max()) <= 0.3
    assert 0.3 < float(after["norm.running_mean"].std()) < 0.7
    assert 0.5 <= float(after["norm.running_var"].min()) < float(after["norm.running_var"].max()) <= 1.5
    assert 0.007 <= float(after["gain"].min()) < float(after["gain"].max()) <= 0.013


def test_other_weights_keep_their_scale_and_sign(randomised):
    model, before = randomised
    weight = model.conv.weight.detach()
    assert not torch.equal(weight, before["conv.weight"])
    assert float(weight.std()) == pytest.approx(float(before["conv.weight"].std()), rel=0.05)
    assert model.tied is model.conv.weight
    assert float(model.positive.min()) > 0
    assert not torch.equal(model.positive, before["positive"])


def test_structured_and_integer_state_is_left_alone(randomised):
    model, before = randomised
    for name in ("causal", "zero_one", "keep", "norm.num_batches_tracked"):
        assert torch.equal(model.state_dict()[name], before[name])


def test_values_depend_on_seed_and_name_alone():
    first, second, third = nn.Linear(8, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 8)), nn.Linear(8, 8)
    second[1].load_state_dict(first.state_dict())
    third.load_state_dict(first.state_dict())
    randomise_parameters(first, 3)
    randomise_parameters(third, 3)
    assert torch.equal(first.weight, third.weight)
    randomise_parameters(third, 4)
    assert not torch.equal(first.bias, third.bias)
