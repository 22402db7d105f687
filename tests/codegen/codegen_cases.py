"""Cases that run in a script of their own: what runs them, and those that the emitters of all GPU kernels share."""

from __future__ import annotations

import functools
import json
import sys
import traceback

import torch
from conftest import Built, problem
from test_codegen_operators import BINARY, LOSSES, POOLS, REDUCTIONS, SPECIAL, UNARY, VIEWS

from kernelwright.datasets import load_suite


class Cases(dict):
    """Functions by their names. Calling it adds one, so that it decorates them."""

    def __call__(self, function):
        self[function.__name__] = function
        return function


shared = Cases()


def main(cases):
    """Run the cases that the script's arguments name, all of them without arguments.

    Prints one JSON object: for each name what the function returned, "ok" for nothing, or what went wrong.
    """
    results = {}
    for name in sys.argv[1:] or cases:
        torch.manual_seed(0)
        try:
            with torch.no_grad():
                results[name] = cases[name]() or "ok"
        except Exception as error:  # noqa: BLE001 - reported by name to the test that reads it
            results[name] = traceback.format_exc()[-1500:] + getattr(error, "log", "")[:1500]
    print(json.dumps(results))


class Emitted(Built):
    """A candidate of a backend. A subclass names schedules: ``small`` blocks, and blocks of running sums, ``scans``."""

    @classmethod
    def build(cls, forward, inputs, schedule=None, variants=None, **more):
        return cls(problem(forward, inputs, **more), schedule or {}, variants)

    def in_torch(self):
        """The operators that stay torch calls."""
        return [entry["name"] for entry in self.generated.report if entry["kind"] == "torch"]


def cases_with(backend):
    """The cases that all backends share, and the built-in problems, for one subclass of ``Emitted``."""
    problems = {item.id.removeprefix("kernelwright/"): item for item in load_suite("kernelwright")}
    built_in = {name: functools.partial(_built_in, item) for name, item in problems.items()}
    return Cases({name: functools.partial(function, backend) for name, function in {**shared, **built_in}.items()})


def _built_in(item, backend):
    variants = item.meta.variants_for("interpreter")
    built = backend(item.source, {}, [*item.meta.variants_for("gpu")[1:], *variants])
    assert [r for r in built.generated.report if r["kind"] != "torch"]
    for variant in variants:
        built.check(variant)


def returned(expressions):
    return "return (" + ", ".join(expressions) + ",)"


# ------------------------------------------------------------------------------------------------ pointwise


@shared
def unary_operators(backend):
    built = backend.build(returned(UNARY), "torch.randn(7, 37) * 2")
    assert not built.in_torch()
    built.check()
    torch.manual_seed(1)
    built.check(inputs=[torch.randn(7, 37) * 1e-4])


@shared
def bytes_are_read_and_cast(backend):
    names = ["x.to(s.dtype) * s", "y.to(torch.int64) + 1", "x.to(torch.bool) & (y.to(torch.int32) > 3)",
             "x.to(s.dtype).sum(1)", "x.t().to(s.dtype) - 1"]  # fmt: skip
    inputs = "torch.randint(-128, 128, (5, 70), dtype=torch.int8), torch.randint(0, 256, (5, 70), dtype=torch.uint8)"
    built = backend.build("# x y s\n" + returned(names), f"{inputs}, torch.randn(5, 1)")
    assert not built.in_torch()
    built.check()
    kept = backend.build("# x y\nreturn x.t() + y.t(), x.to(torch.int32) * 2, y[1:, ::2], x.mT.contiguous()", inputs)
    assert set(kept.in_torch()) >= {"add.Tensor"}, "arithmetic of bytes wraps around"
    kept.check()


@shared
def special_values(backend):
    names = ["x.exp()", "x.relu()", "x.tanh()", "x.sigmoid()", "x.clamp(-1, 1)", "torch.erf(x)", "x.log()", "x.sqrt()",
             "F.silu(x)", "x.abs()", "F.leaky_relu(x)", "F.hardtanh(x)", "F.softplus(x)", "F.mish(x)",
             "torch.maximum(x, -x)"]  # fmt: skip
    reference, candidate, _ = backend.build(returned(names), "torch.randn(5, 12)").models({})
    x = torch.tensor(SPECIAL).repeat(5, 1)
    for mine, true in zip(candidate(x), reference(x), strict=True):
        torch.testing.assert_close(mine, true, rtol=2e-6, atol=1e-7, equal_nan=True)


@shared
def binary_operators_and_broadcasting(backend):
    init = "self.w = nn.Parameter(torch.tensor([0.3]))"
    inputs = "torch.randn(6, 21), torch.randn(6, 21), torch.randn(21)"
    backend.build("# x y z\n" + returned(BINARY), inputs, init=init).check()


@shared
def axes_of_one_element_are_reduced(backend):
    """As in a largest value that is kept as a column, and centred over that column."""
    body = "m = x.amax(1, keepdim=True)\nreturn F.gelu(m - m.mean(1, keepdim=True)), m.logsumexp(1)"
    backend.build(body, "torch.randn(9, 20)").check()
    for rows in ("whole", "blocks"):
        backend.build("return x[:1, :1].sum(), x[:1, :1].softmax(1)", "torch.randn(9, 20)", {"rows": rows}).check()


@shared
def views(backend):
    backend.build(returned(VIEWS), "torch.randn(4, 6, 10)").check()


@shared
def integers_and_masks(backend):
    forward = (
        "# x m i\nreturn (i * 2 + 1, (i % 5).float() * x, x.masked_fill(m, 0.0), m & (x > 0), i.sum(-1), x[i[0] % 3])"
    )
    backend.build(forward, "torch.randn(6, 9), torch.rand(6, 9) > 0.5, torch.randint(-9, 9, (6, 9))").check()


# ------------------------------------------------------------------------------------------------ reductions


@shared
def reductions(backend, schedule=None):
    built = backend.build(returned(REDUCTIONS), "torch.randn(5, 9, 33)", schedule)
    assert not built.in_torch()
    built.check()


@shared
def reductions_block_by_block(backend):
    reductions(backend, backend.small)


def reductions_of_long_rows(backend, schedule):
    """Rows that are longer than a block, with and without values that are not finite."""
    forward = returned(["x.softmax(-1)", "x.argmax(-1)", "x.amin(-1)", "x.var(-1)", "F.layer_norm(x, (2500,))",
                        "x.prod(-1)", "x.logsumexp(1)", "(x > 3).any(-1)", "x.cumsum(-1)", "x.mean()"])  # fmt: skip
    built = backend.build(forward, "torch.randn(3, 2500) + 1", schedule)
    built.check()
    x = torch.randn(3, 2500)
    x[0, 2100], x[1, 7], x[1, 1900], x[2] = float("nan"), float("inf"), float("nan"), -float("inf")
    reference, candidate, _ = built.models({})
    assert torch.equal(candidate(x)[1], reference(x)[1])


@shared
def reductions_propagate_nan(backend):
    forward = "return x.amax(-1), x.amin(0), x.argmax(-1), x.argmin(1), x.amax(), x.softmax(-1), x.max(1).values"
    x = torch.randn(3, 4, 17)
    x[1, 2, 5], x[0, 0, 3], x[2, 1, :] = float("nan"), float("inf"), -float("inf")
    for schedule in ({}, backend.small):
        backend.build(forward, "torch.randn(3, 4, 17)", schedule).check(inputs=[x])


@shared
def normalisations_on_hard_data(backend):
    forward = (
        "return F.layer_norm(x, (x.shape[-1],)), F.softmax(x, -1), F.log_softmax(x, 1), "
        "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)"
    )
    for schedule in ({}, backend.small):
        built = backend.build(forward, "torch.randn(4, 11, 65)", schedule)
        for x in (torch.randn(4, 11, 65) + 1000, torch.randn(4, 11, 65) * 1e4, torch.full((4, 11, 65), 3.0)):
            built.check(inputs=[x])


@shared
def losses(backend):
    inputs = "torch.randn(37, 19), torch.randn(37, 19), torch.randint(0, 19, (37,))"
    built = backend.build("# x y t\n" + returned(LOSSES), inputs)
    assert not built.in_torch()
    built.check()


@shared
def running_sums_and_products(backend):
    forward = returned(["x.cumsum(-1)", "x.cumsum(0)", "x.cumsum(1)", "(x * 0.1 + 1).cumprod(-1)",
                        "(x * 0.1 + 1).cumprod(1)"])  # fmt: skip
    for schedule in ({}, backend.scans):
        built = backend.build(forward, "torch.randn(3, 70, 33)", schedule)
        assert not built.in_torch()
        built.check(slack=8.0)


@shared
def pooling(backend):
    built = backend.build(returned(POOLS), "torch.randn(2, 3, 12, 15)")
    assert not built.in_torch()
    built.check()
    x = torch.randn(2, 3, 12, 15)
    x[0, 1, 4, 4], x[1, 0, 0, :] = float("nan"), -float("inf")
    built.check(inputs=[x])


# ------------------------------------------------------------------------------------------------ types, shapes


def halves(backend, schedule):
    """A candidate in each half type. Their outputs are as exact as eager's."""
    forward = (
        "# x w y\nh = x @ w\nreturn (F.gelu(x) * y + 1, x.softmax(-1), F.layer_norm(x, (48,)), x.sum(0), x.amax(-1), "
        "h.relu(), x.float().mean(), x.argmax(-1), x.cumsum(-1), x > y, x + y.float())"
    )
    found = []
    for name in ("float16", "bfloat16"):
        half = f".to(torch.{name})"
        inputs = f"torch.randn(20, 48){half}, torch.randn(48, 33){half}, torch.randn(20, 48){half}"
        found.append(backend.build(forward, inputs, schedule))
        found[-1].check_halves()
    return found


@shared
def float64_is_computed_in_float64(backend):
    forward = returned(["x.exp() * 0.1", "F.gelu(x)", "x.softmax(-1)", "x.sqrt()", "x.mean()", "torch.log1p(x)",
                        "x**1.7", "F.mish(x)", "x.argmax(0)"])  # fmt: skip
    built = backend.build(forward, "torch.rand(6, 40, dtype=torch.float64)")
    reference, candidate, given = built.models({})
    for mine, true in zip(candidate(*given), reference.double()(*given), strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-14, atol=1e-15)


@shared
def shape_variants_share_one_candidate(backend):
    variants = [{"R": 7, "C": 33}, {"R": 4, "C": 2}, {"R": 3, "C": 130}]
    built = backend.build(
        "return F.layer_norm(x, (x.shape[-1],)), x.sum(0), (x @ x.mT).relu(), x.mean(), x[:, :1] / x.shape[0]",
        "torch.randn(R, C)",
        constants="R = 7\nC = 33",
        variants=variants,
    )
    for variant in variants:
        built.check(variant)
