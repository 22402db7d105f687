"""Layouts and values between referee and workers: they come back as they were, or are refused by name."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from kernelwright.evaluator.accuracy.arrays import DecodeError, decode
from kernelwright.evaluator.wire import tensors as wire

bounded = settings(max_examples=80, derandomize=True, deadline=None, database=None)
dtypes = st.sampled_from(wire.DTYPES)
sizes = st.integers(0, 9) | st.integers(0, 2**48)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda v: st.lists(v, max_size=6) | st.dictionaries(st.text(max_size=5), v, max_size=3),
    max_leaves=8,
)


@st.composite
def layouts(draw, sizes=sizes):
    """Shape and stride of as many dimensions."""
    dimensions = draw(st.integers(0, wire.MAX_DIMENSIONS))
    numbers = st.lists(sizes, min_size=dimensions, max_size=dimensions)
    return tuple(draw(numbers)), tuple(draw(numbers))


@st.composite
def specs(draw):
    shape, stride = draw(layouts(st.integers(0, 9)))
    return wire.TensorSpec(draw(st.text(max_size=8)), draw(dtypes), shape, stride, draw(st.integers(0, 2**47)))


def through_json(value):
    return json.loads(json.dumps(value, allow_nan=False))


# ----------------------------------------------------------------------------------------------- tensor layouts


@bounded
@given(specs())
def test_a_spec_comes_back_as_it_was(spec):
    back = wire.spec_from_json(through_json(wire.spec_to_json(spec)))
    assert back == spec
    assert (back.span_bytes, back.contiguous) == (spec.span_bytes, spec.contiguous)


@bounded
@given(st.text(max_size=5), dtypes, layouts(), sizes)
@example("x", "float64", ((2**47, 2**47), (2**47, 2**47)), 0)
@example("x", "int8", ((2**40 + 1,), (1,)), 0)
@example("x", "int8", ((2**40 - 1,), (1,)), 2**48)
def test_a_spec_is_bounded_or_refused(name, dtype, layout, offset):
    try:
        spec = wire.spec_from_json([name, dtype, list(layout[0]), list(layout[1]), offset])
    except ValueError:
        return
    assert 0 <= spec.span_bytes < 2**40
    assert 0 <= spec.offset < 2**48
    assert len(spec.shape) == len(spec.stride) <= wire.MAX_DIMENSIONS


fields = st.sampled_from(
    [None, True, -1, 2**48, 1.0, "float32", "x", [], [1], [-1], [True], [1.0], [None], [2**48], {}]
)


@settings(bounded, max_examples=300)
@given(st.lists(fields, min_size=4, max_size=6) | json_values)
def test_a_malformed_spec_is_a_value_error(value):
    assume(
        not (isinstance(value, list) and len(value) == 5 and isinstance(value[2], list) != isinstance(value[3], list))
    )
    try:
        spec = wire.spec_from_json(value)
    except ValueError:
        return
    assert type(spec.name) is str
    assert spec.dtype in wire.DTYPES
    assert all(type(number) is int for number in (*spec.shape, *spec.stride, spec.offset))


@pytest.mark.parametrize(("shape", "stride"), [([1], 5), (5, [1]), (None, [])])
def test_shape_and_stride_are_both_lists_or_it_is_a_value_error(shape, stride):
    with pytest.raises(ValueError, match="tensor spec"):
        wire.spec_from_json(["x", "float32", shape, stride, 0])


@bounded
@given(st.lists(specs(), max_size=6))
def test_placed_tensors_are_aligned_and_do_not_overlap(given_specs):
    placed, total = wire.place(given_specs)
    ends = [0]
    for spec, before in zip(placed, given_specs, strict=True):
        assert spec == before._replace(offset=spec.offset)
        assert spec.offset % wire.ALIGNMENT == 0
        assert spec.offset >= ends[-1]
        ends.append(spec.offset + spec.span_bytes)
    assert ends[-1] <= total
    assert total >= wire.ALIGNMENT


@bounded
@given(st.lists(st.integers(0, 6), max_size=5))
def test_contiguous_strides_are_those_of_numpy(shape):
    stride = wire.contiguous_stride(shape)
    spec = wire.TensorSpec("x", "float32", tuple(shape), stride)
    assert spec.elements == math.prod(shape)
    if spec.elements:
        assert spec.contiguous
        assert stride == tuple(step // 4 for step in np.empty(shape, dtype=np.float32).strides)


# ----------------------------------------------------------------------------------------------------- arguments

plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
hashable = st.recursive(plain, lambda v: st.lists(v, max_size=3).map(tuple), max_leaves=4)
arguments = st.recursive(
    plain,
    lambda v: (
        st.lists(v, max_size=3)
        | st.lists(v, max_size=3).map(tuple)
        | st.dictionaries(hashable.filter(lambda key: key == key), v, max_size=3)
    ),
    max_leaves=10,
)


@settings(bounded, max_examples=150)
@given(arguments)
@example({"list": [1]})
@example({"float": "nan"})
@example([float("nan"), float("-inf"), -0.0, True, 1, (), [], {}])
@example({(1, (None,)): {"dict": []}})
def test_arguments_come_back_with_their_types(value):
    assert repr(wire.decode_value(through_json(wire.encode_value(value)))) == repr(value)


@pytest.mark.parametrize("value", [object(), b"x", {1, 2}, 1j, [object()], {"a": (b"x",)}, range(3)])
def test_what_has_no_form_is_a_type_error(value):
    with pytest.raises(TypeError, match="cannot be handed over"):
        wire.encode_value(value)


@bounded
@given(st.sampled_from(["tuple", "list", "dict", "float", "dtype", "tensor", ""]), json_values)
def test_an_unknown_or_ambiguous_kind_is_a_value_error(kind, inner):
    if kind in ("tensor", ""):
        with pytest.raises(ValueError, match="unknown kind"):
            wire.decode_value({kind: inner})
    with pytest.raises(ValueError, match="unpack"):
        wire.decode_value({kind: inner, "other": 1})
    with pytest.raises(ValueError, match="unpack"):
        wire.decode_value({})


@bounded
@given(json_values.filter(lambda value: value not in wire.DTYPES))
def test_an_unknown_dtype_is_a_value_error(name):
    with pytest.raises(ValueError, match="unknown kind"):
        wire.decode_value({"dtype": name})


# ------------------------------------------------------------------------------------------------ hostile claims

claimed = (
    st.integers(-3, 9) | st.integers(-(2**70), 2**70) | st.sampled_from([2**31, 2**62, 2**63 - 1, 2**63, -(2**63)])
)


# Where numpy believes that a claim fits, though it does not: what relies on it reads foreign memory, or ends by a
# segmentation fault. Bounds counted in 64 bits come round to small ones, and an empty buffer passes for a large one.
BELIEVED = """
from kernelwright.evaluator.accuracy.arrays import DecodeError, decode
claims = [(b"", [1], [0]), (b"", [4], [1]), (b"", [2, 3], [3, 1])]
for size in range(2, 40):
    for sign in (0, 1):
        stride = (2**64 // 4 + sign * (size - 2)) // (size - 1)
        layouts = ([size], [stride]), ([2, size], [1, stride]), ([size, 3], [stride, 1])
        claims += [(bytes(64), *layout) for layout in layouts]
for buffer, shape, strides in claims:
    try:
        decode(buffer, "float32", shape, strides)
    except DecodeError:
        continue
    raise SystemExit(f"{len(buffer)} bytes were decoded as {shape} {strides}")
"""


def wraps(shape, strides) -> bool:
    return 0 not in shape and any(8 * step * (size - 1) >= 2**63 for size, step in zip(shape, strides, strict=True))


def decoded(buffer, dtype, shape, strides):
    """The array, or None where the claim is refused by the one documented error."""
    try:
        return decode(buffer, dtype, shape, strides)
    except DecodeError:
        return None


@settings(bounded, max_examples=300)
@given(st.binary(max_size=256), dtypes, st.lists(st.integers(-1, 9), max_size=4), st.data())
def test_strides_never_reach_outside_of_the_buffer(buffer, dtype, shape, data):
    strides = data.draw(st.none() | st.lists(claimed, min_size=len(shape), max_size=len(shape)))
    assume(strides is None or (buffer and not wraps(shape, strides)))
    result = decoded(buffer, dtype, shape, strides)
    if result is None:
        return
    assert result.shape == tuple(shape)
    assert result.flags.c_contiguous
    assert result.flags.owndata or result.base is None or result.base.flags.owndata
    assert not np.shares_memory(result, np.frombuffer(buffer, dtype=np.uint8)) or result.size == 0
    if strides is not None and result.size:
        reach = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
        assert reach * wire.ITEM_BYTES[dtype] <= len(buffer)


def test_claims_that_numpy_believes_are_refused():
    done = subprocess.run([sys.executable, "-c", BELIEVED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@settings(bounded, max_examples=200)
@given(st.binary(max_size=64), st.lists(claimed, max_size=40))
def test_a_dense_claim_of_any_shape_is_refused_where_it_does_not_fit(buffer, shape):
    result = decoded(buffer, "float32", shape, None)
    fits = len(shape) <= 32 and all(size >= 0 for size in shape) and 4 * math.prod(shape) <= len(buffer)
    if result is None:
        assert not fits or 0 in shape  # numpy refuses large sizes even where another one is 0
    else:
        assert fits
        assert result.tobytes() == buffer[: 4 * math.prod(shape)]


@bounded
@given(st.text(max_size=60), st.lists(claimed, max_size=3), st.lists(claimed, max_size=4))
def test_unknown_dtypes_and_lengths_that_differ_are_refused(dtype, shape, strides):
    assume(dtype not in wire.DTYPES)
    assert decoded(bytes(64), dtype, shape, None) is None
    if len(shape) != len(strides):
        assert decoded(bytes(64), "float32", shape, strides) is None


@bounded
@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), dtypes, st.data())
def test_a_claim_that_fits_is_what_numpy_sees(shape, dtype, data):
    order = data.draw(st.permutations(range(len(shape))))
    code = np.dtype("<u2" if dtype == "bfloat16" else "|b1" if dtype == "bool" else dtype)
    dense = np.arange(math.prod(shape)).reshape(shape).astype(code)
    view = dense.transpose(order)
    strides = [step // code.itemsize for step in view.strides]
    result = decoded(dense.tobytes(), dtype, view.shape, strides)
    if dtype == "bfloat16":
        assert np.array_equal(result.view(np.uint32) >> 16, view)
    else:
        assert result.dtype == code
        assert np.array_equal(result, view)
