"""Problems that name a CUDA device run on the one that is used, also where there is none; and their float64 twins."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernelwright.codegen import CAPTURE_ENTRY
from kernelwright.datasets import runtime as _runtime
from kernelwright.datasets._fit_worker import fit
from kernelwright.datasets._lint_worker import lint

TEXT = """import torch
from torch import nn

{top}


class Model(nn.Module):
    def __init__(self, width):
        super(Model, self).__init__()
        self.inner = nn.Linear(width, width)
        {built}

    def forward(self, x):
        {forward}
        return torch.relu(self.inner(x))


def get_inputs():
    return [{given}]


def get_init_inputs():
    return [16]
"""
PLAIN = {"top": "", "built": "pass", "forward": "pass", "given": "torch.randn(8, 16)"}
NAMED = {
    "inputs": {"given": "torch.randn(8, 16).cuda()"},
    "inputs by keyword": {"given": 'torch.randn(8, 16, device="cuda")'},
    "another index": {"given": 'torch.randn(8, 16).to("cuda:3")'},
    "constructor": {"built": "self.inner.cuda()"},
    "attribute": {"built": "self.shift = torch.ones(16).cuda()", "forward": "x = x + self.shift"},
    "module level": {"top": 'SHIFT = torch.ones(16, device="cuda")', "forward": "x = x + SHIFT"},
    "forward": {"forward": 'x = x + torch.ones(16, device="cuda")'},
    "forward moves": {"forward": "x = x.cuda()\n        assert x.is_cuda"},
    "default device": {"top": 'torch.set_default_device("cuda")'},
}
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, and code may well name it")


def text(**parts):
    return TEXT.format(**{**PLAIN, **parts})


def run(source):
    module = _runtime.load_reference(source, {})
    model = _runtime.make_model(module, _runtime.make_init_inputs(module))
    inputs = _runtime.make_inputs(module)
    with torch.no_grad():
        return model, inputs, _runtime.run_forward(model, inputs)[0]


@no_gpu
@pytest.mark.parametrize("parts", NAMED.values(), ids=NAMED)
def test_a_problem_that_names_a_device_runs_without_one(parts):
    model, inputs, output = run(text(**parts))
    assert inputs[0].device.type == "cpu"
    assert not output.is_cuda
    assert not torch.cuda.is_available(), "what was pretended is over"
    x = inputs[0] + 1 if "SHIFT" in str(parts) or "shift" in str(parts) or "ones" in str(parts) else inputs[0]
    torch.testing.assert_close(output, torch.relu(model.inner(x)).detach())


@no_gpu
@pytest.mark.parametrize("parts", NAMED.values(), ids=NAMED)
def test_lint_sizes_and_capture_take_it_as_well(parts):
    source = text(**parts)
    found = lint({"source": source})
    assert found["fault"] is None
    assert not [finding for finding in found["findings"] if finding["severity"] == "error"]
    most = {"bytes": 1 << 20, "flops": 1 << 20, "seconds": 60.0}
    payload = {"source": source, "places": {}, "values": {}, "tiers": [], "variants": [{}], **most}
    fitted = fit(payload)
    assert fitted["fits"] or "SHIFT" in source, fitted["reason"]  # sizes are followed without the module's own tensors
    module, _, function = CAPTURE_ENTRY.rpartition(":")[0], None, CAPTURE_ENTRY.rpartition(":")[2]
    capture = getattr(__import__(module, fromlist=[function]), function)
    assert capture({"source": source, "variant": {}})["ok"]


@no_gpu
def test_only_a_forward_that_fails_without_it_pretends_and_the_lint_says_so():
    rules = {name: {f["rule"] for f in lint({"source": text(**parts)})["findings"]} for name, parts in NAMED.items()}
    assert {name for name, found in rules.items() if "device-in-forward" in found} == {"forward", "forward moves"}


def test_a_fault_is_no_fault_of_the_device():
    with pytest.raises(_runtime.ReferenceFault, match="ZeroDivisionError") as caught:
        run(text(given="torch.randn(8 // 0, 16).cuda()"))
    assert caught.value.line == 19


CLOSED = text(
    built="held = nn.ModuleList([nn.Linear(width, width), nn.GELU()])\n        self.held = held\n"
    "        self.register_buffer('shift', torch.rand(width))\n        shift = self.shift\n"
    "        self.mixed = lambda x: held[1](held[0](x) @ torch.outer(shift, shift))",
    forward="x = x + self.mixed(x)",
)


def test_a_twin_is_built_anew_so_that_its_closures_are_its_own():
    model, inputs, output = run(CLOSED)
    _runtime.randomise_parameters(model, 3)
    module = _runtime.load_reference(CLOSED, {})
    twin = _runtime.double_twin(model, lambda: _runtime.make_model(module, [16]))
    with torch.no_grad(), _runtime.in_double():
        exact = twin(inputs[0].double())
        close = model(inputs[0])
    assert exact.dtype == torch.float64
    assert not torch.equal(close, output)
    torch.testing.assert_close(close.double(), exact, rtol=1e-4, atol=1e-4)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not [f for f in lint({"source": CLOSED})["findings"] if f["severity"] == "error"]


def test_a_constructor_that_makes_another_model_each_time_is_said_to():
    with pytest.raises(ValueError, match=r"another state when it is run again: weight"):
        _runtime.double_twin(nn.Linear(3, 4), lambda: nn.Linear(4, 4))


def test_the_lint_says_where_a_reference_does_not_run_in_float64():
    source = text(forward='assert x.dtype == torch.float32, "single precision only"')
    found = [f for f in lint({"source": source})["findings"] if f["rule"] == "no-float64"]
    assert [(f["severity"], f["line"]) for f in found] == [("error", 14)]
    assert "single precision only" in found[0]["message"]
