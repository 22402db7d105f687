"""Triton kernels whose programs share long rows and columns, run in the corrected interpreter: a script.

Prints one JSON object: the name of each case, and "ok" or what went wrong.
"""

from __future__ import annotations

import torch
from codegen_cases import Cases, main
from codegen_triton_cases import build

case = Cases()
SMALL = {"TILE": 1024, "COLUMNS": 16}
ROWS, COLUMNS = "torch.randn(3, 9011)", "torch.randn(1003, 37)"


def shared(forward, inputs, passes, schedule=None, **more):
    """A right candidate with one nest, whose programs share rows or columns in so many passes."""
    built = build(forward, inputs, schedule or SMALL, **more)
    assert [entry["kind"] for entry in built.generated.report] == ["nest"], built.generated.report
    assert built.generated.report[0]["launches"] == passes, built.generated.report
    assert built.generated.source.count("PARTS: tl.constexpr") == passes
    built.check()
    return built


@case
def sums_of_long_rows():
    shared("return x.sum(1), x.square().mean(1)", ROWS, 2)


@case
def sums_down_columns():
    shared("# x y\nreturn (x * y).sum(0), y.mean(0) + 1", f"{COLUMNS}, {COLUMNS}", 2)


@case
def every_count_of_parts_is_right():
    for parts in (4, 16, 64):
        shared("return x.sum(0)", COLUMNS, 2, {"split": parts})
        shared("return x.sum(1)", ROWS, 2, {"split": parts})
    assert "PARTS" not in build("return x.sum(0)", COLUMNS, {"split": 1}).generated.source


@case
def elements_that_depend_on_several_passes():
    built = shared("return x.softmax(1)", ROWS, 3)
    once = 4 * 3 * 9011
    assert 4 * once < built.generated.bytes_moved < 4.1 * once, "three kernels read all elements, and one writes them"
    shared("return x.softmax(0)", COLUMNS, 3)


@case
def statistics_of_channels():
    """Rows of two loops, and values of rows beside those of elements."""
    body = "# x m v\nreturn F.batch_norm(x, None, None, training=True), torch.lerp(m, x.mean((0, 2)), 0.1)"
    built = build(body, "torch.randn(4, 5, 4001), torch.randn(5), torch.rand(5)", SMALL)
    assert "PARTS" in built.generated.source
    built.check()


@case
def elements_of_the_first_pass():
    built = build("y = x.exp()\nreturn y, y.sum(0)", COLUMNS, SMALL)
    assert built.generated.source.count("_pass1[") == 1
    built.check()


@case
def values_of_rows_in_each_element():
    for split in (1, 16):
        build("return torch.zeros_like(x) + x.mean(1, keepdim=True)", ROWS, {**SMALL, "split": split}).check()
        build("return torch.zeros_like(x) + x.mean(0, keepdim=True)", COLUMNS, {**SMALL, "split": split}).check()


@case
def columns_of_several_loops():
    shared("return x.amin((0, 2)) + x.sum((0, 2))", "torch.randn(60, 3, 17, 7)", 2)


@case
def extremes_keep_nan():
    for inputs, dim in ((ROWS, 1), (COLUMNS, 0)):
        built = build(f"return x.amax({dim}), x.amin({dim}), x.prod({dim})", inputs, SMALL)
        assert "PARTS" in built.generated.source
        x = built.models({})[2][0]
        x[-1, 7], x[1, -1], x[0, 20] = float("nan"), float("inf"), float("-inf")
        built.check(inputs=[x])


@case
def truth_and_whole_numbers():
    for inputs, dim in ((ROWS, 1), (COLUMNS, 0)):
        body = f"y = (x * 9).long()\nreturn (x > 4).any({dim}), (x > -4).all({dim}), y.sum({dim}), y.amax({dim})"
        built = build(body, inputs, SMALL)
        assert "PARTS" in built.generated.source
        built.check()


@case
def halves_and_doubles():
    for dtype in ("float16", "bfloat16"):
        built = build("return x.sum(0), x.amax(0)", f"{COLUMNS}.to(torch.{dtype})", SMALL)
        assert "PARTS" in built.generated.source
        _, candidate, (x,) = built.models({})
        total, largest = candidate(x)
        assert total.dtype == largest.dtype == x.dtype
        assert torch.equal(total, x.double().sum(0).to(x.dtype)) or (total.double() - x.double().sum(0)).abs().max() < 1
        assert torch.equal(largest, x.amax(0))
    shared("return x.double().sum(1)", ROWS, 2)


@case
def lengths_that_vary():
    sizes = [{"N": 9001, "M": 3}, {"N": 2500, "M": 1}, {"N": 5, "M": 7}]
    for inputs, body in (
        ("torch.randn(M, N)", "return x.logsumexp(1)"),
        ("torch.randn(N, M)", "return x.logsumexp(0)"),
    ):
        built = build(body, inputs, SMALL, variants=sizes, constants="N, M = 9001, 3")
        assert "PARTS" in built.generated.source
        for size in sizes:
            built.check(size)


@case
def a_product_of_the_library_is_overwritten_in_the_last_pass():
    built = build(
        "# x y\nreturn (x @ y).softmax(0)", "torch.randn(1003, 5), torch.randn(5, 37)", {**SMALL, "gemm": "library"}
    )
    assert "PARTS" in built.generated.source
    assert "(matmul, matmul, largest_parts, total_parts," in built.generated.source
    built.check()


@case
def the_same_bits_from_call_to_call():
    for inputs, dim in ((ROWS, 1), (COLUMNS, 0)):
        built = build(f"return x.sum({dim})", inputs, SMALL)
        _, candidate, (x,) = built.models({})
        first = candidate(x)
        assert all(torch.equal(first, candidate(x)) for _ in range(3))
        assert "atomic" not in built.generated.source


@case
def what_is_short_or_plentiful_is_not_shared():
    for body, inputs in (("return x.sum(1)", "torch.randn(3, 5000)"), ("return x.sum(0)", "torch.randn(300, 40)")):
        assert "PARTS" not in build(body, inputs).generated.source
    assert "PARTS" not in build("return x.sum(1)", "torch.randn(600, 9000)").generated.source
    assert "PARTS" not in build("return x.argmax(1)", "torch.randn(3, 90000)").generated.source


if __name__ == "__main__":
    main(case)
