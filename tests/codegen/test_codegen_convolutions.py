"""Convolutions over one to three dims, grouped, dilated, transposed: kernels of ours, against torch."""

from __future__ import annotations

import pytest

IMAGES = {1: "torch.randn(3, 6, 83)", 2: "torch.randn(3, 6, 11, 14)", 3: "torch.randn(2, 6, 5, 7, 6)"}
# The arguments of a convolution from 6 channels; a single number stands for every dim.
STRAIGHT = [
    "6, 10, 3",
    "6, 9, 2, stride=3, padding=2, bias=False",
    "6, 12, 3, padding=2, dilation=2, groups=2",
    "6, 6, 3, padding='same', groups=6",
    "6, 12, 4, padding='same', dilation=1, groups=3",
]
TRANSPOSED = [
    "6, 10, 3",
    "6, 9, 3, stride=2, padding=1, output_padding=1, bias=False",
    "6, 12, 2, stride=3, padding=1, groups=3",
    "6, 6, 3, stride=2, padding=2, dilation=2, groups=6",
    "6, 4, 1, stride=2, padding=1, output_padding=1",
]
# One number for each dim.
UNEVEN = {
    "Conv2d": "6, 7, (3, 1), stride=(1, 2), padding=(2, 0), dilation=(2, 1)",
    "Conv3d": "6, 4, (2, 3, 1), stride=(2, 1, 3), padding=(1, 2, 0), dilation=(1, 2, 1), groups=2",
    "ConvTranspose2d": "6, 7, (3, 2), stride=(1, 3), padding=(2, 0), output_padding=(0, 1), dilation=(2, 1)",
    "ConvTranspose3d": "6, 4, (2, 3, 1), stride=(2, 1, 3), padding=(1, 2, 0), output_padding=(1, 0, 2), groups=2",
}


def layers(rank):
    """Constructors of all convolutions of a rank."""
    made = [f"nn.Conv{rank}d({a})" for a in STRAIGHT] + [f"nn.ConvTranspose{rank}d({a})" for a in TRANSPOSED]
    return made + [f"nn.{name}({a})" for name, a in UNEVEN.items() if name.endswith(f"{rank}d")]


def model(rank):
    """What the model is made of, and a forward that applies every layer to the same image."""
    made = layers(rank)
    init = "\n".join(f"self.c{n} = {layer}" for n, layer in enumerate(made))
    return init, "return (" + ", ".join(f"self.c{n}(x)" for n in range(len(made))) + ",)"


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_every_form_of_convolution_is_a_kernel_of_ours(build, rank):
    init, forward = model(rank)
    built = build(forward, IMAGES[rank], init=init)
    assert [r["kind"] for r in built.generated.report] == ["own_conv"] * len(layers(rank))
    built.check()


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_library_computes_them_where_the_schedule_says_so(build, rank):
    init, forward = model(rank)
    built = build(forward, IMAGES[rank], init=init, schedule={"conv": "library"})
    assert {"torch"} < {r["kind"] for r in built.generated.report} <= {"torch", "nest", "note"}
    built.check()


def test_what_follows_is_computed_in_the_tiles(build):
    init = "self.up = nn.ConvTranspose2d(4, 6, 3, stride=2)\nself.deep = nn.Conv3d(3, 5, 3)\n"
    init += "self.scale = nn.Parameter(torch.randn(5, 1, 1, 1))"
    forward = "# x y\nreturn F.gelu(self.up(x)) - 0.5, torch.tanh(self.deep(y) * self.scale)"
    built = build(forward, "torch.randn(2, 4, 9, 8), torch.randn(2, 3, 6, 8, 30)", init=init)
    assert [r["kind"] for r in built.generated.report] == ["own_conv", "own_conv"]
    assert [{"gelu"} <= set(r["ops"]) or {"tanh"} <= set(r["ops"]) for r in built.generated.report] == [True, True]
    built.check()


SIZED = """
import torch
from torch import nn
N, L = 2, 40
PROBLEM = {"variants": {"cpu": [{}, {"N": 3, "L": 17}, {"N": 1, "L": 5}]}}
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(4, 8, 3, stride=2, padding=1, groups=2)
        self.second = nn.ConvTranspose1d(8, 6, 4, stride=2, padding=1)
    def forward(self, x):
        return torch.relu(self.second(torch.relu(self.first(x))))
def get_inputs():
    return [torch.randn(N, 4, L)]
def get_init_inputs():
    return []
"""


def test_one_kernel_serves_every_size(build_source):
    variants = [{}, {"N": 3, "L": 17}, {"N": 1, "L": 5}]
    built = build_source(SIZED, {}, variants)
    assert [r["kind"] for r in built.generated.report] == ["own_conv", "own_conv"]
    for variant in variants:
        built.check(variant)


def test_images_in_another_order_and_without_a_batch(build):
    init = "self.c = nn.Conv1d(5, 8, 3)\nself.d = nn.ConvTranspose2d(3, 4, 2, stride=2)"
    forward = "# x y\nreturn self.c(x.transpose(1, 2)), self.d(y)"
    built = build(forward, "torch.randn(2, 20, 5), torch.randn(3, 6, 7)", init=init)
    assert [r["kind"] for r in built.generated.report] == ["own_conv", "own_conv"]
    built.check()


def test_long_sums_are_split(build):
    init = "self.c = nn.Conv1d(2000, 3, 9, bias=False)\nself.d = nn.ConvTranspose1d(9000, 2, 2, stride=2, bias=False)"
    built = build("# x y\nreturn self.c(x), self.d(y)", "torch.rand(1, 2000, 12), torch.rand(1, 9000, 4)", init=init)
    built.check(slack=1.5)


POOLS = [
    "F.max_pool{r}d(x, 3, stride=2, padding=1)",
    "F.max_pool{r}d(x, 2, dilation=2)",
    "F.max_pool{r}d(x, 2, ceil_mode=True)",
    "F.avg_pool{r}d(x, 3, stride=1, padding=1)",
    "F.avg_pool{r}d(x, 3, stride=2, padding=1, count_include_pad=False)",
    "F.avg_pool{r}d(x, 2, ceil_mode=True)",
    "F.adaptive_avg_pool{r}d(x, 1)",
]


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pooling_over_one_to_three_dims(build, rank):
    built = build("return (" + ", ".join(p.format(r=rank) for p in POOLS) + ",)", IMAGES[rank])
    assert not [r for r in built.generated.report if r["kind"] == "torch"]
    built.check()


def test_running_products(build):
    built = build("return torch.cumprod(x, 1), torch.cumprod(x, 0)", "torch.rand(9, 70) + 0.5")
    assert [r["kind"] for r in built.generated.report] == ["scan", "scan"]
    built.check()
