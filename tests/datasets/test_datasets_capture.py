"""Capture: the written file is self-contained, readable, and computes what the module computes."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelwright.datasets import _lint_worker, capture_module, find_problem, lint, parse_problem, problem_from_module
from kernelwright.datasets import runtime as _runtime
from kernelwright.errors import MachineError, UsageError

STYLES = sorted((Path(__file__).parents[1] / "styles").glob("*.py"))


class CausalMix(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("mask", torch.ones(12, 12, dtype=torch.bool).tril())
        self.register_buffer("bias", torch.full((12, 12), float("-inf")).triu(1))
        self.register_buffer("decay", torch.arange(12.0).neg().exp(), persistent=False)

    def forward(self, x):
        scores = self.linear(x) @ x.transpose(-2, -1) / math.sqrt(16)
        scores = scores.masked_fill(~self.mask, float("-inf")) + self.bias
        return torch.softmax(scores, dim=-1) @ x * self.decay[:, None]


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(torch.rand(8)), nn.Parameter(torch.rand(8))])

    def forward(self, x):
        return x * self.scales[0] + self.scales[1]


class Nested(nn.Module):
    """Submodules three deep, a shared one, tied weights, a constant, several outputs."""

    def __init__(self):
        super().__init__()
        self.outer = nn.ModuleDict({"a-b": nn.Sequential(nn.Linear(8, 8), nn.Sequential(Inner(), nn.Dropout(0.5)))})
        self.head = nn.Linear(8, 8, bias=False)
        self.head.weight = self.outer["a-b"][0].weight

    def forward(self, x, extra):
        y = self.outer["a-b"](x) + extra["shift"][:, 1:3].sum(dim=1, keepdim=True)
        with torch.no_grad():
            y = self.outer["a-b"](y) * torch.tensor([1.0, 2.0] * 4)
        low, high = self.head(y).chunk(2, dim=-1)
        return {"low": low.clamp(min=0), "none": None}, high.argmax(dim=-1)


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8)

    def forward(self, ids, keep):
        return torch.where(keep.unsqueeze(-1), self.table(ids), 0.0).mean(dim=1)


class Inplace(nn.Module):
    def forward(self, x):
        y = x * 2
        y[:, 0].fill_(7.0)
        y += x[:, ::2].sum()
        return y.relu_()


def mlp():
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 5), nn.Hardtanh())


def conv_block():
    block = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.SiLU(), nn.MaxPool2d(2), nn.Flatten()
    )
    block(torch.randn(8, 3, 8, 8))  # running statistics that are no identity
    return block


class AttentionAllOps(nn.Module):
    def forward(self, q, k, v):
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = F.elu(y) + F.softplus(y) - F.leaky_relu(y, 0.1) + F.hardswish(y)
        y = F.gelu(y, approximate="tanh") + F.log_softmax(y, dim=1).exp().pow(2)
        y = y + torch.arange(y.shape[-1]) + torch.einsum("bhtd,bhsd->bht", q, k).unsqueeze(-1) ** 2
        values, indices = y.max(dim=-1)
        return torch.cat([y, values.unsqueeze(-1)], dim=-1), indices, y[..., [0, 2]], y.flatten(1).norm(dim=1)


CASES = {
    "mlp": (mlp, lambda: (torch.randn(6, 12),)),
    "layer_norm_gelu": (lambda: nn.Sequential(nn.LayerNorm(16), nn.GELU()), lambda: (torch.randn(4, 16),)),
    "conv_block": (conv_block, lambda: (torch.randn(2, 3, 8, 8),)),
    "causal_mix": (CausalMix, lambda: (torch.randn(2, 12, 16),)),
    "nested": (Nested, lambda: (torch.randn(4, 8), {"shift": torch.randn(4, 8)})),
    "encoder_layer": (
        lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True),
        lambda: (torch.randn(2, 10, 16),),
    ),
    "embedding": (Embed, lambda: (torch.randint(3, 40, (2, 7)), torch.rand(2, 7) > 0.3)),
    "in_place": (Inplace, lambda: (torch.randn(4, 8),)),
    "operators": (AttentionAllOps, lambda: tuple(torch.randn(2, 2, 5, 6) for _ in range(3))),
    "bfloat16": (lambda: mlp().bfloat16(), lambda: (torch.randn(6, 12).bfloat16(),)),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())

# What these modules really do for nothing: the bias of causal_mix hides what its mask has hidden already, and the
# linear layer before a Hardtanh stays within its bounds on ordinary inputs.
REDUNDANT = {
    CASES["causal_mix"]: {"add changes nothing on ordinary inputs": "warning"},
    CASES["mlp"]: {"hardtanh changes nothing on ordinary inputs": "info"},
    CASES["bfloat16"]: {"hardtanh changes nothing on ordinary inputs": "info"},
}


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in values for tensor in tensors(item)]


def capture(case):
    torch.manual_seed(3)
    model, inputs = case[0]().eval(), case[1]()
    source, names = problem_from_module(model, inputs, "Example")
    return model, inputs, source, names


@cases
def test_the_file_reproduces_the_module_on_other_data(case):
    model, _, source, names = capture(case)
    module = _runtime.load_reference(source, {})
    twin = _runtime.make_model(module, _runtime.make_init_inputs(module))
    assert names == {name: name for name in twin.state_dict()}
    _runtime.randomise_parameters(model, 5)
    twin.load_state_dict(model.state_dict())
    fresh = case[1]()
    with torch.no_grad():
        expected = tensors(model(*fresh))
        outputs = _runtime.run_forward(twin, tensors(fresh))
    assert [o.shape for o in outputs] == [e.shape for e in expected]
    for output, wanted in zip(outputs, expected, strict=True):
        torch.testing.assert_close(output, wanted)


@cases
def test_the_file_is_a_sound_problem(case):
    _, inputs, source, _ = capture(case)
    problem = parse_problem(source, id="file/x", suite="file", level=0, name="x")
    assert problem.meta.category == "captured"
    assert problem.meta.title == "Example"
    findings = lint(problem, lambda entry, payload: _lint_worker.lint(payload))
    weak = {finding.message: finding.severity for finding in findings if finding.rule != "too-small"}
    assert weak == REDUNDANT.get(case, {})
    module = _runtime.load_reference(source, {})
    made = _runtime.make_inputs(module, 1)
    assert [(v.shape, v.dtype) for v in made] == [(v.shape, v.dtype) for v in tensors(inputs)]


@pytest.mark.matrix
@pytest.mark.parametrize("path", STYLES, ids=[path.stem for path in STYLES])
def test_modules_as_others_write_them_are_captured(path):
    module = _runtime.load_reference(path.read_text(encoding="utf-8"), {})
    model = _runtime.make_model(module, _runtime.make_init_inputs(module))
    source, names = problem_from_module(model, _runtime.make_inputs(module, 1), path.stem)
    captured = _runtime.load_reference(source, {})
    again = _runtime.make_model(captured, [])
    again.load_state_dict(model.state_dict())
    assert list(names.values()) == list(model.state_dict())
    inputs = _runtime.make_inputs(module, 2)
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    with torch.no_grad():
        made, wanted = _runtime.run_forward(again, tensors), _runtime.run_forward(model, inputs)
    for one, other in zip(made, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_forward_is_readable():
    _, _, source, _ = capture(CASES["encoder_layer"])
    assert "# linear1 (Linear)" in source
    assert "F.linear(" in source
    assert "F.scaled_dot_product_attention(" in source
    assert "self.self_attn.in_proj_weight" in source
    assert "torch.ops.aten" not in source
    assert "dropout(" not in source
    _, _, source, _ = capture(CASES["nested"])
    assert "self.outer['a-b'][1][0].scales[0]" in source


def test_heavy_operators_dtype_and_mode_are_declared():
    for name, heavy in (("mlp", ("aten.addmm", "aten.mm")), ("conv_block", ("aten.convolution",)), ("in_place", ())):
        _, _, source, _ = capture(CASES[name])
        assert parse_problem(source, id="i", suite="s", level=0, name="n").meta.heavy_ops == heavy
    _, _, source, _ = capture(CASES["bfloat16"])
    meta = parse_problem(source, id="i", suite="s", level=0, name="n").meta
    assert (meta.dtype, meta.mode) == ("bfloat16", "eval")
    model = nn.BatchNorm1d(4)
    source, _ = problem_from_module(model, torch.randn(8, 4), "n")
    assert parse_problem(source, id="i", suite="s", level=0, name="n").meta.mode == "train"
    assert int(model.num_batches_tracked) == 0


def test_inputs_are_described_by_what_was_given():
    class Three(nn.Module):
        def forward(self, free, positive, ids, mask):
            return free + positive.log() + ids + mask

    inputs = (
        torch.randn(4, 5) * 3 + 1,
        torch.rand(4, 5) + 0.5,
        torch.tensor([[3, 4, 5, 6, 7]]),
        torch.full((4, 5), float("-inf")).triu(2),
    )
    source, _ = problem_from_module(Three(), inputs, "n")
    meta = parse_problem(source, id="i", suite="s", level=0, name="n").meta
    assert [domain.fill for domain in meta.inputs.values()] == ["normal", "uniform", "structured", "structured"]
    assert 0.5 <= meta.inputs["positive"].low < 0.7
    made = _runtime.make_inputs(_runtime.load_reference(source, {}), 3)
    assert float(made[1].min()) >= 0.5
    assert set(made[2].flatten().tolist()) <= {3, 4, 5, 6, 7}
    assert torch.equal(made[3], inputs[3])


def test_what_cannot_be_captured_is_a_usage_error():
    class Branches(nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x - 1

    class Noisy(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.calls

    class Big(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.randint(0, 2**62, (300, 1000)))

        def forward(self, x):
            return x + self.table.sum()

    with pytest.raises(UsageError, match=r"torch\.export cannot capture") as caught:
        problem_from_module(Branches(), torch.randn(3), "n")
    assert len(caught.value.message) < 500
    with pytest.raises(UsageError, match="does not reproduce"):
        problem_from_module(Noisy(), torch.randn(3), "n")
    with pytest.raises(UsageError, match="table holds 2,400,000 bytes"):
        problem_from_module(Big(), torch.randn(3), "n")
    with pytest.raises(UsageError, match="forward failed"):
        problem_from_module(nn.Linear(3, 3), torch.randn(5), "n")
    with pytest.raises(UsageError, match="complex64"):
        problem_from_module(nn.Identity(), torch.randn(5, dtype=torch.complex64), "n")


def test_capturing_leaves_the_module_and_the_process_alone():
    model = nn.BatchNorm1d(4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(1)
    expected = torch.randn(3)
    torch.manual_seed(1)
    problem_from_module(model, torch.ones(8, 4) * torch.arange(4.0), "n")
    assert torch.equal(torch.randn(3), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert torch.backends.mha.get_fastpath_enabled()


# --------------------------------------------------------------------------------------------------- module:factory

USER = """
import torch
from torch import nn

print("noise from the user's module")


class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x, index):
        return torch.tanh(self.linear(x)) * index.unsqueeze(1)


def both():
    return Mine().eval(), (torch.randn(3, 8), torch.tensor([1, 2, 3]))


def alone():
    return Mine().eval()


def broken():
    raise RuntimeError("no weights here")


def wrong():
    return 3


def dies():
    import os
    os._exit(9)
"""


@pytest.fixture
def user(tmp_path: Path) -> Path:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "mine.py").write_text(USER)
    return tmp_path


def test_a_factory_becomes_a_file_that_needs_only_torch(user, tmp_path):
    out = tmp_path / "captured.py"
    problem = capture_module("package.mine:both", None, out, workdir=user)
    assert problem == find_problem(str(out))
    assert problem.meta.title == "captured"
    assert "kernelwright" not in out.read_text()
    code = "import runpy; m = runpy.run_path('captured.py'); print(m['Model']()(*m['get_inputs']()).shape)"
    (user / "package" / "mine.py").unlink()
    run = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "torch.Size([3, 4])"


def test_shapes_may_be_given_instead(user, tmp_path):
    out = tmp_path / "out.py"
    path = user / "package" / "mine.py"
    problem = capture_module(f"{path}:alone", "float32[5, 8]:-2..2, int64[5]:1..9", out, name="Mine", workdir=user)
    assert problem.meta.title == "Mine"
    assert problem.meta.inputs["x"].model_dump() == {
        "fill": "uniform",
        "low": -2.0,
        "high": 2.0,
        "non_finite": False,
    }
    made = _runtime.make_inputs(_runtime.load_reference(problem.source, {}), 2)
    assert made[0].shape == (5, 8)
    assert 1 <= int(made[1].min()) <= int(made[1].max()) <= 9


FAILURES = [
    ("package.mine", None, UsageError, "not module:factory"),
    ("package.nothing:both", None, UsageError, "importing package.nothing failed"),
    ("nothing.py:both", None, UsageError, "no such file"),
    ("package.mine:neither", None, UsageError, "no function neither"),
    ("package.mine:broken", None, UsageError, "no weights here"),
    ("package.mine:wrong", None, UsageError, "returned int"),
    ("package.mine:alone", None, UsageError, "no example inputs"),
    ("package.mine:alone", "float31[5,8]", UsageError, "float31"),
    ("package.mine:alone", "int64[5]:9..1", UsageError, "not a range"),
    ("package.mine:dies", None, MachineError, "exit code 9"),
]


@pytest.mark.parametrize(("target", "inputs", "kind", "message"), FAILURES)
def test_what_goes_wrong_in_the_child_is_told(user, tmp_path, target, inputs, kind, message):
    out = tmp_path / "out.py"
    with pytest.raises(kind) as caught:
        capture_module(target, inputs, out, workdir=user)
    assert message in caught.value.message
    assert caught.value.hint
    assert not out.exists()


def test_the_output_folder_must_exist(tmp_path):
    with pytest.raises(UsageError, match="no such folder"):
        capture_module("a:b", None, tmp_path / "missing" / "out.py")
