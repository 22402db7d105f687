"""Problems that are too large are made smaller by their own constants, and say so in their names."""

from __future__ import annotations

import pytest

from kernelwright.datasets import _entries, fitted, parse_problem, parse_sizes, with_sizes
from kernelwright.datasets import runtime as _runtime
from kernelwright.datasets._sizes import resized
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
    assert module == "kernelwright.datasets._entries"
    return getattr(_entries, function)(payload)


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
    assert "none of its constants can be halved further" in fit.reason


def test_tiles_stay_whole_where_the_problem_is_not_much_too_large():
    """Kernels are often written for multiples of 32, as the problem's own sizes are."""
    source = SOURCE.replace("nn.GroupNorm(groups, features)", "nn.Identity()")
    held = 4 * (2 * 32 + 32 * 33)
    limits = {"most_flops": 1 << 40, "tile": 32, "slack": 8.0}
    fit = fitted(problem(source), here, most_bytes=held // 8 + 1, **limits)
    assert (fit.problem.id, fit.fits) == ("other/level1/gemm@batch_size=1,features=32", True)
    fit = fitted(problem(source), here, most_bytes=held // 10, **limits)
    assert (fit.problem.id, fit.fits) == ("other/level1/gemm@batch_size=1,features=8", True)
    fit = fitted(problem(source), here, most_bytes=held // 8 + 1, most_flops=1 << 40)
    assert fit.problem.id == "other/level1/gemm@batch_size=4,features=8", "in proportion, without tiles"


LAYERS = """
import torch
from torch import nn

ROWS, COLUMNS, LAYERS = 128, 64, 32

class Model(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.randn(COLUMNS, COLUMNS)) for _ in range(layers))

    def forward(self, x):
        for scale in self.scales:
            x = x @ scale
        return x

def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]

def get_init_inputs():
    return [LAYERS]
"""


@pytest.mark.parametrize(
    ("sizes", "most_bytes", "plain", "alike"),
    [
        ("512, 256, 2", 20_000, "COLUMNS=32,ROWS=32", "COLUMNS=16,ROWS=64"),
        ("48, 32, 64", 60_000, "COLUMNS=16,LAYERS=32,ROWS=24", "COLUMNS=8,ROWS=12"),
        ("48, 32, 64", 9000, "COLUMNS=8,LAYERS=16,ROWS=12", "COLUMNS=8,LAYERS=32,ROWS=12"),
    ],
    ids=["rows and columns differ", "layers are kept", "layers are halved as well, as a last resort"],
)
def test_numbers_that_differ_go_on_to_differ_and_no_layer_is_lost_where_it_fits_so(sizes, most_bytes, plain, alike):
    """A kernel that takes rows for columns would pass in sizes that are equal."""
    layers = problem(LAYERS.replace("128, 64, 32", sizes))
    limits = {"most_bytes": most_bytes, "most_flops": 1 << 40}
    assert fitted(layers, here, **limits) == (with_sizes([layers], parse_sizes(plain))[0], True, "")
    assert fitted(layers, here, **limits, alike=True) == (with_sizes([layers], parse_sizes(alike))[0], True, "")


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
    computed = SOURCE.replace("(batch_size, features)", "(1 << 12, 1 << 12)").replace(
        "[features, GROUPS]", "[1 << 12, 1 << 3]"
    )
    fit = fitted(problem(computed), here, most_bytes=1 << 20)
    assert (fit.fits, fit.problem.id) == (False, "other/level1/gemm")
    assert "none of its constants can be halved" in fit.reason
    none = computed.replace("batch_size = 2048 * 2; features = 4096", "features = 1").replace(
        "GROUPS = 64", "GROUPS = 1.0"
    )
    assert "its sizes are not constants" in fitted(problem(none), here, most_bytes=1 << 20).reason


MODULE = """
import torch
from torch import nn
from types import SimpleNamespace

TOP

class Model(nn.Module):
    def __init__(self, MADE_WITH):
        super().__init__()
        LAYERS

    def forward(self, x, y):
        RETURN

def get_inputs(TAKES):
    return [INPUTS]

def get_init_inputs():
    return [INIT]
"""


def module_of(top="", returned="return x * y", inputs="", takes="", made_with="", layers="pass", init=""):
    source = MODULE.replace("TOP", top).replace("RETURN", returned).replace("INPUTS", inputs).replace("TAKES", takes)
    return problem(source.replace("MADE_WITH", made_with).replace("LAYERS", layers).replace("INIT", init))


LINEAR = "self.net = nn.Sequential(nn.Linear(FROM), nn.ReLU(), nn.Linear(TO))"
HINGE = "torch.rand(batch_size, *input_shape), torch.randint(0, 2, (batch_size,)).float() * 2 - 1"
COUPLED = {
    "a number and a tuple": (
        module_of("batch_size = 32768\ninput_shape = (32768,)", "return (1 - x * y).clamp(min=0).mean()", HINGE),
        {"batch_size", "input_shape.0"},
    ),
    "two names": (
        module_of(
            "ROWS = 8192\nCOLUMNS = 8192", "return x * y + y.T", "torch.rand(ROWS, COLUMNS), torch.rand(1, COLUMNS)"
        ),
        {"ROWS", "COLUMNS"},
    ),
    "a list of layers": (
        module_of(
            "rows = 128\nwidths = [16384, 16384]",
            "return self.net(x) * y",
            "torch.rand(rows, widths[0]), torch.rand(1)",
            made_with="widths",
            layers=LINEAR.replace("FROM", "*widths").replace("TO", "widths[1], widths[0]"),
            init="widths",
        ),
        {"widths.0", "widths.1"},
    ),
    "a nested dict": (
        module_of(
            'CONFIG = {"data": {"batch": 4096}, "model": {"dim": 8192, "eps": 1e-5}}',
            inputs='torch.rand(CONFIG["data"]["batch"], CONFIG["model"]["dim"]), torch.rand(CONFIG["model"]["dim"])',
        ),
        {"CONFIG.data.batch", "CONFIG.model.dim"},
    ),
    "the arguments of a call": (
        module_of(
            "CONFIG = SimpleNamespace(rows=4096, shape=(64, 128))",
            inputs="torch.rand(CONFIG.rows, *CONFIG.shape), torch.rand(CONFIG.shape[1])",
        ),
        {"CONFIG.rows", "CONFIG.shape.0", "CONFIG.shape.1"},
    ),
    "default arguments": (
        module_of(inputs="torch.rand(rows, dim), torch.rand(dim)", takes="rows: int = 4096, *, dim=8192"),
        {"get_inputs.rows", "get_inputs.dim"},
    ),
    "numbers in a class": (
        module_of(
            "batch_size = 8",
            "return self.net(x) * y",
            "torch.rand(batch_size, 4096), torch.rand(1)",
            layers=LINEAR.replace("FROM", "4096, 8192").replace("TO", "8192, 1024"),
        ),
        {"batch_size", "get_inputs.4096", "Model.4096", "Model.8192", "Model.1024"},
    ),
}


@pytest.mark.parametrize(("given", "named"), COUPLED.values(), ids=COUPLED)
def test_sizes_that_hang_together_are_halved_together(given, named):
    fit = fitted(given, here, most_bytes=1 << 20)
    assert (fit.fits, fit.reason) == (True, "")
    sizes = parse_sizes(fit.problem.id.partition("@")[2])
    assert set(sizes) <= named
    module = _runtime.load_reference(fit.problem.source, {})
    model = _runtime.make_model(module, _runtime.make_init_inputs(module))
    inputs = _runtime.make_inputs(module)
    outputs = _runtime.run_forward(model, inputs)
    assert sum(tensor.nbytes for tensor in (*inputs, *model.parameters(), *outputs)) <= 1 << 20
    assert resized(given, sizes).source == fit.problem.source, "the name says how to make it again"


def test_every_variant_fits_and_a_key_of_many_dicts_is_one_size():
    configs = [({"rows": 16 * k, "dim": 4096}, {"dim": 4096}) for k in (1, 4, 8)]
    variants = [{"CONFIG": k} for k in range(3)]
    given = module_of(
        f"CONFIG = 0\nCONFIGS = {configs!r}\nPROBLEM = {{'variants': {{'cpu': {variants!r}}}}}",
        "return x * self.w + y",
        "torch.rand(CONFIGS[CONFIG][0]['rows'], CONFIGS[CONFIG][0]['dim']), torch.rand(1)",
        made_with="dim",
        layers="self.w = nn.Parameter(torch.ones(dim))",
        init="CONFIGS[CONFIG][1]['dim']",
    )
    fit = fitted(given, here, most_bytes=1 << 16)
    assert fit.fits, fit.reason
    for variant in fit.problem.meta.variants_for("cpu"):
        module = _runtime.load_reference(fit.problem.source, variant)
        model = _runtime.make_model(module, _runtime.make_init_inputs(module))
        (x, y) = _runtime.make_inputs(module)
        assert x.nbytes + _runtime.run_forward(model, [x, y])[0].nbytes <= 1 << 16
    assert set(parse_sizes(fit.problem.id.partition("@")[2])) <= {"CONFIGS.rows", "CONFIGS.dim"}


def test_a_result_on_the_way_counts_although_nothing_of_it_stays():
    """As all distances of a loss do."""
    given = module_of(
        "points = 16384", "return (x[:, None] - y[None]).abs().sum()", "torch.rand(points), torch.rand(points)"
    )
    fit = fitted(given, here, most_bytes=1 << 20, most_flops=1 << 40)
    assert fit.problem.id == "other/level1/gemm@points=1024"


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
    with pytest.raises(UsageError, match="batch_siz is neither a setting nor a constant of these problems") as error:
        with_sizes([problem()], {"batch_siz": 16})
    assert "batch_size" in error.value.hint
    with pytest.raises(UsageError, match="nor a constant"):
        with_sizes([], {"batch_size": 16})
