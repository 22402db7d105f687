"""Recording calls: what a description holds, what shares memory, and that nothing is recorded outside of it."""

from __future__ import annotations

import ctypes
import json

import pytest
import torch

from kernelwright.inline import (
    ArgumentError,
    BuildRequest,
    CudaKernel,
    cpp,
    parse_signatures,
    record_calls,
    record_launches,
)

SOURCE = r"""
#include <cstdint>
#include <cstddef>
#define EXPORTED(name) extern "C" void name
extern "C" {
void scale(const float* x, float* y, int64_t n, float factor) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor;
}
double numbers(double a, int b, std::size_t c, bool d, float e) { return a + b + c + d + e; }
int64_t is_null(const void* p) { return p == nullptr; }
void nothing() {}
}
EXPORTED(hidden)(const float* x, int64_t n, float f) {}
"""
FLAGS = ("-O1", "-DX=1")


@pytest.fixture(scope="module")
def lib(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("module-cache")))
        return cpp(SOURCE, flags=FLAGS[:1], defines={"X": 1})


def tensors_of(call):
    return [argument["tensor"] for argument in call["arguments"] if "tensor" in argument]


def test_a_call_is_described_in_plain_json(lib):
    x, y = torch.ones(3, 8), torch.empty(3, 8)
    with record_calls() as calls:
        lib.scale(x, y, 24, 2.5)
    (call,) = calls
    assert json.loads(json.dumps(calls)) == calls
    assert call["source_key"] == BuildRequest("cpp", SOURCE, FLAGS).key
    assert call["function"] == "scale"
    common = {"bytes": 96, "dtype": "float32", "elements": 24, "alias": None, "offset": x.data_ptr() % 64}
    assert call["arguments"][0] == {"tensor": {**common, "written_hint": False, "buffer": 0}}
    assert call["arguments"][1]["tensor"]["written_hint"] is True
    assert call["arguments"][1]["tensor"]["buffer"] == 1
    assert call["arguments"][2:] == [{"int": 24, "type": "int64"}, {"float": 2.5, "type": "float"}]
    assert torch.equal(y, x * 2.5)


def test_numbers_carry_the_c_type_that_they_take(lib):
    with record_calls() as calls:
        lib.numbers(1, -2, 3, True, float("-inf"))
        lib.numbers(ctypes.c_double(0.5), ctypes.c_int(1), 0, False, float("nan"))
    assert calls[0]["arguments"] == [
        {"float": 1.0, "type": "double"},
        {"int": -2, "type": "int32"},
        {"int": 3, "type": "uint64"},
        {"int": 1, "type": "bool"},
        {"float": "-inf", "type": "float"},
    ]
    assert calls[1]["arguments"][0] == {"float": 0.5, "type": "double"}
    assert calls[1]["arguments"][4] == {"float": "nan", "type": "float"}
    json.dumps(calls, allow_nan=False)


def test_null_pointers_arrays_and_what_cannot_be_repeated(lib):
    with record_calls() as calls:
        lib.is_null(None)
        lib.is_null((ctypes.c_uint8 * 3)(1, 2, 3))
        lib.is_null(ctypes.byref(ctypes.c_int(1)))
        lib.is_null(ctypes.c_void_p(4096))
        lib.nothing()
    arguments = [call["arguments"] for call in calls]
    assert arguments[0] == [{"null": True}]
    assert arguments[1] == [{"bytes_value": 0x030201, "size": 3}]
    assert arguments[2] == [{"unknown": "CArgObject"}]
    assert arguments[3] == [{"unknown": "address"}]
    assert arguments[4] == []


def test_an_undeclared_function_is_recorded_by_the_default_conversions(lib):
    x = torch.ones(4)
    with record_calls() as calls:
        lib.hidden(x, 3, 0.5)
        lib.hidden(x, ctypes.c_int64(-3), ctypes.c_float(0.5))
    assert calls[0]["arguments"][1:] == [{"int": 3, "type": "int64"}, {"float": 0.5, "type": "float"}]
    assert calls[1]["arguments"][1:] == [{"int": -3, "type": "int64"}, {"float": 0.5, "type": "float"}]
    assert tensors_of(calls[0])[0]["written_hint"] is None


def test_shared_memory_is_one_buffer_within_and_between_calls(lib):
    x, y = torch.ones(64), torch.ones(64)
    with record_calls() as calls:
        lib.scale(x, y, 64, 1.0)
        lib.scale(y, y, 64, 1.0)
        lib.scale(y[16:], x[:16], 16, 1.0)
    first, second, third = map(tensors_of, calls)
    assert [t["buffer"] for t in first + second + third] == [0, 1, 1, 1, 1, 0]
    assert [t["alias"] for t in first + second + third] == [None, None, None, 0, None, None]
    assert third[0]["offset"] - first[1]["offset"] == 64
    assert third[0]["bytes"] == 192


def test_an_address_is_traced_to_the_tensor_that_owns_it(lib):
    x, y = torch.ones(4, 8), torch.empty(4, 8)
    with record_calls() as calls:
        lib.scale(ctypes.c_void_p(x.t().data_ptr()), y.data_ptr(), 32, 2.0)
        lib.scale(ctypes.c_void_p(x.data_ptr() + 64), y, 16, 2.0)
    first, second = map(tensors_of, calls)
    assert [(t["bytes"], t["dtype"], t["elements"]) for t in first] == [(128, "float32", 32)] * 2
    assert (second[0]["bytes"], second[0]["buffer"]) == (64, first[0]["buffer"])
    assert second[0]["offset"] - first[0]["offset"] == 64


def test_at_most_64_calls_are_kept_and_all_are_made(lib):
    x = torch.ones(1)
    with record_calls() as calls:
        for _ in range(70):
            lib.scale(x, x, 1, 2.0)
    assert len(calls) == 64
    assert float(x) == 2.0**70


def test_nothing_is_recorded_outside_and_recordings_nest(lib):
    x = torch.ones(1)
    call = lib.scale
    with record_calls() as outer:
        call(x, x, 1, 2.0)
        with record_calls() as inner:
            call(x, x, 1, 3.0)
    call(x, x, 1, 4.0)
    assert [c["arguments"][3]["float"] for c in outer] == [2.0, 3.0]
    assert [c["arguments"][3]["float"] for c in inner] == [3.0]


def test_a_recording_ends_with_an_exception_too(lib):
    x = torch.ones(1)
    with pytest.raises(ZeroDivisionError), record_calls() as calls:
        lib.scale(x, x, 1, 1 / int(not x.numel()))
    lib.scale(x, x, 1, 2.0)
    assert calls == []


@pytest.mark.parametrize(
    ("declared", "const"),
    [
        ("const float* x", True),
        ("float const *__restrict__ x", True),
        ("const float x[4]", True),
        ("reader x", True),
        ("fixed* x", True),
        ("float* const x", False),
        ("const writer x", False),
        ("float* x", False),
        ("const float** x", False),
        ("const float x", False),
    ],
)
def test_const_says_what_a_pointer_may_only_read(declared, const):
    source = "typedef const float* reader; typedef float* writer; typedef const float fixed;"
    (parameter,) = parse_signatures(f'{source} extern "C" void f({declared});')["f"].parameters
    assert parameter.const is const


def test_constness_makes_no_second_declaration():
    source = 'extern "C" void f(float* const x); extern "C" void f(float* x) {}'
    assert parse_signatures(source)["f"] is not None


# ------------------------------------------------------------------------------------------------------- launches


class Pair(ctypes.Structure):
    _fields_ = [("first", ctypes.c_int8), ("second", ctypes.c_double)]


def test_launches_are_recorded_as_their_parameters_lie_in_memory():
    """The layout is C's: the same values as members of one structure lie alike."""
    ran = []
    kernel = CudaKernel("scale", None, lambda *launch: ran.append(launch), "/product")
    values = [ctypes.c_int32(7), ctypes.c_void_p(1 << 40), ctypes.c_int8(-1), Pair(3, 2.5), ctypes.c_float(0.5)]

    class Whole(ctypes.Structure):
        _fields_ = [(f"v{i}", type(value)) for i, value in enumerate(values)]

    with record_launches() as launches:
        kernel[(4, 2), 128, 1024](*values)
        kernel[1, 1]()
    kernel[1, 1]()
    assert len(ran) == 3
    first, second = launches
    assert (first.product, first.name, first.shape, first.shared) == ("/product", "scale", (4, 2, 1, 128, 1, 1), 1024)
    assert Whole.from_buffer_copy(first.parameters.ljust(ctypes.sizeof(Whole), b"\0")).v3.second == 2.5
    whole = Whole.from_buffer_copy(first.parameters.ljust(ctypes.sizeof(Whole), b"\0"))
    assert (whole.v0, whole.v1, whole.v2, whole.v3.first, whole.v4) == (7, 1 << 40, -1, 3, 0.5)
    assert (second.parameters, second.fields) == (b"", ())
    assert [at for at, _ in first.fields] == [getattr(Whole, f"v{i}").offset for i in range(5)]
    assert [size for _, size in first.fields] == [ctypes.sizeof(value) for value in values]


def test_a_launch_that_is_not_allowed_is_not_recorded():
    kernel = CudaKernel("scale", None, lambda *launch: None, "/product")
    with record_launches() as launches, pytest.raises(ArgumentError, match="pass a tensor or a number"):
        kernel[1, 1](object())
    assert launches == []
