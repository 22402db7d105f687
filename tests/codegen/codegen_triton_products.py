"""Products of the Triton emitter in every variant, run in the corrected interpreter: a script, as its model is."""

from __future__ import annotations

import itertools
import re
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from codegen_cases import Cases, main
from codegen_triton_cases import build, imported

from kernelwright.codegen import _products
from kernelwright.evaluator.worker.triton.patches import Builder, Handle, real

case = Cases()
SMALL = {"BLOCK_M": 32, "BLOCK_N": 32}
VARIANTS = [{"M": m, "N": n, "K": k} for m, n, k in ((67, 40, 80), (1, 1, 1), (13, 97, 31))]
ALIGNED = [{"M": m, "N": n, "K": k} for m, n, k in ((67, 40, 80), (16, 8, 24), (64, 96, 128))]


def product(
    schedule, dtype="float32", body="return F.gelu(x @ w + b)", variants=VARIANTS, batches="", shapes=("M, K", "K, N")
):
    """A product in sizes that are 1, primes and multiples of the tiles, with a bias and an activation after it."""
    half = "" if dtype == "float32" else f".to(torch.{dtype})"
    inputs = ", ".join(f"torch.randn({batches}{shape}){half}" for shape in shapes) + f", torch.randn(N){half}"
    constants = "\n".join(f"{name} = {size}" for name, size in variants[0].items())
    return build(f"# x w b\n{body}", inputs, schedule, variants, constants=constants)


def check(built, dtype, variants=VARIANTS):
    """Every variant against the reference: float32 within a few times its error, halves within 1.05 of eager's."""
    for variant in variants:
        if dtype == "float32":
            built.check(variant)
        else:
            built.check_halves(variant)


FEW = mock.Mock(return_value=SimpleNamespace(multi_processor_count=3))  # so that programs have several tiles


def every_dtype(schedule, **more):
    """The product by a schedule in each dtype. Gives the sources."""
    sources = []
    for dtype in ("float32", "bfloat16"):
        built = product({**schedule, **SMALL, "gemm": "own"}, dtype, **more)
        assert [r["kind"] for r in built.generated.report] == ["own_matmul"]
        check(built, dtype, more.get("variants", VARIANTS))
        sources.append(built.generated.source)
    return sources


@case
def products_whose_depth_is_split():
    for source in every_dtype({"splits": 4}):
        assert source.count("tl.store(parts + ") == 1 == source.count("tl.load(parts + ")
        assert "atomic" not in source
    every_dtype({"splits": 2}, batches="3, ")


@case
@mock.patch.object(torch.cuda, "get_device_properties", FEW)
def products_of_programs_that_stay():
    for source in every_dtype({"persistent": True}):
        assert "multi_processor_count" in source
    every_dtype({"persistent": True, "splits": 2}, batches="2, ")


@case
@mock.patch.object(torch.cuda, "get_device_properties", FEW)
def products_read_through_descriptors():
    for batches in ("", "2, "):
        for source in every_dtype({"descriptors": True}, variants=ALIGNED, batches=batches):
            assert source.count("tl.make_tensor_descriptor") == 2
    turned = {"body": "return x.mT @ w.mT + b", "shapes": ("K, M", "N, K"), "variants": ALIGNED[1:]}
    for source in every_dtype({"descriptors": True, "persistent": True, "splits": 2}, **turned):
        assert source.count("]).T") == 2


@case
def descriptors_are_left_out_where_rows_are_not_aligned():
    for source in every_dtype({"descriptors": True}):
        assert "descriptor" not in source


@case
def float32_in_three_products_of_tf32():
    built = product({"precision": "tf32x3", **SMALL})
    assert 'input_precision="tf32x3"' in built.generated.source
    check(built, "float32")


@case
@mock.patch.object(torch.cuda, "get_device_properties", FEW)
def bytes_are_cast_in_the_product_that_reads_them():
    inputs = "torch.randn(20, 48), torch.randint(-128, 128, ({}), dtype=torch.int8), torch.randn(56)"
    for schedule in ({}, {"precision": "ieee", "splits": 2, "persistent": True}, {"descriptors": True}):
        for shape, side in (("56, 48", "w.to(x.dtype).t()"), ("48, 56", "w.to(x.dtype)")):
            built = build(
                f"# x w s\nreturn (x @ {side}) * s", inputs.format(shape), {"gemm": "own", **SMALL, **schedule}
            )
            assert [r["kind"] for r in built.generated.report] == ["own_matmul"]
            sums = 8 * 20 * 56 * schedule.get("splits", 0)
            assert built.generated.bytes_moved == 4 * (20 * 48 + 20 * 56 + 56) + 48 * 56 + sums
            built.check()
    both = "# x w s\nm = w.to(x.dtype)\nreturn (x @ m) * s, m.exp()"
    built = build(both, inputs.format("48, 56"), {"gemm": "own", **SMALL})
    assert sorted(r["kind"] for r in built.generated.report) == ["nest", "own_matmul"]
    built.check()


@case
@mock.patch.object(torch.cuda, "get_device_properties", FEW)
def convolutions_in_every_variant():
    init = "self.w = nn.Parameter(torch.randn(11, 6, 3, 3))\nself.b = nn.Parameter(torch.randn(11))\n"
    for schedule in ({"splits": 4}, {"persistent": True}, {"precision": "tf32x3", "splits": 2, "persistent": True}):
        built = build("return F.relu(F.conv2d(x, self.w, self.b, padding=1))", "torch.randn(2, 6, 13, 17)",
                      {"conv": "own", **SMALL, **schedule}, init=init)  # fmt: skip
        assert [r["kind"] for r in built.generated.report] == ["own_conv"]
        built.check()


SCHEMES = "fp16x3", "bf16x6"


def units(scheme, body, inputs, schedule=None, variants=None, **more):
    """A candidate whose products, or convolutions, of any size are computed on matrix units by a scheme."""
    with mock.patch.multiple(_products, _SMALL=0, _LAUNCH_SECONDS=-1.0):
        chosen = {"conv" if "F.conv" in body else "gemm": scheme}
        return build(body, inputs, {**chosen, **SMALL, **(schedule or {})}, variants, **more)


def launches(built):
    """How often the candidate takes a side apart."""
    return len(re.findall(r"parts_of_rows\w*\[", built.generated.source))


@case
@mock.patch.object(torch.cuda, "get_device_properties", FEW)
def products_on_matrix_units():
    constants = "\n".join(f"{name} = {size}" for name, size in VARIANTS[0].items())
    for scheme, (body, left, right, batches, schedule) in itertools.product(SCHEMES, (
        ("x @ w", "M, K", "K, N", "", {}),
        ("x.mT @ w.mT", "K, M", "N, K", "3, ", {"persistent": True, "splits": 2, "BLOCK_K": 16}),
    )):  # fmt: skip
        inputs = f"torch.randn({batches}{left}), torch.randn({batches}{right}), torch.randn(N)"
        built = units(scheme, f"# x w b\nreturn F.gelu({body} + b)", inputs, schedule, VARIANTS, constants=constants)
        assert [r["kind"] for r in built.generated.report] == ["own_matmul"]
        assert f"x{built.generated.source.count('tl.dot(')}" == scheme[-2:]
        assert launches(built) == 2
        check(built, "float32")


@case
def sides_are_taken_apart_once_for_all_products_that_read_them():
    forward = "# x v w\nreturn (x @ v).relu(), (x @ w).tanh(), (w @ x[0]).exp()"
    for scheme in SCHEMES:
        built = units(scheme, forward, "torch.randn(3, 40, 70), torch.randn(70, 40) / 8, torch.randn(70, 40) / 8")
        assert launches(built) == 5, "x, v, w from the right, w from the left, x[0]"
        assert built.generated.source.count("def parts_of_rows") == 4, "v and w lie alike"
        built.check()


@case
def a_side_that_all_products_of_a_batch_share_is_taken_apart_as_one():
    shared = "# x w\nreturn torch.bmm(w.expand(3, 50, 70), x).relu()"
    heads = "# x w\nh = x.view(2, 40, 3, 24).transpose(1, 2)\nreturn (h @ w.expand(2, 3, 24, 50)).relu()"
    for scheme, parts in zip(
        SCHEMES, ("2, 50, 128), dtype=torch.float16", "3, 50, 128), dtype=torch.bfloat16"), strict=True
    ):
        built = units(scheme, shared, "torch.randn(3, 70, 40), torch.randn(50, 70)")
        assert f"torch.empty(({parts}" in built.generated.source
        built.check()
        units(scheme, heads, "torch.randn(2, 40, 72), torch.randn(3, 24, 50)").check()


@case
def infinity_in_a_product_on_matrix_units_is_what_it_is_in_float32():
    for scheme in SCHEMES:
        built = units(scheme, "# x w\nreturn (x @ w) * 1.0", "torch.randn(20, 40), torch.rand(40, 30) + 0.5")
        reference, candidate, (x, w) = built.models({})
        x[3, 5], x[4, 6], x[5, 7], x[6] = torch.inf, -torch.inf, torch.nan, torch.finfo(torch.float32).max
        w = w.round()  # parts that are zero
        w[0] = 0.25
        x[6, 1:] = 0
        torch.testing.assert_close(candidate(x, w), reference(x, w), equal_nan=True)
        assert candidate(x, w)[3].isinf().all()
        assert candidate(x, w)[6].isfinite().all(), "what rounds to infinity is not infinite"


@case
def rows_of_any_size_have_the_digits_of_float32():
    """Rows and columns from 2^-96 to 2^96, rows of zeros, and results beyond both ends of float32's range."""
    for scheme in SCHEMES:
        built = units(scheme, "# x w\nreturn (x @ w) * 1.0", "torch.randn(61, 40), torch.randn(40, 61)")
        reference, candidate, (x, w) = built.models({})
        sizes = torch.exp2(torch.arange(61) * 3.2 - 96)
        x, w = x * sizes[:, None], w * sizes.flip(0)
        x[7], w[:, 9] = 0, 0
        true, found = reference(x.double(), w.double()), candidate(x, w).double()
        finite = (true.abs() < 1e38) & (true.abs() > 1e-36)
        assert finite.float().mean() > 0.7
        size = x.double().abs() @ w.double().abs()
        assert ((found - true).abs() / size)[finite].max() < 2.0**-22
        assert not found[7].any()
        assert not found[:, 9].any()
        assert not found[true.abs() > 1e39].isfinite().any()


def cut_off(self, left, right, before, *_):
    """A product as matrix units add it up: sixteen terms at once, and what float32 has no digits for is cut off."""
    total, (a, b) = before.data.astype(np.float64), (real(side).astype(np.float64) for side in (left, right))
    for start in range(0, a.shape[-1], 16):
        mantissa, exponent = np.frexp(total + a[:, start : start + 16] @ b[start : start + 16])
        total = np.ldexp(np.trunc(np.ldexp(mantissa, 24)), exponent - 24)
    return Handle(total.astype(np.float32), before.dtype.scalar)


@case
def sums_do_not_stay_in_matrix_units():
    """With units that cut off, a deep product is as exact as float32's. One sum over the whole depth would not be."""
    last = "acc += tl.dot(left_first, right_first, block)"
    for scheme in SCHEMES:
        built = units(scheme, "# x w\nreturn (x @ w) * 1.0", "torch.randn(32, 4096), torch.randn(4096, 32)")
        reference, candidate, (x, w) = built.models({})
        true = reference(x.double(), w.double())
        assert built.generated.source.count(last) == 1
        built.module = imported(
            built.generated.source.replace(last, "acc = tl.dot(left_first, right_first, acc) + block")
        )
        _, chained, _ = built.models({})
        with mock.patch.object(Builder, "create_dot", cut_off):
            found, worse = ((one(x, w) - true).norm() / true.norm() for one in (candidate, chained))
        assert found < 2.0**-22
        assert worse > 2.0**-19


@case
@mock.patch.object(torch.cuda, "get_device_properties", FEW)
def convolutions_on_matrix_units():
    """Of every rank, with borders, gaps and steps; patches that do not overlap; and what follows in the same kernel."""
    init = "self.w = nn.Parameter(torch.randn({}))\nself.b = nn.Parameter(torch.randn(11))\n"
    called = "return F.relu(F.conv{}d(x, self.w, self.b{}))"
    images = (
        (1, "2, 40, 50", "11, 40, 5", ", padding=6, dilation=3"),
        (2, "2, 6, 13, 17", "11, 6, 3, 3", ", padding=1"),
        (2, "2, 3, 16, 24", "11, 3, 8, 8", ", stride=8"),
        (1, "2, 70, 15", "11, 70, 2", ", stride=3"),
        (3, "2, 33, 5, 6, 7", "11, 33, 3, 3, 2", ", padding=(1, 0, 1), stride=(1, 1, 2)"),
        (2, "3, 35, 13, 17", "11, 35, 2, 3", ", padding=(0, 2), stride=(2, 1), dilation=(1, 2)"),
        (2, "2, 20, 9, 8", "11, 20, 1, 1", ""),
    )
    for number, (rank, image, filters, how) in enumerate((*images, *images[1:3])):  # these two by both schemes
        scheme = SCHEMES[number % 2]
        schedule = {"splits": 2, "persistent": True, "BLOCK_K": 16} if number % 3 == 0 else {}
        text = called.format(rank, how)
        built = units(scheme, text, f"torch.randn({image})", schedule, init=init.format(filters))
        assert [r["kind"] for r in built.generated.report] == ["own_conv"]
        assert launches(built) == 2
        built.check()
        reference, candidate, (x,) = built.models({})
        sized = x * torch.exp2(torch.tensor([40.0, -30.0, 9.0]))[: x.shape[0]].reshape(-1, *[1] * (x.dim() - 1))
        true, found = reference(sized).flatten(1), candidate(sized).flatten(1)
        assert ((found - true).abs().amax(1) <= 1e-5 * true.abs().amax(1)).all(), "each image has its own scale"


@case
def memory_in_another_shape_is_read_as_a_matrix():
    """As ``einsum`` writes it: rows of several dims as one, which no index of those dims stands for."""
    inputs = "torch.randn(4, 5, 6, 20), torch.randn(20, 30)"
    for schedule in ({"gemm": "own", **SMALL}, {"gemm": "own", "precision": "ieee", **SMALL}):
        built = build('# x w\nreturn torch.einsum("bijl,lk->bijk", x, w)', inputs, schedule)
        assert [r["kind"] for r in built.generated.report] == ["own_matmul"]
        built.check()
    built = units("fp16x3", '# x w\nreturn torch.einsum("bijl,lk->bijk", x, w).relu()', inputs)
    assert launches(built) == 2
    built.check()


@case
def a_convolution_of_groups_stays_the_librarys():
    init = "self.w = nn.Parameter(torch.randn(12, 4, 3, 3))\nself.v = nn.Parameter(torch.randn(10, 12, 3, 3))"
    forward = "return F.conv2d(F.conv2d(x, self.w, groups=2), self.v).relu()"
    built = units("fp16x3", forward, "torch.randn(2, 8, 9, 9)", init=init)
    assert [r["kind"] for r in built.generated.report] == ["torch", "own_conv"]
    built.check()


if __name__ == "__main__":
    main(case)
