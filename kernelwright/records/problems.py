"""Problems: their references, inputs and shape variants."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from pydantic import Field, model_validator

from kernelwright.records.base import DeviceClass, KnobValue, Record, sha256_text

PatternKind = Literal[
    "alternating",
    "bounds",
    "constant",
    "equal_maxima",
    "normal",
    "offset",
    "one_sided",
    "outliers",
    "scaled",
    "signed_zeros",
    "sorted",
    "sparse",
    "ties",
    "uneven_rows",
]
Place = Literal["first", "last", "random"]
VARIANT_MARK = "@"  # between a problem's id and the number of the timed variant
OwnKernels = Literal["any", "some", "strict"]  # how much of the work a candidate's own kernels must do


class InputDomain(Record):
    """The values that one input of ``forward`` may hold.

    ``fill`` says how new data may be made. With ``normal`` and ``uniform``, elements are independent, and the referee
    may draw any values inside [low, high]. With ``structured``, only the problem's own ``get_inputs`` makes the input.
    ``non_finite``: a float input may also hold NaN, and an infinity on each side without a bound.
    """

    fill: Literal["normal", "uniform", "structured"] = "structured"
    low: float = -math.inf
    high: float = math.inf
    non_finite: bool = False

    @model_validator(mode="after")
    def _drawn_by_the_referee(self) -> InputDomain:
        if self.non_finite and self.fill == "structured":
            raise ValueError("non_finite needs a fill that the referee can draw: 'normal' or 'uniform'")
        return self


class InputPattern(Record):
    """How the referee draws the elements of one input, inside the input's declared domain.

    ``z`` is standard normal (or the part of it inside the domain), rows lie along ``axis``, ``m`` is ``magnitude`` and
    ``c`` is ``count``:

    - ``normal``: z.
    - ``scaled``: m z.
    - ``offset``: m + z.
    - ``one_sided``: m |z|: no element has the other sign.
    - ``constant``: every element is m.
    - ``bounds``: the domain's two bounds (m for a missing bound).
    - ``alternating``: m, -m, m, ... plus z: terms that nearly cancel.
    - ``ties``: c different numbers m z, each many times.
    - ``equal_maxima``: z, but c + 1 elements of a row hold the same number, the row's largest, m above the others.
    - ``sorted``: m z, each row ascending, or descending if ``place`` is ``first``.
    - ``outliers``: z, but c elements of a row are m times as large.
    - ``sparse``: zeros, but c elements of a row are m z.
    - ``signed_zeros``: m z, but half of the elements are 0 or -0.
    - ``uneven_rows``: z times powers of two between 1 and m, one for each run of c elements.

    Args:
        place: the position of the chosen elements in a row.
        axis: the axis of the rows, counted from the last one (-1); if the input lacks it, its first axis is used.
    """

    kind: PatternKind
    magnitude: float = Field(default=1.0, ge=-1e30, le=1e30)
    count: int = Field(default=1, ge=1, le=4096)
    place: Place = "random"
    axis: int = Field(default=-1, ge=-8, le=-1)

    @model_validator(mode="after")
    def _has_a_size(self) -> InputPattern:
        if self.magnitude == 0.0 and self.kind != "constant":
            raise ValueError("magnitude 0 is for 'constant' alone")
        return self


class InputGenerator(Record):
    """One way to draw a problem's inputs: patterns by input name. Inputs without a pattern are drawn as usual."""

    inputs: dict[str, InputPattern] = Field(min_length=1)

    def __hash__(self) -> int:
        return hash(self.canonical_json())

    @property
    def id(self) -> str:
        """The content hash, 16 hex digits."""
        return sha256_text(self.canonical_json())[:16]

    def canonical_json(self) -> str:
        """Its JSON with sorted keys."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True)

    def describe(self) -> str:
        """The generator in words, such as ``x: equal_maxima, magnitude 2``."""
        return "; ".join(f"{name}: {_in_words(pattern)}" for name, pattern in sorted(self.inputs.items()))


def _in_words(pattern: InputPattern) -> str:
    usual = InputPattern(kind="normal")
    given = ((name, getattr(pattern, name)) for name in ("magnitude", "count", "place", "axis"))
    told = [f"{name} {str(value).removesuffix('.0')}" for name, value in given if value != getattr(usual, name)]
    return ", ".join([pattern.kind, *told])


def archive_id(generators: Iterable[InputGenerator]) -> str:
    """The content hash of an archive of generators, 16 hex digits; empty for an empty archive."""
    ids = sorted({generator.id for generator in generators})
    return sha256_text("\n".join(ids))[:16] if ids else ""


class TolerancePolicy(Record):
    """Error budget of a problem: a factor on the budget, and the reduced precisions allowed within float32."""

    scale: float = Field(default=1.0, gt=0)
    reduced_precision: tuple[Literal["tf32", "bfloat16", "float16"], ...] = ()


class ProblemMeta(Record):
    """Optional metadata of a problem file: a literal dict named ``PROBLEM``, read without running the file.

    ``variants`` maps a device class to settings of the file's module-level constants. All of them are checked. The
    first one is timed, unless another one is selected (see :meth:`Problem.at_variant`). ``inputs`` is keyed by the
    parameter names of ``Model.forward``.

    ``note`` says why the problem cannot be gamed trivially: what a kernel might skip, and how that is detected.
    ``backward``: a call is the forward and then the gradients of all float inputs and parameters. ``randomness`` says
    how a forward that draws random numbers is judged: ``seeded`` (torch's generator is seeded before each call, alike
    for both sides) or ``distribution`` (the candidate may draw in any way; its distribution is tested).
    """

    title: str = ""
    category: str = "other"
    note: str = ""
    dtype: str = "float32"
    mode: Literal["eval", "train"] = "eval"
    backward: bool = False
    randomness: Literal["none", "seeded", "distribution"] = "none"
    weights: Literal["inputs", "constants"] = "inputs"
    heavy_ops: tuple[str, ...] = ()
    inputs: dict[str, InputDomain] = {}
    variants: dict[DeviceClass, tuple[dict[str, KnobValue], ...]] = {}
    tolerance: TolerancePolicy = TolerancePolicy()

    def variants_for(self, device_class: DeviceClass) -> tuple[dict[str, KnobValue], ...]:
        """The variants of a device class; one empty variant (the file's own constants) if none is declared."""
        return self.variants.get(device_class) or ({},)

    def moved(self, source: int, target: int) -> ProblemMeta:
        """A copy with one variant moved to another place, in each device class that has both places."""
        found: dict[DeviceClass, tuple[dict[str, KnobValue], ...]] = {}
        for name, declared in self.variants.items():
            variants = list(declared)
            if max(source, target) < len(variants):
                variants.insert(target, variants.pop(source))
            found[name] = tuple(variants)
        return self.model_copy(update={"variants": found})


class Problem(Record):
    """A PyTorch reference: source with ``Model``, ``get_inputs``, ``get_init_inputs`` (the KernelBench contract).

    ``variant`` is the number, in the order of the file, of the timed shape variant. That variant comes first in
    ``meta``. If it is not the file's first one, it is part of the id: results on another variant are results on another
    problem.
    """

    id: str  # "kernelwright/level1/softmax", or "file/<stem>" for a path; "...@2" where another variant is timed
    suite: str
    level: int
    name: str
    number: int | None = None
    source: str
    meta: ProblemMeta = ProblemMeta()
    path: str | None = None
    variant: int = Field(default=0, ge=0)

    @property
    def sha256(self) -> str:
        """Hash of the exact source."""
        return sha256_text(self.source)

    @property
    def declared(self) -> Problem:
        """The problem as its file declares it, with the first variant timed."""
        if self.variant == 0:
            return self
        known_as = self.id.removesuffix(f"{VARIANT_MARK}{self.variant}")
        return self.model_copy(update={"id": known_as, "meta": self.meta.moved(0, self.variant), "variant": 0})

    def at_variant(self, number: int) -> Problem:
        """The same problem with the variant of this number timed. All variants are still checked."""
        declared = self.declared
        if number == 0:
            return declared
        meta = declared.meta.moved(number, 0)
        return declared.model_copy(
            update={"id": f"{declared.id}{VARIANT_MARK}{number}", "meta": meta, "variant": number}
        )


@lru_cache(maxsize=1024)  # used dozens of times per round; not an attribute, because copies would inherit it
def identity(source: str, knobs: str) -> str:
    return sha256_text(source.encode() + b"\0" + knobs.encode())
