"""Attention as one Triton kernel, run in the corrected interpreter: a script, because that takes a whole process.

Prints one JSON object: the name of each case, and "ok" or what went wrong.
"""

from __future__ import annotations

from unittest import mock

import torch
from codegen_cases import Cases, main
from codegen_triton_cases import build

from kernelwright.codegen import _triton_tiles

case = Cases()
SMALL = {"ATTENTION_M": 16, "ATTENTION_N": 32}
SCALED = "s = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5\n"


def shapes(*dims):
    return ", ".join(f"torch.randn{tuple(d)}" for d in dims)


def attended(forward, inputs, schedule=SMALL, **more):
    """A candidate that is one attention and nothing else, checked."""
    built = build("# q k v\n" + forward, inputs, schedule, **more)
    assert [entry["kind"] for entry in built.generated.report] == ["attention"], built.generated.report
    built.check()
    return built


@case
def odd_sizes():
    for rows, columns, head, out in ((1, 1, 1, 1), (1, 67, 16, 5), (37, 1, 7, 16), (29, 31, 5, 5), (32, 64, 16, 32)):
        inputs = shapes((2, rows, head), (2, columns, head), (2, columns, out))
        attended(SCALED + "return s.softmax(-1) @ v", inputs)


@case
def every_choice_is_right():
    inputs = shapes((2, 37, 8), (2, 37, 8), (2, 37, 8))
    for schedule in ({}, {"ATTENTION_M": 128, "ATTENTION_N": 128}, {"precision": "tf32x3", "ATTENTION_STAGES": 1}):
        attended("return F.scaled_dot_product_attention(q, k, v, is_causal=True)", inputs, schedule)
    for choice in ("decomposed", "library"):
        built = build("# q k v\nreturn F.scaled_dot_product_attention(q, k, v)", inputs, {"attention": choice})
        assert "attention" not in {entry["kind"] for entry in built.generated.report}
        built.check()


MASKS = {
    "causal": "i = torch.arange(s.shape[-1], device=q.device)\ns = s.masked_fill(i[None] > i[:, None], float('-inf'))",
    "window": "i = torch.arange(s.shape[-1], device=q.device)\nd = i[:, None] - i\n"
              "s = s.masked_fill((d < 0) | (d >= 9), float('-inf'))",
    "wide_window": "i = torch.arange(s.shape[-1], device=q.device)\nd = i[:, None] - i\n"
                   "s = s.masked_fill((d.abs() > 900), float('-inf'))",
    "added": "s = s + torch.full(s.shape[-2:], float('-inf'), device=q.device).triu(1)",
    "tril": "s = s.masked_fill(torch.ones(s.shape[-2:], device=q.device).tril() == 0, float('-inf'))",
    "finite": "s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=q.device).triu(1), -1e9)",
    "softcap": "s = 5 * torch.tanh(s / 5)",
    "alibi": "i = torch.arange(s.shape[-1], device=q.device)\n"
             "slopes = 2.0 ** -torch.arange(1, 3, device=q.device)\n"
             "s = s + slopes[:, None, None] * (i - i[:, None])\ns = s.masked_fill(i[None] > i[:, None], float('-inf'))",
}  # fmt: skip


@case
def masks_and_biases():
    for name, mask in MASKS.items():
        built = attended(f"{SCALED}{mask}\nreturn s.softmax(-1) @ v", shapes(*[(3, 2, 71, 8)] * 3))
        skips = "tl.minimum(71, last_row" in built.generated.source
        assert skips == (name in ("causal", "window", "added", "tril", "alibi")), name
        assert ("first = tl.maximum(" in built.generated.source) == (name == "window"), name


@case
def a_mask_for_each_window_of_a_batch():
    """The loop over the batch is cut into one over images and one over windows."""
    forward = f"# q k v m\n{SCALED}s = s + m.repeat(q.shape[0] // 4, 1, 1)[:, None]\nreturn s.softmax(-1) @ v"
    variants = [{"B": 3}, {"B": 5}]
    inputs = shapes(*[("4 * B", 2, 6, 8)] * 3, (4, 6, 6)).replace("'", "")
    built = build(forward, inputs, SMALL, constants="B = 3", variants=variants)
    assert [entry["kind"] for entry in built.generated.report] == ["attention"]
    for variant in variants:
        built.check(variant)


@case
def what_is_masked_wholly_is_as_in_torch():
    inputs = shapes((2, 2, 9, 8), (2, 2, 40, 8), (2, 2, 40, 8)) + ", torch.rand(2, 1, 9, 40) > 0.5"
    written = f"# q k v m\n{SCALED}return s.masked_fill(m, %s).softmax(-1) @ v"
    called = "# q k v m\nreturn F.scaled_dot_product_attention(q, k, v, attn_mask=%s)"
    for forward in (
        written % "float('-inf')",
        written % -1e9,
        called % "~m",
        called % "torch.where(m, -torch.inf, 1.5)",
    ):
        built = build(forward, inputs, SMALL)
        _, _, given = built.models({})
        given[3][0, 0, 2], given[3][1, 0, :, :35] = True, True
        built.check(inputs=given)
        assert "attention" in {entry["kind"] for entry in built.generated.report}


@case
def values_that_are_not_finite_stay():
    built = attended(SCALED + "return s.softmax(-1) @ v", shapes(*[(1, 70, 16)] * 3))
    for number in (float("nan"), float("inf")):
        _, _, given = built.models({})
        given[1][0, 66, 3] = number
        built.check(inputs=given)


@case
def heads_are_read_where_they_lie():
    """From one projection, shared by groups of queries, and the result where the next step reads it."""
    projected = (
        "# x\nq, k, v = self.qkv(x).view(2, 19, 3, 3, 8).permute(2, 0, 3, 1, 4)\n"
        "return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 19, 24)"
    )
    built = build(
        projected, "torch.randn(2, 19, 24)", {**SMALL, "gemm": "library"}, init="self.qkv = nn.Linear(24, 72)"
    )
    assert [entry["kind"] for entry in built.generated.report][-1:] == ["attention"]
    assert "contiguous()" not in built.generated.source.split("x.contiguous()")[1]
    built.check()
    grouped = shapes((2, 6, 19, 8), (2, 2, 19, 8), (2, 2, 19, 8))
    found = attended("return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)", grouped)
    assert "expand" not in found.generated.source
    attended(f"k = k.repeat_interleave(3, 1)\nv = v.repeat_interleave(3, 1)\n{SCALED}return s.softmax(-1) @ v", grouped)
    attended(SCALED + "return s.softmax(-1) @ v", shapes((2, 3, 19, 8), (19, 8), (19, 8)))


@case
def heads_that_are_one_dim_with_samples_are_read_where_they_lie():
    """As in ``nn.MultiheadAttention``, which also scales its queries before the product."""
    inputs = "torch.randn(13, 2, 24)"
    forward = (
        "q, k, v = self.qkv(x).view(13, 2, 3, 24).permute(2, 0, 1, 3)\n"
        "q, k, v = (t.reshape(13, 6, 8).transpose(0, 1) for t in (q, k, v))\n"
        "q = q * 8**-0.5\n"
        "return (torch.bmm(q, k.transpose(1, 2)).softmax(-1) @ v).transpose(0, 1).reshape(26, 24)"
    )
    built = build(forward, inputs, {**SMALL, "gemm": "library"}, init="self.qkv = nn.Linear(24, 72)")
    assert [entry["kind"] for entry in built.generated.report] == ["torch", "attention"]
    assert ".contiguous()" not in built.generated.source.split("F.linear")[1]
    built.check()


@case
def masks_in_memory_bound_the_keys():
    """A block behind the last key that a query sees is not read: it may hold anything."""
    unread = {
        "torch.arange(70) < 33": slice(64, 70),
        "torch.ones(9, 70, dtype=torch.bool).tril(20)": slice(32, 70),
    }
    for mask, keys in unread.items():
        inputs = shapes((2, 9, 8), (2, 70, 8), (2, 70, 8)) + f", {mask}"
        built = build(f"# q k v m\n{SCALED}return s.masked_fill(~m, float('-inf')).softmax(-1) @ v", inputs, SMALL)
        built.check()
        _, candidate, given = built.models({})
        before = candidate(*given)
        given[1][:, keys], given[2][:, keys] = float("nan"), float("nan")
        assert torch.equal(candidate(*given), before), mask


@case
def the_library_is_called_where_it_gives_the_same():
    for name in ("causal", "window", "softcap"):
        forward = f"# q k v\n{SCALED}{MASKS[name]}\nreturn s.softmax(-1) @ v"
        built = build(forward, shapes(*[(3, 2, 21, 8)] * 3), {"attention": "library"})
        assert (built.in_torch() == ["scaled_dot_product_attention.default"]) == (name == "causal")
        built.check()


@case
def what_needs_the_scores_is_left_apart():
    inputs = shapes(*[(2, 20, 8)] * 3)
    for forward in (
        f"# q k v\n{SCALED}w = s.softmax(-1)\nreturn w @ v, w",
        f"# q k v\n{SCALED}return s.softmax(-1) @ v + s.amax()",
        "# q k v\nreturn (q @ k.mT).softmax(1) @ v.mT.contiguous().mT",
        "# q k v\nreturn (q @ k.mT) @ v",
    ):
        built = build(forward, inputs, SMALL)
        assert "attention" not in {entry["kind"] for entry in built.generated.report}
        built.check()


@case
def halves():
    called = "# q k v b\nreturn F.scaled_dot_product_attention(q, k, v, attn_mask=b)"
    written = (
        "# q k v b\nwide = torch.promote_types(q.dtype, torch.float32)\n"
        "return (q @ k.mT * 24**-0.5 + b).softmax(-1, dtype=wide).to(q.dtype) @ v"
    )
    for name, forward in (("float16", called), ("bfloat16", written)):
        sizes = [(2, 3, 37, 24)] * 3 + [(3, 37, 37)]
        built = build(forward, ", ".join(f"torch.randn{size}.to(torch.{name})" for size in sizes), SMALL)
        assert [entry["kind"] for entry in built.generated.report] == ["attention"]
        assert ".to(values.dtype)" in built.generated.source
        built.check_halves(slack=1.5, floor=0.0)


@case
def indices_of_64_bits():
    with mock.patch.object(_triton_tiles, "LARGE", 500):
        built = attended(f"{SCALED}{MASKS['window']}\nreturn s.softmax(-1) @ v", shapes(*[(2, 2, 40, 8)] * 3))
    assert "tl.program_id(0).to(tl.int64)" in built.generated.source


@case
def shapes_and_forms_that_occur():
    windows = "q @ k.mT + b).view(2, 4, 3, 9, 9) + m[None, :, None]).view(8, 3, 9, 9)"  # as in Swin Transformers
    forms = {
        "return s.softmax(-1) @ v": [(9, 8)] * 3,
        "e = (s - s.max(-1).values.unsqueeze(-1)).exp()\nreturn (e / e.sum(-1).unsqueeze(-1)) @ v": [(2, 9, 8)] * 3,
        "s = torch.einsum('bqhd,bkhd->bhqk', q, k)\nreturn torch.einsum('bhqk,bkhd->bqhd', s.softmax(-1), v)":
            [(2, 9, 3, 8)] * 3,
    }  # fmt: skip
    for forward, sizes in forms.items():
        attended((SCALED if "einsum" not in forward else "") + forward, shapes(*sizes))
    built = build(f"# q k v b m\nreturn ((({windows}.softmax(-1) @ v).transpose(1, 2).reshape(8, 9, 24)",
                  shapes(*[(8, 3, 9, 8)] * 3, (3, 9, 9), (4, 9, 9)), SMALL)  # fmt: skip
    assert [entry["kind"] for entry in built.generated.report] == ["attention"]
    built.check()


@case
def shape_variants_share_one_candidate():
    variants = [{"T": 40, "D": 16, "W": 7}, {"T": 13, "D": 5, "W": 90}, {"T": 1, "D": 3, "W": 2}]
    forward = (
        "# q k v\ni = torch.arange(q.shape[2], device=q.device)\nd = i[:, None] - i\n" + SCALED
        + "return s.masked_fill((d < 0) | (d >= self.w), float('-inf')).softmax(-1) @ v"
    )  # fmt: skip
    more = {"init": "self.w = W", "init_inputs": "W", "constants": "T = 40\nD = 16\nW = 7"}
    built = build(forward, ", ".join(["torch.randn(2, 3, T, D)"] * 3), SMALL, variants, **more)
    assert [entry["kind"] for entry in built.generated.report] == ["attention"]
    for variant in variants:
        built.check(variant)


if __name__ == "__main__":
    main(case)
