"""Writes a C++ program that repeats recorded calls of C functions, with buffers of the recorded sizes.

The recording comes from a contestant and is taken as a claim. It is validated against a schema. Only numbers, and
identifiers of letters, digits and underscores, reach the program's text. The program loads the libraries as the
contestant did (``dlopen``), so a candidate's source never mixes with the driver's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

MEASURED_FUNCTION = "kw_measured"
DRIVER_NAME = "driver"
MAX_BUFFER_BYTES = 1 << 30
_ALIGNMENT = 64
MAX_CALLS = 64
_MAX_ARGUMENTS = 64

_C_TYPES = {f"int{bits}": f"std::int{bits}_t" for bits in (8, 16, 32, 64)}
_C_TYPES |= {f"uint{bits}": f"std::uint{bits}_t" for bits in (8, 16, 32, 64)}
_C_TYPES |= {"char": "signed char", "bool": "bool", "float": "float", "double": "double"}
_SPECIAL = {"inf": "__builtin_inf()", "-inf": "-__builtin_inf()", "nan": '__builtin_nan("")'}
# How a tensor is filled, by dtype. Other dtypes get zeros, which are safe as indices and offsets.
_FILL = {"float32": "FLOATS", "complex64": "FLOATS", "float64": "DOUBLES", "complex128": "DOUBLES"}
_FILL |= {"bfloat16": "BFLOATS", "float16": "HALVES", "bool": "BITS", "uint8": "BITS"}
_FILL |= {"float8_e4m3fn": "EIGHTHS", "float8_e5m2": "EIGHTHS"}


class CannotReplayError(ValueError):
    """The recorded calls cannot be repeated outside the contestant; the message says why."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


Size = Annotated[int, Field(ge=0, le=MAX_BUFFER_BYTES)]


class _TensorNote(_Strict):
    bytes: Size
    dtype: Annotated[str, Field(max_length=32)]
    elements: Size
    alias: int | None
    written_hint: bool | None
    buffer: Annotated[int, Field(ge=0, le=MAX_CALLS * _MAX_ARGUMENTS)]
    offset: Size


class _Tensor(_Strict):
    tensor: _TensorNote


class _Int(_Strict):
    int: Annotated[int, Field(ge=-(2**63), lt=2**64)]
    type: Annotated[str, Field(max_length=16)]


class _Float(_Strict):
    float: float | Literal["inf", "-inf", "nan"]
    type: Literal["float", "double"]


class _Bytes(_Strict):
    bytes_value: Annotated[int, Field(ge=0)]
    size: Annotated[int, Field(ge=1, le=4096)]


class _Null(_Strict):
    null: Literal[True]


class _Unknown(_Strict):
    unknown: Annotated[str, Field(max_length=200)]


Argument = _Tensor | _Int | _Float | _Bytes | _Null | _Unknown


class _Call(_Strict):
    source_key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    function: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,199}$")]
    arguments: Annotated[list[Argument], Field(max_length=_MAX_ARGUMENTS)]


_CALLS: TypeAdapter[list[_Call]] = TypeAdapter(Annotated[list[_Call], Field(min_length=1, max_length=MAX_CALLS)])


class Driver(NamedTuple):
    """A program's text, the libraries that it loads, and the bytes that it allocates.

    ``libraries`` holds (number, key): that key's library is loaded as ``./kernel<number>.so``.
    """

    source: str
    libraries: tuple[tuple[int, str], ...]
    buffer_bytes: int


def write_driver(calls: Sequence[Mapping[str, Any]], known_keys: Sequence[str]) -> Driver:
    """Write the program that repeats one forward's calls: ``driver WARM_CALLS``.

    After the warm calls it walks over memory larger than the caches, and then repeats the calls once more inside
    :data:`MEASURED_FUNCTION`. One-time preparations are then done, and the buffers are cold, as with fresh inputs for
    every call.

    Args:
        calls: from ``inline.record_calls``.
        known_keys: keys of the sources that can be built; a library's number is its key's position here.

    Raises:
        CannotReplayError: nothing was recorded, the recording is malformed, an argument cannot be repeated, a source
            is unknown, or the buffers are too large.
    """
    if not calls:
        raise CannotReplayError("no call of a C function was recorded")
    try:
        recorded = _CALLS.validate_python(list(calls))
    except (ValidationError, RecursionError) as error:
        raise CannotReplayError("the recording of its calls is malformed") from error
    if not all(call.source_key in known_keys for call in recorded):
        raise CannotReplayError("a recorded call belongs to none of the sources")
    return _Writer(recorded, known_keys).driver()


class _Writer:
    """Collects the parts of one driver's text."""

    def __init__(self, recorded: Sequence[_Call], known_keys: Sequence[str]) -> None:
        self.recorded = recorded
        self.number_of = {key: number for number, key in enumerate(known_keys)}
        self.sizes: dict[int, int] = {}  # bytes of every buffer
        self.fills: list[str] = []
        self.constants: list[str] = []

    def driver(self) -> Driver:
        loads, calls = [], []
        for number, call in enumerate(self.recorded):
            loads.append(f'functions[{number}] = find({self.number_of[call.source_key]}, "{call.function}");')
            calls.append(self._call(number, call))
        total = sum(self.sizes.values())
        if total > MAX_BUFFER_BYTES:
            limit = f"{MAX_BUFFER_BYTES >> 30} GiB is the limit"
            raise CannotReplayError(f"its buffers take {total / 2**30:.1f} GiB, and {limit}")
        parts = {
            "@BUFFERS@": str(max(self.sizes, default=0) + 1),
            "@FUNCTIONS@": str(len(self.recorded)),
            "@LIBRARIES@": str(len(self.number_of)),
            "@CONSTANTS@": "\n".join(self.constants),
            "@ALLOCATE@": "\n    ".join(f"allocate({number}, {size}UL);" for number, size in self.sizes.items()),
            "@FILL@": "\n    ".join(reversed(self.fills)),  # where two overlap, the first one recorded wins
            "@LOAD@": "\n    ".join(loads),
            "@CALLS@": "\n    ".join(calls),
            "@MEASURED@": MEASURED_FUNCTION,
        }
        source = _TEMPLATE
        for mark, text in parts.items():
            source = source.replace(mark, text)
        used = {call.source_key for call in self.recorded}
        libraries = tuple((number, key) for key, number in self.number_of.items() if key in used)
        return Driver(source, libraries, total)

    def _call(self, number: int, call: _Call) -> str:
        written = [self._argument(argument, call.function) for argument in call.arguments]
        types = ", ".join(c_type for c_type, _ in written)
        values = ", ".join(value for _, value in written)
        return f"reinterpret_cast<void (*)({types})>(functions[{number}])({values});"

    def _argument(self, argument: Argument, function: str) -> tuple[str, str]:
        """C type and expression of one argument."""
        if isinstance(argument, _Tensor):
            return "void *", self._memory(argument.tensor)
        if isinstance(argument, _Null):
            return "void *", "nullptr"
        if isinstance(argument, _Float):
            text = _SPECIAL.get(str(argument.float)) or float(argument.float).hex()
            return argument.type, f"static_cast<{argument.type}>({text})"
        if isinstance(argument, _Int) and argument.type in _C_TYPES:
            c_type = _C_TYPES[argument.type]
            return c_type, f"static_cast<{c_type}>({argument.int % 2**64}ULL)"
        if isinstance(argument, _Bytes) and argument.bytes_value < 256**argument.size:
            content = argument.bytes_value.to_bytes(argument.size, "little")
            name = f"constant{len(self.constants)}"
            self.constants.append(f"alignas(64) static unsigned char {name}[] = {{{', '.join(map(str, content))}}};")
            return "void *", name
        raise CannotReplayError(f"an argument of {function} is neither a tensor nor a number that was recorded")

    def _memory(self, note: _TensorNote) -> str:
        self.sizes[note.buffer] = max(self.sizes.get(note.buffer, 0), note.offset + note.bytes)
        address = f"at({note.buffer}, {note.offset}UL)"
        fill = f"fill({_FILL.get(note.dtype, 'ZEROS')}, {address}, {note.bytes}UL);"
        if fill not in self.fills:
            self.fills.append(fill)
        return address


_TEMPLATE = r"""
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>

enum Kind { FLOATS, DOUBLES, BFLOATS, HALVES, BITS, EIGHTHS, ZEROS };

static const unsigned long TILE = 4096, SCRUB_BYTES = 32UL << 20;
static unsigned char *buffers[@BUFFERS@];
static void *functions[@FUNCTIONS@];
static void *libraries[@LIBRARIES@];
@CONSTANTS@
static unsigned char *scrubbed;
static volatile unsigned long sink;

static void *at(unsigned long buffer, unsigned long offset) { return buffers[buffer] + offset; }

static void *aligned(unsigned long bytes) {
    void *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!memory) exit(11);
    memset(memory, 0, (bytes + 127) / 64 * 64);
    return memory;
}

static void allocate(unsigned long buffer, unsigned long bytes) {
    buffers[buffer] = static_cast<unsigned char *>(aligned(bytes));
}

// The sum of four uniform numbers, less its mean: near to normal, in [-2, 2).
static float next_value() {
    static std::uint64_t state = 0x9E3779B97F4A7C15ULL;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    float sum = 0;
    for (int part = 0; part < 4; part++) sum += static_cast<float>((state >> (16 * part)) & 0xFFFF) / 65536;
    return sum - 2;
}

static unsigned short half_of(float value) {
    std::uint32_t bits;
    memcpy(&bits, &value, 4);
    int exponent = static_cast<int>((bits >> 23) & 0xFF) - 112;
    unsigned sign = (bits >> 16) & 0x8000;
    return static_cast<unsigned short>(exponent <= 0 ? sign : sign | exponent << 10 | (bits >> 13 & 0x3FF));
}

static unsigned long element(Kind kind, unsigned char *out, unsigned long index) {
    float value = next_value();
    double wide = value;
    unsigned short half = half_of(value);
    switch (kind) {
    case FLOATS: memcpy(out, &value, 4); return 4;
    case DOUBLES: memcpy(out, &wide, 8); return 8;
    case BFLOATS: memcpy(out, reinterpret_cast<char *>(&value) + 2, 2); return 2;
    case HALVES: memcpy(out, &half, 2); return 2;
    case BITS: *out = index % 2; return 1;
    case EIGHTHS: *out = 0x38; return 1;
    default: *out = 0; return 1;
    }
}

static void fill(Kind kind, void *memory, unsigned long bytes) {
    static unsigned char tile[8 * TILE];
    unsigned long length = 0;
    for (unsigned long index = 0; index < TILE; index++) length += element(kind, tile + length, index);
    for (unsigned long done = 0; done < bytes; done += length)
        memcpy(static_cast<char *>(memory) + done, tile, bytes - done < length ? bytes - done : length);
}

static void *find(int number, const char *name) {
    char path[32];
    snprintf(path, sizeof path, "./kernel%d.so", number);
    if (!libraries[number]) libraries[number] = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *function = libraries[number] ? dlsym(libraries[number], name) : nullptr;
    if (!function) exit(12);
    return function;
}

static void scrub() {
    unsigned long sum = 0;
    for (unsigned long i = 0; i < SCRUB_BYTES; i += 64) sum += scrubbed[i];
    sink = sum;
}

static __attribute__((noinline)) void forward() {
    @CALLS@
}

extern "C" __attribute__((noinline)) void @MEASURED@() { forward(); }

int main(int, char **arguments) {
    scrubbed = static_cast<unsigned char *>(aligned(SCRUB_BYTES));
    @ALLOCATE@
    @FILL@
    @LOAD@
    for (long left = atol(arguments[1]); left > 0; left--) forward();
    scrub();
    @MEASURED@();
}
"""
