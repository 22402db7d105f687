"""Describes a captured problem's inputs and state, and writes source text that makes such values. Worker side."""

from __future__ import annotations

import base64
import math
import re
import textwrap
import zlib
from dataclasses import dataclass
from typing import Any, Literal

import torch

from kernelwright.errors import UsageError

MAX_EMBEDDED_BYTES = 1 << 20

Fill = Literal["normal", "uniform", "integers", "embedded"]

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}
_SPEC = re.compile(
    r"\s*(?P<dtype>\w+)\s*\[(?P<shape>[\d\s,]*)\](?:\s*:\s*(?P<low>[^.,\s]\S*?)\.\.(?P<high>[^,\s]+))?\s*(?:,|$)"
)


@dataclass(frozen=True)
class ExampleInput:
    """How one input is made: ``normal`` (mean, std), ``uniform`` or ``integers`` in [low, high], or embedded data."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    fill: Fill
    low: float = -math.inf
    high: float = math.inf
    mean: float = 0.0
    std: float = 1.0
    data: torch.Tensor | None = None

    def make(self) -> torch.Tensor:
        """Make a tensor of this kind."""
        if self.data is not None:
            return self.data.clone()
        if self.fill == "integers":
            drawn = torch.randint(int(self.low), int(self.high) + 1, self.shape)
        elif self.fill == "uniform":
            drawn = torch.rand(self.shape) * (self.high - self.low) + self.low
        else:
            drawn = torch.randn(self.shape) * self.std + self.mean
        return drawn.to(self.dtype)

    def domain(self) -> dict[str, Any]:
        """Its entry under ``inputs`` in PROBLEM."""
        if self.fill in ("normal", "uniform"):
            return {"fill": self.fill, "low": self.low, "high": self.high}
        return {"fill": "structured"}

    def expression(self, embed: Embedder, name: str) -> str:
        """Source text that makes such a tensor."""
        shape = list(self.shape)
        if self.data is not None:
            return tensor_text(self.data, embed, name)
        if self.fill == "integers":
            if self.dtype == torch.bool:
                return f"torch.randint(0, 2, {shape}).bool()"
            kind = "" if self.dtype == torch.int64 else f", dtype={self.dtype}"
            return f"torch.randint({int(self.low)}, {int(self.high) + 1}, {shape}{kind})"
        if self.fill == "uniform":
            text = f"torch.rand({shape}) * {number(self.high - self.low)} + {number(self.low)}"
        else:
            text = drawn_text(shape, self.mean, self.std)
        return text if self.dtype == torch.float32 else f"({text}).to({self.dtype})"


def parse_input_specs(specs: str) -> list[ExampleInput]:
    """Parse ``float32[8,64],int64[8]:0..100,float32[3]:-1..1``: dtype, shape, and an optional inclusive range.

    Raises:
        UsageError: a spec is malformed; the message quotes it.
    """
    found, position = [], 0
    while position < len(specs):
        match = _SPEC.match(specs, position)
        if match is None or match["dtype"] not in _DTYPES:
            raise UsageError(
                f"cannot read the input spec {specs[position:]!r}",
                hint=f'write for example "float32[8,64],int64[8]:0..100"; dtypes are {", ".join(_DTYPES)}',
            )
        found.append(_from_spec(match))
        position = match.end()
    if not found:
        raise UsageError("no input specs were given", hint='write for example "float32[8,64],int64[8]:0..100"')
    return found


def _from_spec(match: re.Match[str]) -> ExampleInput:
    dtype = _DTYPES[match["dtype"]]
    shape = tuple(int(size) for size in match["shape"].split(",") if size.strip())
    if match["low"] is None:
        if dtype.is_floating_point:
            return ExampleInput(dtype, shape, "normal", low=-100.0, high=100.0)
        return ExampleInput(dtype, shape, "integers", low=0, high=1)
    try:
        low, high = float(match["low"]), float(match["high"])
    except ValueError:
        low, high = math.nan, math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise UsageError(f"not a range: {match[0].strip()}", hint="write low..high, both included, for example 0..100")
    return ExampleInput(dtype, shape, "uniform" if dtype.is_floating_point else "integers", low=low, high=high)


def describe_input(value: torch.Tensor) -> ExampleInput:
    """How to make tensors like an example: its distribution if that is simple, otherwise its exact data."""
    if value.dtype not in _DTYPES.values() or value.layout != torch.strided:
        hint = f"supported are dense tensors of {', '.join(_DTYPES)}"
        raise UsageError(f"an example input is a {value.layout} tensor of {value.dtype}", hint=hint)
    value = value.detach().cpu()
    dtype, shape = value.dtype, tuple(value.shape)
    if value.numel() == 0:
        return ExampleInput(dtype, shape, "embedded", data=value)
    if not dtype.is_floating_point:
        first, last = int(value.min()), int(value.max())
        if first == last:
            return ExampleInput(dtype, shape, "embedded", data=value)
        return ExampleInput(dtype, shape, "integers", low=first, high=last)
    wide = value.double()
    if not bool(torch.isfinite(wide).all()) or (wide.numel() > 2 and len(wide.unique()) <= 2):
        return ExampleInput(dtype, shape, "embedded", data=value)
    low, high, std = float(wide.min()), float(wide.max()), float(wide.std(correction=0))
    if low >= 0 and wide.numel() > 1:
        return ExampleInput(dtype, shape, "uniform", low=short(low), high=short(high))
    bound = 10.0 ** math.ceil(math.log10(8 * max(abs(low), abs(high), 1e-3)))
    mean = float(wide.mean())
    if abs(mean) < 0.2 and 0.8 < std < 1.25:
        mean, std = 0.0, 1.0
    return ExampleInput(dtype, shape, "normal", low=-bound, high=bound, mean=mean, std=std or 1.0)


class Embedder:
    """Embeds exact data as compressed text, up to MAX_EMBEDDED_BYTES in total."""

    def __init__(self) -> None:
        self.used_bytes = 0
        self.blocks: list[str] = []

    def add(self, value: torch.Tensor, name: str) -> str:
        """Embed ``value`` in the file. Returns the expression that makes it.

        Raises:
            UsageError: the file would hold too much data.
        """
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        text = base64.b64encode(zlib.compress(raw, 9)).decode()
        self.used_bytes += len(text)
        if self.used_bytes > MAX_EMBEDDED_BYTES:
            raise UsageError(
                f"{name} holds {len(raw):,} bytes of exact data, too much to embed in a problem file",
                hint=f"all data together may take {MAX_EMBEDDED_BYTES:,} bytes compressed; compute this in forward, "
                "or make it a parameter",
                name=name,
            )
        variable = f"DATA_{len(self.blocks)}"
        lines = "\n".join(f'    "{line}"' for line in textwrap.wrap(text, 100))
        self.blocks.append(f"# {name}\n{variable} = (\n{lines}\n)")
        return f"unpack({variable}, {value.dtype}, {list(value.shape)})"


def tensor_text(value: torch.Tensor, embed: Embedder, name: str) -> str:
    """Source text that makes exactly this tensor."""
    shape = list(value.shape)
    kind = "" if value.dtype == torch.float32 else f", dtype={value.dtype}"
    if value.numel() == 0:
        return f"torch.empty({shape}{kind})"
    flat = value.detach().reshape(-1)
    if bool((flat == flat[0]).all()):
        constant = flat[0].item()
        if constant in (0, 1) and value.dtype != torch.bool:
            return f"torch.{'ones' if constant else 'zeros'}({shape}{kind})"
        return f"torch.full({shape}, {number(constant)}{kind})"
    return embed.add(value, name)


def parameter_text(value: torch.Tensor) -> str:
    """Source text that makes a random parameter of the same shape, type, mean and scale."""
    shape, wide = list(value.shape), value.detach().double()
    if value.numel() == 0 or bool((wide == wide.reshape(-1)[0]).all()):
        return tensor_text(value, Embedder(), "")
    text = drawn_text(shape, float(wide.mean()), float(wide.std(correction=0)))
    return text if value.dtype == torch.float32 else f"({text}).to({value.dtype})"


def drawn_text(shape: list[int], mean: float, std: float) -> str:
    """Source text that draws normal values."""
    scale = "" if std == 1 else f" * {number(std)}"
    if abs(mean) < 1e-3 * std:
        return f"torch.randn({shape}){scale}"
    return f"torch.randn({shape}){scale} + {number(mean)}"


def number(value: float | int | bool) -> str:
    """A number as Python text. Infinities become ``float("inf")``; floats have six significant digits."""
    if isinstance(value, (bool, int)):
        return repr(value)
    return repr(short(value)) if math.isfinite(value) else f'float("{value}")'


def short(value: float) -> float:
    """``value`` rounded to six significant digits."""
    return float(f"{value:.6g}")
