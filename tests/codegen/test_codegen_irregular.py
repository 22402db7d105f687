"""Kernels that are no loop nests, against torch: several shapes, NaN, equal numbers, empty segments."""

from __future__ import annotations

import pytest
import torch

NAN = float("nan")
EXTREMES = [
    "torch.cummax(x, 1).values",
    "torch.cummax(x, -1).indices",
    "torch.cummin(x, 0).indices",
    "torch.cummin(x, 2).values",
    "torch.cummax(x, 0).values.exp()",
]
LOOKED_UP = "torch.randn(40, 19), torch.randint(0, 40, (70,)), torch.tensor([0, 0, 5, 5, 69]), torch.randn(70)"


def generated(built):
    """Asserts that nothing but views stays in torch."""
    kept = [step for step in built.generated.report if step["kind"] == "torch"]
    assert not kept, kept
    return built


@pytest.mark.parametrize("shape", [(5, 7, 33), (1, 70, 3), (3, 1, 1)])
def test_running_extremes(build, shape):
    built = generated(build("return " + ", ".join(EXTREMES), f"torch.randn{shape}"))
    built.check()
    x = torch.randn(shape).round(decimals=0)  # many are equal
    x[:, shape[1] // 2, 0] = NAN
    built.check(inputs=[x])


@pytest.mark.parametrize(("columns", "k"), [(9, 3), (50, 1), (333, 8), (16, 16), (100, 60)])
def test_the_largest_of_a_row(build, columns, k):
    forward = f"a, b = torch.topk(x, {k})\nc, d = torch.topk(x, {k}, largest=False)\nreturn a, b, c, d"
    built = generated(build(forward, f"torch.randn(4, 3, {columns})"))
    built.check()
    x = torch.randn(4, 3, columns)
    x[0, 0, columns // 2], x[1, 1, 0], x[2, 2, -1] = NAN, float("inf"), -float("inf")
    built.check(inputs=[x])


def test_the_largest_without_their_places(build):
    generated(build("return torch.topk(x, 5).values * 2", "torch.randn(7, 130)")).check()


def test_more_of_a_row_than_a_list_is_good_for_stay_in_torch(build):
    built = build("return torch.topk(x, 200).values", "torch.randn(3, 500)")
    assert {step["name"] for step in built.generated.report if step["kind"] == "torch"} == {"topk.default"}
    built.check()


BY_INDEX = [
    "torch.segment_reduce(x[t], 'sum', offsets=o)",
    "torch.segment_reduce(x[t], 'mean', offsets=o)",
    "F.embedding_bag(t, x, o, mode='sum', include_last_offset=True)",
    "F.embedding_bag(t, x, o[:4], mode='mean')",
    "F.embedding_bag(t, x, o, mode='sum', per_sample_weights=w, include_last_offset=True)",
    "x.index_add(0, t, x[t] * 2, alpha=3)",
    "x.new_zeros(40, 19).index_add(0, t, x[t])",
    "x.T.index_add(1, t, x[t].T)",
    "x.new_zeros(50, 19).scatter_add(0, t[:38].reshape(2, 19), x[:2])",
    "x.scatter_add(1, t.new_ones(40, 6), x[:, 3:9])",
    "t.new_zeros(1, 40).scatter_add(1, t[None], torch.ones_like(t[None]))",
    "x[t - 40]",
    "x.scatter(1, (t[:40] % 19)[:, None], -2.0)",
]


@pytest.mark.parametrize("text", BY_INDEX)
def test_sums_by_index(build, text):
    generated(build(f"# x t o w\nreturn {text}", LOOKED_UP)).check()


def test_nothing_is_written_beyond_the_end(build):
    """torch refuses such an index; a kernel that is called all the same leaves other memory alone."""
    forward = """# x t
        a = x.index_add(0, t, x[:4])
        b = x.scatter_add(0, t[:, None].expand(4, 6), x[:4])
        return a, b, t.new_zeros(9).scatter_add(0, t, t)"""
    built = generated(build("\n".join(map(str.strip, forward.splitlines())), "torch.randn(9, 6), torch.arange(4)"))
    built.check()
    _, candidate, (x, _) = built.models({})
    rows, elements, counts = candidate(x, torch.tensor([1 << 40, -(1 << 40), 2, 9]))
    wanted = x.clone()
    wanted[2] *= 2
    assert torch.equal(rows, wanted)
    assert torch.equal(elements, wanted)
    assert counts.tolist() == [0, 0, 2, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("value", ["float('inf')", "1e-5", "-3.0"])
def test_sums_begin_with_any_number(build, value):
    forward = f"# x t\nreturn x.new_full((5, 6), {value}).index_add(0, t, x)"
    generated(build(forward, "torch.randn(4, 6), torch.randint(0, 5, (4,))")).check()


def test_segments_that_are_long(build):
    forward = "# x o\nreturn torch.segment_reduce(x, 'sum', offsets=o)"
    built = generated(build(forward, "torch.rand(9000, 83), torch.tensor([0, 8000, 8000, 9000])"))
    built.check(slack=1.0)  # one chain of 8000 additions is wrong by more


RESAMPLED = [
    "F.interpolate(x, scale_factor=2, mode='bilinear')",
    "F.interpolate(x, scale_factor=1.7, mode='bilinear')",
    "F.interpolate(x, scale_factor=2, mode='bilinear', align_corners=True)",
    "F.interpolate(x, size=(5, 31), mode='bilinear')",
    "F.interpolate(x, size=(1, 1), mode='bilinear', align_corners=True)",
    "F.interpolate(x, scale_factor=3, mode='nearest')",
    "F.interpolate(x, size=(4, 19))",
    "F.adaptive_avg_pool2d(x, (7, 5))",
    "F.adaptive_avg_pool2d(x, (20, 1))",
]


@pytest.mark.parametrize("shape", [(2, 3, 11, 13), (1, 2, 1, 7)])
@pytest.mark.parametrize("text", RESAMPLED)
def test_resampling(build, text, shape):
    generated(build(f"return {text}", f"torch.randn{shape}")).check()


SIDE_BY_SIDE = [
    "torch.cat([x.flip(1) * 2, x, x[:, :3].exp()], 1).sum(1)",
    "torch.cat([x * 2, x]), x.flip(0, 2).softmax(-1)",
    "x.flip(1).reshape(4, 60) + 1, x.reshape(4, 2, 3, 10).flip(2, 3).permute(0, 3, 1, 2) * 2",
    "torch.stack([x, x * 2, x.exp()], 1)",
    "F.pad(x, (1, 2)), F.pad(x * 2, (1, 2, 3, 0), value=-1.5).relu(), F.pad(x, (-1, 2, 0, -2))",
    "F.local_response_norm(x[None], 5, 0.5, 0.75, 1.0)",
    "(x + 1).roll((1, -2), (0, 2)), x.repeat_interleave(3, 1) + 1",
    "(x > 0) | (x < -1), (x > 0) ^ (x < 1)",
]


@pytest.mark.parametrize("text", SIDE_BY_SIDE)
def test_tensors_side_by_side(build, text):
    generated(build(f"return {text}", "torch.randn(4, 6, 10)")).check()


def test_loops_are_cut_where_a_view_needs_it(build):
    forward = "return F.layer_norm(x.flatten(2).transpose(1, 2) + 1, (5,))"
    built = generated(build(forward, "torch.randn(2, 5, 3, 4)"))
    assert len(built.generated.report) == 1
    built.check()


def test_searches_are_bisections(build):
    forward = "# s v\nreturn torch.searchsorted(s, v), torch.bucketize(v, s, right=True, out_int32=True) * 2"
    built = generated(build(forward, "torch.tensor([-2.0, -1, -1, 0, 0.5, 0.5, 3]), torch.randn(3, 50)"))
    built.check()
    _, _, (ascending, values) = built.models({})
    values[0, :5] = torch.tensor([NAN, float("inf"), -float("inf"), 0.5, -1.0])
    built.check(inputs=[ascending, values])


def test_a_product_with_sparse_rows_is_a_sum_of_segments(build):
    forward = """# v c o d
        r = torch.searchsorted(o, torch.arange(c.numel()), right=True) - 1
        return d.new_zeros(4, 9).index_add(0, r, v[:, None] * d[c])"""
    inputs = "torch.randn(30), torch.randint(-7, 7, (30,)), torch.tensor([0, 0, 11, 11, 30]), torch.randn(7, 9)"
    built = generated(build("\n".join(map(str.strip, forward.splitlines())), inputs))
    assert [step["kind"] for step in built.generated.report] == ["nest", "routine"]
    built.check()
