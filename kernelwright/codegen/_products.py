"""Which products and convolutions are generated kernels, what follows in them, and how they read their operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kernelwright.codegen._domain import NotFusible
from kernelwright.codegen._ir import BYTES, Index, Program, Value, root, through_view
from kernelwright.codegen._nest import Nest, analyse, is_element
from kernelwright.codegen._partition import Step
from kernelwright.codegen._size import Affine, Loop, Size, linearise, product
from kernelwright.records import KnobValue

_SMALL = 128  # rows, columns and depth up to which a matrix is small
# Of an H100: flops a second of a library's float32 products and convolutions.
_PRODUCT_FLOPS, _CONVOLUTION_FLOPS, _MEMORY_BYTES, _LAUNCH_SECONDS = 47e12, 33e12, 3e12, 3e-6
PART_DEPTH = 32  # the depth of an image's parts is a multiple of it


class Scheme(NamedTuple):
    """How matrix units compute a float32 product.

    Attributes:
        dtype: of the parts that each side is the sum of, ``parts`` of them.
        scaled: whether each row is first brought into the range of the dtype.
        flops: of float32 products a second that an H100 is expected to reach.
        side_bytes: bytes of one element of a side that are read and written before the product.
    """

    dtype: str
    parts: int
    scaled: bool
    flops: float
    side_bytes: float


SCHEMES = {
    "fp16x3": Scheme("float16", 2, True, 180e12, 12.0),
    "bf16x6": Scheme("bfloat16", 3, False, 90e12, 10.0),
}


def own_products(steps: list[Step], program: Program, options: Mapping[str, Any]) -> list[Step]:
    """Replace library products by generated kernels where the schedule says so, and fuse their epilogues."""
    results = {root(o) for o in program.outputs}
    readers: dict[Value, list[Step]] = {}
    for step in steps:
        for value in step.reads:
            readers.setdefault(value, []).append(step)
    replaced: dict[Step, Step] = {}
    own: dict[Step, Step] = {}  # products, with the steps that compute them and what follows
    dropped: set[Step] = set()
    for step in reversed(steps):
        choice = options.get({"matmul": "gemm", "conv": "conv"}.get(step.kind, ""))
        value = step.values[0]
        if not _is_own(value, choice):
            continue
        if not _writable(step, program, splits=options.get("backend") == "triton", units=choice in SCHEMES):
            continue
        users = readers.get(value, [])
        user = users[0] if len(users) == 1 and value not in results else None
        epilogue = None
        if user is not None and user.kind == "nest" and user not in replaced:
            epilogue = _epilogue(user, value, program.variants)
        if user is None or epilogue is None:
            own[step] = replaced[step] = Step(f"own_{step.kind}", step.values, step.outputs)
        else:
            dropped.add(step)
            values = [*step.values, *user.values]
            own[step] = Step(f"own_{step.kind}", values, user.outputs, epilogue=epilogue, region=user.region)
            replaced[user] = own[step]
    if options.get("backend") == "triton":
        dropped |= _read_as_bytes(steps, own, readers, results)
    return [replaced.get(s, s) for s in steps if s not in dropped]


def _read_as_bytes(
    steps: Sequence[Step], own: Mapping[Step, Step], readers: Mapping[Value, list[Step]], results: set[Value]
) -> set[Step]:
    """Steps that only cast bytes for own products. These read the bytes, and cast what they have read."""
    found = set()
    for step in steps:
        value, users = step.values[0], readers.get(step.values[0], [])
        if (
            len(step.values) == 1
            and is_cast_byte(value)
            and value not in results
            and all(user in own for user in users)
        ):
            found.add(step)
            for user in users:
                own[user].values.append(value)
    return found


def is_cast_byte(value: Value) -> bool:
    """True for a cast from bytes in memory to float32."""
    cast = value.op == "cast" and value.dtype == "float32" and value.args[0].dtype in BYTES
    return cast and root(value.args[0]).op == "leaf"


def reads_bytes(value: Value) -> bool:
    """True for a matrix product with a side that is cast from bytes."""
    sides = value.args if value.op == "matmul" else ()
    return any(is_cast_byte(shown) for side in sides for shown in _views(side) if not shown.is_view)


def _is_own(value: Value, choice: KnobValue | None) -> bool:
    if choice in SCHEMES and suits_units(value, str(choice)):
        return True
    return choice == "own" or (choice in ("mixed", *SCHEMES) and value.op == "matmul" and not suits_library(value))


def suits_library(value: Value) -> bool:
    """True for a float32 product of more than small matrices in memory: on ordinary units, vendors' kernels win."""
    left, right = value.args
    if reads_bytes(value):
        return False
    rows = product(left.shape[:-1] if len(right.shape) == 2 else left.shape[-2:-1], len(left.shape[0].values))
    sizes = (rows, value.shape[-1], left.shape[-1])
    return value.op == "matmul" and value.dtype == "float32" and any(size.timed > _SMALL for size in sizes)


def suits_units(value: Value, name: str) -> bool:
    """True for a float32 product for which a GPU's matrix units are expected to need less time than the library does.

    Args:
        name: of a scheme. Before the product, its kernels read both sides and write them in parts.
    """
    if name not in SCHEMES or not (suits_library(value) or _is_plain_image(value)):
        return False
    scheme, variants = SCHEMES[name], len(value.shape[0].values)
    results, left, right = (product(v.shape, variants).timed for v in (value, *value.args))
    depth, padded, library = value.args[0].shape[-1].timed, 1.0, _PRODUCT_FLOPS
    if value.op == "conv":
        channels = value.args[1].shape[1].timed
        depth, library = product(value.args[1].shape[1:], variants).timed, _CONVOLUTION_FLOPS
        padded = 1.0 if reads_patches(value) else -(-channels // PART_DEPTH) * PART_DEPTH / channels
    flops, sides = 2.0 * results * depth, left + right
    known = max(flops / library, 4.0 * (sides + results) / _MEMORY_BYTES)
    read = 2.0 * scheme.parts * padded * sides + 4.0 * results
    expected = max(padded * flops / scheme.flops, read / _MEMORY_BYTES)
    launches = 5 if scheme.scaled else 2
    expected += padded * scheme.side_bytes * sides / _MEMORY_BYTES + launches * _LAUNCH_SECONDS
    return bool(expected < known)


def _is_plain_image(value: Value) -> bool:
    """True for a float32 convolution of one group whose operands lie in memory as they are."""
    if value.op != "conv" or value.dtype != "float32" or value.attrs["transposed"] or value.attrs["named"] is not None:
        return False
    variants = len(value.shape[0].values)
    return value.attrs["groups"].equals(1) and all(operand_memory(a, variants) is root(a) for a in value.args)


def reads_patches(value: Value) -> bool:
    """True for a convolution without a border whose filters step at least as far as they are wide."""
    pairs = zip(value.args[1].shape[2:], value.attrs["stride"], strict=True)
    apart = all(
        size <= step for window, stride in pairs for size, step in zip(window.values, stride.values, strict=True)
    )
    return apart and all(border.equals(0) for border in value.attrs["padding"])


def _writable(step: Step, program: Program, *, splits: bool, units: bool) -> bool:
    value = step.values[0]
    if step.kind == "conv" and units:
        return True
    if step.kind == "conv" and splits:  # Triton's kernel: images of two dims, one group
        plain = all(operand_memory(a, program.variants) is root(a) for a in value.args)
        simple = len(value.shape) == 4 and not value.attrs["transposed"] and value.attrs["groups"].equals(1)
        return plain and simple and value.attrs["named"] is None
    if step.kind == "conv":
        return True
    if splits:
        return split_layout(value, program.variants) is not None
    return matrix_layout(value, program.variants, copies=True) is not None


def operand_memory(value: Value, variants: int) -> Value:
    """The value to pass as row-major memory: its root if it only reshapes the root, else a copy of the value itself."""
    loops = [Loop(f"d{d}", size) for d, size in enumerate(value.shape)]
    index = tuple(Affine.of(lp) for lp in loops)
    found = access(value, index, variants)
    plain = found is not None and found[1] == linearise(index, value.shape, variants)
    return root(value) if plain else value


def _epilogue(user: Step, value: Value, variants: int) -> Nest | None:
    """The nest of a product's reader over the rows and columns of the product, or None if it does not fit."""
    columns = value.shape[-1] if value.op == "matmul" else product(value.shape[2:], variants)
    try:
        nest = analyse(user.region, user.outputs, variants, columns)
    except NotFusible:
        return None
    if nest.mode != "pointwise" or not all(is_element(nest, e) for _, e, _ in nest.stores):
        return None
    loops = [*nest.outer, *nest.inner]
    natural = linearise([Affine.of(lp) for lp in loops], [lp.extent for lp in loops], variants)
    spots = {e.position for e in nest.order if e.kind == "load" and e.value is value}
    gathered = any(e.kind == "gather" and e.value.args[0] is value for e in nest.order)
    return nest if spots == {natural} and not gathered and nest.volume() == product(value.shape, variants) else None


# ------------------------------------------------------------------------------------------------ access patterns


@dataclass
class Layout:
    """How a product reads its operands: batch loops, and the loops over rows, columns and depth.

    ``inner`` is the inner one of two depth loops. It is set if no single index can walk along an operand's depth.
    """

    batch: list[Loop]
    m: Loop
    n: Loop
    k: Loop
    left: tuple[Value, Affine]
    right: tuple[Value, Affine]
    inner: Loop | None = None


def access(
    value: Value, index: Index, variants: int, copies: bool = False, casts: bool = False
) -> tuple[Value, Affine] | None:
    """The memory of an operand and the position in it, or None.

    Args:
        copies: a view may be copied into memory. casts: bytes may be read, to be cast by the reader.
    """
    shown, place = value, index
    while shown.is_view or (casts and is_cast_byte(shown)):
        if not shown.is_view:
            shown = shown.args[0]
            continue
        source = _unshaped(shown)
        source = _unshaped(source.args[0]) if casts and is_cast_byte(source) else source
        if not source.is_view:  # only the shape differs, so the position in memory is the same
            return source, linearise(place, shown.shape, variants)
        found = through_view(shown, place, variants)
        if found is None:
            return (value, linearise(index, value.shape, variants)) if copies else None
        shown, place = shown.args[0], found
    return shown, linearise(place, shown.shape, variants)


def _unshaped(value: Value) -> Value:
    """A value before it was seen in other shapes."""
    while value.op == "reshape":
        value = value.args[0]
    return value


def split_layout(value: Value, variants: int) -> Layout | None:
    """The access pattern of a product. Its depth may be two loops, as when attention heads are apart in memory."""
    found = matrix_layout(value, variants, casts=True)
    depth = value.args[0].shape[-1]
    for size in (s for operand in value.args for shown in _views(operand) for s in shown.shape):
        if found is None and size.divides(depth) and not size.equals(1) and size != depth:
            found = matrix_layout(value, variants, size, casts=True)
    return found


def _views(value: Value) -> Iterator[Value]:
    """A value, followed by the chain of values that it is a view of."""
    yield value
    while value.is_view:
        value = value.args[0]
        yield value


def matrix_layout(
    value: Value, variants: int, split: Size | None = None, *, copies: bool = False, casts: bool = False
) -> Layout | None:
    """The access pattern of a product, or None if an operand is not a strided matrix.

    Args:
        split: the extent of the inner one of two loops over the depth; None for one loop.
        copies: copy an operand that is not a strided matrix. casts: read bytes, which the kernel then casts.
    """
    left, right = value.args
    leading = [Loop(f"b{d}", size) for d, size in enumerate(left.shape[:-2])]
    m, n, k = Loop("m", left.shape[-2]), Loop("n", value.shape[-1]), Loop("k", left.shape[-1])
    depth, inner = Affine.of(k), None
    if split is not None:
        k, inner = Loop("k", left.shape[-1] // split), Loop("k_inner", split)
        depth = Affine.of(k).scaled(split).plus(Affine.of(inner))

    def at(*loops: Loop) -> Index:
        return tuple(Affine.of(lp) for lp in loops)

    batch_right = leading if len(right.shape) > 2 else []
    ends = (*at(n), depth) if value.attrs["transposed"] else (depth, *at(n))
    a = access(left, (*at(*leading, m), depth), variants, copies, casts)
    b = access(right, (*at(*batch_right), *ends), variants, copies, casts)
    if a is None or b is None:
        return None
    layout = Layout(leading, m, n, k, a, b, inner)
    return _merged(layout, variants)


def _merged(layout: Layout, variants: int) -> Layout:
    """Merge batch loops with each other, and with the row loop if B does not depend on them."""
    while layout.batch:
        last = layout.batch[-1]
        inner = layout.m if layout.right[1].coefficient(last).equals(0) else None
        if inner is None and len(layout.batch) > 1:
            first = layout.batch[-2]
            if all(p.coefficient(first) == p.coefficient(last) * last.extent for _, p in (layout.left, layout.right)):
                joined = Loop(first.name, first.extent * last.extent)
                layout = _join(layout, first, last, joined)
                layout.batch = [*layout.batch[:-2], joined]
                continue
            return layout
        if inner is None or layout.left[1].coefficient(last) != layout.left[1].coefficient(layout.m) * layout.m.extent:
            return layout
        joined = Loop("m", last.extent * layout.m.extent)
        layout = _join(layout, last, layout.m, joined)
        layout.m, layout.batch = joined, layout.batch[:-1]
    return layout


def _join(layout: Layout, first: Loop, second: Loop, joined: Loop) -> Layout:
    def moved(position: Affine) -> Affine:
        rest = tuple((lp, s) for lp, s in position.terms if lp not in (first, second))
        step = position.coefficient(second)
        return Affine(position.offset, (*rest, (joined, step)) if any(step.values) else rest)

    (a, p), (b, q) = layout.left, layout.right
    return Layout(layout.batch, layout.m, layout.n, layout.k, (a, moved(p)), (b, moved(q)), layout.inner)
