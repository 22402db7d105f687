"""Triton kernels of operators that move, pick or gather elements, run in the corrected interpreter: a script.

Prints one JSON object: the name of each case, and "ok" or what went wrong.
"""

from __future__ import annotations

from unittest import mock

import torch
from codegen_cases import Cases, main, returned
from codegen_triton_cases import build

from kernelwright.codegen import _triton_tiles

case = Cases()
NAN, INF = float("nan"), float("inf")
LOOKED_UP = "torch.randn(40, 19), torch.randint(0, 40, (70,)), torch.tensor([0, 0, 5, 5, 70]), torch.randn(70)"
IMAGES = "torch.randn(2, 3, 11, 13)"


def kernels(forward, inputs, count=None, slack=4.0, **more):
    """A right candidate, nothing of which is left to torch, with so many kernels."""
    built = build(forward, inputs, **more)
    assert not built.in_torch(), built.generated.report
    launches = sum(entry.get("launches", 0) for entry in built.generated.report)
    assert count is None or launches == count, (launches, built.generated.report)
    built.check(slack=slack)
    return built


# ------------------------------------------------------------------------------------------------ side by side


@case
def tensors_side_by_side_fuse_with_what_is_around_them():
    kernels("return torch.cat([x.flip(1) * 2, x, x[:, :3].exp()], 1).relu()", "torch.randn(4, 6, 10)", 1)
    kernels("return torch.cat([x.flip(1) * 2, x], 2).softmax(-1)", "torch.randn(4, 6, 10)", 1)
    kernels(returned(["torch.stack([x, x * 2, x.exp()], 1)", "torch.cat([x[:, :0], x[:, :1], x[:, 1:3]], 1)",
                      "torch.cat([x.cos(), x])", "torch.cat([torch.empty(0), x.sum((1, 2))])",
                      "torch.cat([torch.cat([x, x[:, :1]], 1), x], 1)"]), "torch.randn(4, 6, 10)")  # fmt: skip


@case
def borders_and_turns_are_index_maps():
    kernels(returned(["x.flip(1).reshape(4, 60) + 1", "x.flip(2).view(-1)", "x.roll((1, -2), (0, 2)).sum(1)",
                      "x.roll(0, 1)", "x.reshape(4, 2, 3, 10).flip(2, 3).permute(0, 3, 1, 2) * 2",
                      "x.repeat_interleave(3, 1) + 1", "x.repeat_interleave(2)"]), "torch.randn(4, 6, 10)")  # fmt: skip
    kernels(returned(["F.pad(x, (1, 2))", "F.pad(x * 2, (1, 2, 3, 0), value=-1.5).relu()", "F.pad(x, (-1, 2, 0, -2))",
                      "F.pad(x, (1, 1), value=float('inf'))", "F.pad(x, (3, 2), mode='reflect')",
                      "F.pad(x, (3, 2, 1, 2), mode='reflect')", "F.pad(x, (0, 2, 1, 2), mode='replicate')",
                      "F.pad(x, (3, 2), mode='circular').exp()"]), "torch.randn(4, 6, 10)")  # fmt: skip


@case
def parts_have_other_sizes_in_other_variants():
    variants = [{"R": 5, "C": 7}, {"R": 2, "C": 3}, {"R": 3, "C": 40}]
    forward = "return torch.cat([x, x[:, :1] * 2], 1).sum(1), F.pad(x, (1, 0, 2, 1)), x.flip(0).roll(1, 1) + x"
    built = build(forward, "torch.randn(R, C)", constants="R = 5\nC = 7", variants=variants)
    assert not built.in_torch()
    for variant in variants:
        built.check(variant)


@case
def heads_are_rotated_in_one_kernel_beside_that_of_the_angles():
    forward = """# x y
        h = x.view(2, 7, 3, 8).transpose(1, 2)
        a, b = h.chunk(2, -1)
        c, s = y.cos(), y.sin()
        return torch.cat([a * c - b * s, b * c + a * s], -1).transpose(1, 2).reshape(2, 7, 24)"""
    kernels("\n".join(map(str.strip, forward.splitlines())), "torch.randn(2, 7, 24), torch.randn(7, 4)", 2)


@case
def what_takes_long_is_computed_once_for_many_readers():
    """As cosines of a table that every row reads: the table is written, where there is much to read it."""
    forward = "# x t\nreturn x * t.cos()"
    kernels(forward, "torch.randn(8, 5), torch.randn(5)", 1)
    built = build(forward, "torch.randn(3000, 100), torch.randn(100)")
    assert len(built.generated.report) == 2


@case
def loops_are_cut_where_a_view_needs_it():
    kernels("# x p\nreturn F.layer_norm(x.flatten(2).transpose(1, 2) + p, (5,))",
            "torch.randn(2, 5, 3, 4), torch.randn(12, 5)", 1)  # fmt: skip


@case
def logic_of_masks():
    kernels("a, b = x > 0, x < 1\nreturn a | b, a & b, a ^ b, torch.where((x > 1) | (x < -1), x, 0.0)",
            "torch.randn(5, 33)", 1)  # fmt: skip


# ------------------------------------------------------------------------------------------------ windows, resampling


@case
def images_are_resampled():
    one = "F.interpolate(x, scale_factor=2, mode='bilinear')"
    kernels(f"return {one}.relu()", IMAGES, 1)
    kernels(returned(["F.interpolate(x, scale_factor=1.7, mode='bilinear')", "F.interpolate(x[:, 1:], size=(5, 31))",
                      "F.interpolate(x, scale_factor=2, mode='bilinear', align_corners=True)",
                      "F.interpolate(x, size=(1, 1), mode='bilinear', align_corners=True)",
                      "F.interpolate(x.relu(), scale_factor=2.3)"]), IMAGES)  # fmt: skip
    kernels(f"return {one}, F.interpolate(x, scale_factor=3)", "torch.randn(1, 2, 1, 7)")


@case
def bins_of_different_sizes():
    texts = [
        "F.adaptive_avg_pool2d(x, (7, 5))",
        "F.adaptive_avg_pool2d(x, (20, 1))",
        "F.adaptive_avg_pool2d(x, (4, 13))",
    ]
    for text in texts:
        kernels(f"return {text}", IMAGES, 1)
    kernels(f"return {texts[0]}", "torch.randn(1, 2, 1, 7)", 1)


@case
def short_windows_fuse():
    kernels("return F.local_response_norm(x, 5, 0.5, 0.75, 1.0)", IMAGES, 1)
    kernels("return F.avg_pool2d(x.relu(), 3, 2, 1, count_include_pad=False).sigmoid().sum((2, 3))", IMAGES, 1)
    kernels("return F.max_pool2d(x * 2, 3, 2, 1, dilation=2) + 1", IMAGES, 1)


# ------------------------------------------------------------------------------------------------ by index


@case
def searches_are_bisections():
    values = (
        "torch.cat([torch.randn(40), torch.tensor([float('nan'), float('inf'), -float('inf'), -1, 0.5, 3.0, 4.0])])"
    )
    forward = "# s v\n" + returned(["torch.searchsorted(s, v)", "torch.searchsorted(s, v, right=True)",
                                    "torch.bucketize(v, s, right=True, out_int32=True) * 2"])  # fmt: skip
    kernels(forward, f"torch.tensor([-2.0, -1, -1, 0, 0.5, 0.5, 0.5, 3]), {values}.view(1, 47)", 1)
    kernels(forward, "torch.tensor([0, 0, 3, 5, 5, 9]), torch.arange(-2, 12)", 1)


@case
def sums_by_index():
    kernels("# x t o w\nreturn x.new_zeros(40, 19).index_add(0, t, w[:, None] * x[t])", LOOKED_UP, 1)
    kernels("# x t o w\n" + returned(["x.index_add(0, t, x[t] * 2, alpha=3)", "x.T.index_add(1, t, x[t].T).relu()",
                                      "x.new_zeros(50, 19).scatter_add(0, t[:38].reshape(2, 19), x[:2])",
                                      "x.scatter_add(1, t.new_ones(40, 6), x[:, 3:9])", "(x * 2).index_add(0, t, x[t])",
                                      "x.new_full((5, 6), float('inf')).index_add(0, o % 5, x[:5, :6])",
                                      "w.new_zeros(3).index_add(0, t[:1].expand(7) * 0, w[:1].expand(7))"]),
            LOOKED_UP)  # fmt: skip


@case
def nothing_is_written_beyond_the_end():
    forward = "# x t\nreturn x.index_add(0, t, x[:4]), t.new_zeros(9).scatter_add(0, t, torch.ones_like(t))"
    built = kernels(forward, "torch.randn(9, 6), torch.arange(4)")
    _, candidate, (x, _) = built.models({})
    rows, counts = candidate(x, torch.tensor([9, -1, 2, 9]))
    wanted = x.clone()
    wanted[2] *= 2
    assert torch.equal(rows, wanted)
    assert counts.tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0]


@case
def counts():
    forward = returned(["x.new_zeros(9, 11).scatter_add(1, x, torch.ones_like(x))",
                        "(x[:, :11] * 0 + 2).scatter_add(1, x, torch.ones_like(x))",
                        "x.float().new_ones(9, 11).scatter_add(1, x, torch.ones(9, 3000))"])  # fmt: skip
    for schedule in ({}, {"BLOCK": 256}):
        built = kernels(forward, "torch.randint(0, 11, (9, 3000))", schedule=schedule)
        assert "tl.histogram" in built.generated.source


@case
def segments_are_added_up_in_order():
    kernels("# x t o w\n" + returned(["torch.segment_reduce(x[t], 'sum', offsets=o)",
                                      "torch.segment_reduce(x[t], 'mean', offsets=o)",
                                      "F.embedding_bag(t, x, o, mode='sum', include_last_offset=True)",
                                      "F.embedding_bag(t, x, o[:4], mode='mean')",
                                      "F.embedding_bag(t, x, o, mode='sum', per_sample_weights=w, "
                                      "include_last_offset=True)", "F.embedding_bag(t, x, o[:4], padding_idx=3)",
                                      "F.embedding_bag(t, x, o[:4], mode='mean', padding_idx=-3)"]),
            LOOKED_UP.replace("torch.randint(0, 40", "torch.randint(30, 40"))  # fmt: skip
    built = build("# x o\nreturn torch.segment_reduce(x, 'sum', offsets=o)",
                  "torch.randn(3000, 83), torch.tensor([0, 2500, 2500, 3000])")  # fmt: skip
    _, candidate, given = built.models({})
    assert torch.equal(candidate(*given), candidate(*given))
    built.check(slack=1.0)


@case
def a_product_with_sparse_rows_is_a_sum_of_segments():
    lines = ["# v c o d", "r = torch.searchsorted(o, torch.arange(c.numel()), right=True) - 1", "z = d.new_zeros(4, 9)"]
    inputs = "torch.randn(30), torch.randint(-7, 7, (30,)), torch.tensor([0, 0, 11, 11, 30]), torch.randn(7, 9)"
    for text in ("v[:, None] * d[c]", "d[c]", "d[c] * v[:, None]"):
        built = kernels("\n".join([*lines, f"return z.index_add(0, r, {text})"]), inputs, 1)
        assert "atomic" not in built.generated.source
    for text in ("z.index_add(0, r, v[:, None] * d[c].abs())", "z.index_add(0, r, v[:, None].expand(-1, 9) * d[c])",
                 "d.index_add(0, r, d[c])"):  # fmt: skip
        kernels("\n".join([*lines, f"return {text}"]), inputs)


# ------------------------------------------------------------------------------------------------ along a dim


@case
def running_extremes():
    texts = ["torch.cummax(x, 1).values", "torch.cummax(x, -1).indices", "torch.cummin(x, 0).indices"]
    x = torch.randn(3, 20, 9).round(decimals=0)  # many are equal
    x[:, 15, 0], x[1, 3], x[2, :, 5] = NAN, -INF, INF
    kernels(returned(texts), "torch.randn(3, 20, 9)").check(inputs=[x])
    long = torch.tensor([[NAN if place == 1027 else place % 7.0 for place in range(1030)]])
    kernels("return tuple(torch.cummin(x, 1))", "torch.randn(1, 1030)", 1, schedule={"TILE": 1024}).check(inputs=[long])


@case
def running_sums_from_the_end():
    kernels("return x.flip(1).cumsum(1).flip(1)", "torch.randn(5, 70, 33)", 1, slack=8.0)
    for schedule in ({}, {"TILE": 1024}):
        kernels("return x.flip(-1).cumsum(-1).flip(-1)", "torch.rand(3, 1500)", 1, slack=16.0, schedule=schedule)
    kernels("return x.flip(1).cumsum(2).flip(2), x.flip(0).cumsum(0)", "torch.randn(5, 7, 33)")


@case
def the_largest_of_a_row():
    forward = "a, b = torch.topk(x, {k})\nc, d = torch.topk(x, {k}, largest=False)\nreturn a, b, c, d"
    for columns, k, schedule in ((9, 3, {}), (50, 1, {}), (16, 16, {}), (2000, 20, {"TILE": 1024})):
        built = kernels(forward.format(k=k), f"torch.randn(2, 3, {columns})", 2, schedule=schedule)
        x = torch.randn(2, 3, columns)
        x[0, 0, columns // 2], x[1, 1, 0], x[1, 2, -1] = NAN, INF, -INF
        built.check(inputs=[x])
    _, candidate, _ = build("return tuple(torch.topk(x, 4))", "torch.randn(2, 9)").models({})
    values, places = candidate(torch.tensor([[1.0, NAN, 0.0, 1.0, NAN, -0.0, 1.0, 1.0, 2.0], [0.0] * 9]))
    assert places.tolist() == [[1, 4, 8, 0], [0, 1, 2, 3]], "of equal numbers the first ones count"
    torch.testing.assert_close(values[0], torch.tensor([NAN, NAN, 2.0, 1.0]), equal_nan=True)


@case
def an_extreme_and_its_place_are_one_kernel():
    kernels("return tuple(x.min(1))", "torch.randn(5, 70, 33)", 1)
    kernels("return tuple(x.max(2))", "torch.randn(5, 70, 33)", 1)


@case
def large_tensors_are_indexed_with_64_bits():
    forward = "# x t o w\n" + returned(["torch.topk(x, 2)[0]", "torch.cummax(x, 1).indices", "x.index_add(0, t, x[t])",
                                        "F.embedding_bag(t, x, o, include_last_offset=True)",
                                        "torch.cat([x, x * 2])"])  # fmt: skip
    with mock.patch.object(_triton_tiles, "LARGE", 300):
        built = kernels(forward, LOOKED_UP.replace("(70,))", "(70,)).int()").replace("5, 70]", "5, 70]).int("))
    source = built.generated.source
    assert source.count("tl.program_id(0)") == source.count("tl.program_id(0).to(tl.int64)")


if __name__ == "__main__":
    main(case)
