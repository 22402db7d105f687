"""Problems: their reference, their inputs, their shape variants."""

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
VARIANT_MARK = "@"  # between a problem's id and the number of the variant that is timed
OwnKernels = Literal["any", "some", "strict"]  # how much of the work a candidate's own kernels have to do


class InputDomain(Record):
    """What one input of ``forward`` may hold.

    ``fill`` says how fresh data may be made: ``normal`` and ``uniform`` are element-wise independent (the referee may
    draw any values inside [low, high]); ``structured`` means that only the problem's own ``get_inputs`` makes it.
    ``non_finite``: a float input may hold NaN as well, and an infinity on each side that has no bound.
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
    """How the elements of one input are drawn; the referee draws them, inside of the input's declared domain.

    ``z`` is standard normal (or the domain's part of it), rows lie along ``axis``, ``m`` is ``magnitude`` and ``c`` is
    ``count``:

    - ``normal``: z.
    - ``scaled``: m z.
    - ``offset``: m + z.
    - ``one_sided``: m |z|: no element has the other sign.
    - ``constant``: every element is m.
    - ``bounds``: the domain's two bounds (m where it has none).
    - ``alternating``: m, -m, m, ... plus z: terms that nearly cancel.
    - ``ties``: c different numbers m z, each many times.
    - ``equal_maxima``: z, and c + 1 elements of a row hold the same number, the row's largest, m above the others.
    - ``sorted``: m z, each row ascending; descending where ``place`` is ``first``.
    - ``outliers``: z, and c elements of a row are m times as large.
    - ``sparse``: zeros, and c elements of a row are m z.
    - ``signed_zeros``: m z, and half of the elements are 0 or -0.
    - ``uneven_rows``: z times powers of two between 1 and m, one for each run of c elements.

    Args:
        place: where in a row the chosen elements lie.
        axis: along which rows lie, counted from the last one (-1); one that the input lacks is its first one.
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
    """One way to draw a problem's inputs: a pattern for each input by its name; all others are drawn plainly."""

    inputs: dict[str, InputPattern] = Field(min_length=1)

    def __hash__(self) -> int:
        return hash(self.canonical_json())

    @property
    def id(self) -> str:
        """A name by content, 16 hex digits."""
        return sha256_text(self.canonical_json())[:16]

    def canonical_json(self) -> str:
        """Its JSON with sorted keys."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True)

    def describe(self) -> str:
        """The same in words: ``x: equal_maxima, magnitude 2, count 1``."""
        return "; ".join(f"{name}: {_in_words(pattern)}" for name, pattern in sorted(self.inputs.items()))


def _in_words(pattern: InputPattern) -> str:
    usual = InputPattern(kind="normal")
    given = ((name, getattr(pattern, name)) for name in ("magnitude", "count", "place", "axis"))
    told = [f"{name} {str(value).removesuffix('.0')}" for name, value in given if value != getattr(usual, name)]
    return ", ".join([pattern.kind, *told])


def archive_id(generators: Iterable[InputGenerator]) -> str:
    """The name of an archive of generators by content, 16 hex digits; empty where there is none."""
    ids = sorted({generator.id for generator in generators})
    return sha256_text("\n".join(ids))[:16] if ids else ""


class TolerancePolicy(Record):
    """Error budget of a problem: a factor on the budget, and the reduced precisions that it allows inside float32."""

    scale: float = Field(default=1.0, gt=0)
    reduced_precision: tuple[Literal["tf32", "bfloat16", "float16"], ...] = ()


class ProblemMeta(Record):
    """Optional metadata of a problem file: a literal dict named ``PROBLEM``, read without running the file.

    ``variants`` maps a device class to settings of the file's module-level constants; the first one is timed (unless
    another one is asked for, see :meth:`Problem.at_variant`), the others are checked as well. ``inputs`` is keyed by
    the parameter names of ``Model.forward``.

    ``note`` says why the problem is not trivially gamed: what a kernel might leave out, and how that shows.
    ``backward``: a call is the forward and then the gradients of all float inputs and parameters. ``randomness`` says
    how a forward that draws random numbers is judged: ``seeded`` (torch's generator is seeded before each call, for
    both sides alike) or ``distribution`` (the candidate may draw as it likes; its distribution is tested).
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
        """The variants of a device class; one empty variant (the file's own constants) where none is declared."""
        return self.variants.get(device_class) or ({},)

    def moved(self, source: int, target: int) -> ProblemMeta:
        """With one variant in another place, in each device class that has both places."""
        found: dict[DeviceClass, tuple[dict[str, KnobValue], ...]] = {}
        for name, declared in self.variants.items():
            variants = list(declared)
            if max(source, target) < len(variants):
                variants.insert(target, variants.pop(source))
            found[name] = tuple(variants)
        return self.model_copy(update={"variants": found})


class Problem(Record):
    """A PyTorch reference: source with ``Model``, ``get_inputs``, ``get_init_inputs`` (the KernelBench contract).

    ``variant`` is the number, in the order of the file, of the shape variant that is timed. It comes first in ``meta``,
    and where it is not the file's first one, it is part of the id: results on another variant are results on another
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
        """The problem as its file declares it, whose first variant is timed."""
        if self.variant == 0:
            return self
        known_as = self.id.removesuffix(f"{VARIANT_MARK}{self.variant}")
        return self.model_copy(update={"id": known_as, "meta": self.meta.moved(0, self.variant), "variant": 0})

    def at_variant(self, number: int) -> Problem:
        """The same problem with another variant of its file timed, by its number; all are checked as before."""
        declared = self.declared
        if number == 0:
            return declared
        meta = declared.meta.moved(number, 0)
        return declared.model_copy(
            update={"id": f"{declared.id}{VARIANT_MARK}{number}", "meta": meta, "variant": number}
        )


@lru_cache(maxsize=1024)  # asked for dozens of times in each round; no attribute, since copies would inherit it
def identity(source: str, knobs: str) -> str:
    return sha256_text(source.encode() + b"\0" + knobs.encode())
