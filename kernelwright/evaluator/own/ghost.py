"""Ghost replay: a copy of a build product whose kernels do nothing.

The product is patched as bytes, outside of any process: the entry of every exported function that the source declares
as ``extern "C" void`` becomes a return. A candidate that still answers correctly with the copy does not need its own
kernels. The copy is evidence, no proof: a candidate can notice that its kernels are idle and answer differently.

Source and product are hostile. The product is only read at checked offsets and never loaded. The source's declarations
are read in a short-lived process under limits, because a few lines (macros that double each other, say) can cost the
parser any time and memory.
"""

from __future__ import annotations

import functools
import json
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import kernelwright

_MAX_SYMBOLS: Final = 1 << 16
_MAX_SEGMENTS: Final = 64
_MAX_DYNAMIC_ENTRIES: Final = 4096
_MAX_NAME_BYTES: Final = 1024
_MAX_ADDRESS: Final = 1 << 64
_REASON_NAMES: Final = 8
_REASON_CHARS: Final = 1000
_REASON_TYPE_CHARS: Final = 40

_PARSE_TIMEOUT_S: Final = 20.0  # of wall clock, for a busy machine; at most 2 s of it are processor time
_PARSE_PROGRAM: Final = """
import json, math, resource, sys, time
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
sys.path.insert(0, sys.argv[1])
from kernelwright.inline import parse_signatures
source, defines = json.load(sys.stdin)
limit = math.ceil(time.process_time()) + 2  # what came before depends on the machine, not on the source
resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
found = parse_signatures(source, defines)
json.dump({name: signature and signature.returns for name, signature in found.items()}, sys.stdout)
"""

_ET_DYN: Final = 3
_PT_LOAD, _PT_DYNAMIC = 1, 2
_EXECUTABLE: Final = 1
_DT_STRTAB, _DT_SYMTAB, _DT_HASH, _DT_STRSZ, _DT_GNU_HASH = 5, 6, 4, 10, 0x6FFFFEF5
_SHN_UNDEF, _SHN_ABS = 0, 0xFFF1
_STB_LOCAL: Final = 0
_STT_FUNC, _STT_TLS, _STT_IFUNC = 2, 6, 10
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_PROGRAM_HEADER: Final = struct.Struct("<IIQQQQQQ")


class GhostProduct(NamedTuple):
    """A patched product.

    Attributes:
        product: the copy, of the same size; None if nothing could be stubbed.
        stubbed: exported functions that now return at once.
        kept: exported functions that still run, C++ ones by their mangled names: hostile text, cut to 1024 characters.
        reason: why nothing, or not everything, was stubbed; empty if everything was. Quotes symbol names.
    """

    product: bytes | None
    stubbed: tuple[str, ...]
    kept: tuple[str, ...]
    reason: str


class _Stub(NamedTuple):
    """Code that replaces a function's entry on one architecture."""

    landing: bytes  # where indirect calls must land (control-flow enforcement): kept if a function has it
    plain: bytes  # return
    resolver: dict[bool, bytes]  # by whether it follows a landing: return the address of this very function


# An indirect function (``target_clones``) exports its resolver. Its stub returns its own address. So
# the resolver resolves to itself, and does nothing when it is called as the function that was asked for.
_STUBS: Final = {
    62: _Stub(  # EM_X86_64
        bytes.fromhex("f30f1efa"),  # endbr64
        bytes.fromhex("c3"),  # ret
        {
            False: bytes.fromhex("488d05f9ffffffc3"),  # lea rax, [rip - 7]; ret
            True: bytes.fromhex("488d05f5ffffffc3"),  # lea rax, [rip - 11]; ret
        },
    ),
    183: _Stub(  # EM_AARCH64
        bytes.fromhex("5f2403d5"),  # bti c
        bytes.fromhex("c0035fd6"),  # ret
        {
            False: bytes.fromhex("00000010c0035fd6"),  # adr x0, .; ret
            True: bytes.fromhex("e0ffff10c0035fd6"),  # adr x0, . - 4; ret
        },
    ),
}


class _Malformed(Exception):
    """The product is not a shared object that the loader would take; the message says why."""


class _Segment(NamedTuple):
    """A part of the file and the memory that it is mapped to."""

    address: int
    offset: int
    size: int  # bytes that come from the file
    executable: bool


class _Symbol(NamedTuple):
    name: str
    kind: int
    address: int
    size: int


def stub_functions(product: bytes, source: str, *, defines: Mapping[str, str] | None = None) -> GhostProduct:
    """A copy of ``product`` in which the functions that ``source`` declares ``extern "C" void`` return at once.

    Functions that return values cannot be stubbed, nor can anything of a Python extension (``load_inline``), whose
    functions return objects. An address with several names is stubbed if all of them return nothing.

    Args:
        product: an ELF64 shared object for x86-64 or aarch64, as the builder made it.
        source: the C++ text that it was built from.
        defines: macros of the compiler's command line (name to replacement).
    """
    try:
        image = _Image(product)
        symbols = image.symbols()
    except _Malformed as error:
        return GhostProduct(None, (), (), f"the product cannot be patched: {error}")
    if any(symbol.name.startswith("PyInit_") for symbol in symbols):
        return GhostProduct(None, (), (), "a Python extension cannot be stubbed: its functions return objects")
    returns = declared_returns(source, defines or {})
    if returns is None:
        names = tuple(sorted({symbol.name for symbol in symbols}))
        return GhostProduct(None, (), names, "the source's declarations could not be read within limits")
    return _stub(image, symbols, returns)


def undefined_symbols(product: bytes) -> frozenset[str]:
    """Names that a product asks other libraries for: hostile text. Empty if it cannot be read."""
    try:
        return frozenset(_Image(product).undefined())
    except _Malformed:
        return frozenset()


def _stub(image: _Image, symbols: Iterable[_Symbol], returns: Mapping[str, str | None]) -> GhostProduct:
    entries: dict[int, list[_Symbol]] = {}
    for symbol in symbols:
        entries.setdefault(symbol.address, []).append(symbol)
    starts = sorted(entries)
    stubbed: set[str] = set()
    obstacles: dict[str, str] = {}
    patched = bytearray(image.data)
    for start, end in zip(starts, [*starts, _MAX_ADDRESS][1:], strict=True):
        called = _called(entries[start])
        obstacle = _returning(called, returns) or _patch(image, patched, entries[start], end)
        if obstacle:
            obstacles |= {symbol.name: obstacle for symbol in entries[start]}
        else:
            stubbed |= {symbol.name for symbol in called}
    stubbed -= set(obstacles)  # a name with several versions, not all of which could be stubbed
    kept = sorted(obstacles, key=lambda name: (name not in returns, name))
    reason = _explain([f"{name} ({obstacles[name]})" for name in kept], bool(stubbed))
    return GhostProduct(bytes(patched) if stubbed else None, tuple(sorted(stubbed)), tuple(kept), reason)


def _called(group: list[_Symbol]) -> list[_Symbol]:
    """The symbols at one address that are called by name. A resolver of an indirect function often has a name, too."""
    return [symbol for symbol in group if symbol.kind == _STT_IFUNC] or group


def _returning(group: Iterable[_Symbol], returns: Mapping[str, str | None]) -> str:
    """Why functions must not be stubbed because of their return types, or an empty string."""
    for symbol in group:
        if symbol.name not in returns:
            return 'it is not declared extern "C"'
        returned = returns[symbol.name]
        if returned is None:
            return "it is declared in two ways"
        if returned != "void":
            return f"it returns {returned[:_REASON_TYPE_CHARS]}"
    return ""


def _patch(image: _Image, patched: bytearray, group: list[_Symbol], end: int) -> str:
    """Overwrite the entry that a group of symbols shares, before ``end``. Return an obstacle, or an empty string."""
    address, stub = group[0].address, image.stub
    offset = image.code_offset(address, len(stub.landing))
    landing = offset is not None and image.data[offset : offset + len(stub.landing)] == stub.landing
    indirect = any(symbol.kind == _STT_IFUNC for symbol in group)
    code = stub.resolver[landing] if indirect else stub.plain
    skip = len(stub.landing) if landing else 0
    offset = image.code_offset(address, skip + len(code))
    room = min([end - address, *(symbol.size for symbol in group if symbol.size)])
    if offset is None or room < skip + len(code):
        return "its code is too short"
    patched[offset + skip : offset + skip + len(code)] = code
    return ""


def _explain(kept: list[str], some: bool) -> str:
    if not kept:
        return "" if some else "the product exports no function"
    more = f" and {len(kept) - _REASON_NAMES} more" if len(kept) > _REASON_NAMES else ""
    return f"{'not' if some else 'nothing was'} stubbed: {', '.join(kept[:_REASON_NAMES])}"[:_REASON_CHARS] + more


def declared_returns(source: str, defines: Mapping[str, str]) -> Mapping[str, str | None] | None:
    """The return type of each ``extern "C"`` function, from a parser in its own process; recent answers are remembered.

    None instead of all if the source exhausts the parser; None for a function that is declared in two ways.
    """
    return _declared_returns(source, tuple(sorted(defines.items())))


@functools.lru_cache(maxsize=16)
def _declared_returns(source: str, defines: tuple[tuple[str, str], ...]) -> Mapping[str, str | None] | None:
    program = [sys.executable, "-I", "-S", "-c", _PARSE_PROGRAM, str(Path(kernelwright.__file__).parent.parent)]
    text = json.dumps([source, dict(defines)]).encode()
    try:
        done = subprocess.run(program, input=text, capture_output=True, timeout=_PARSE_TIMEOUT_S, check=True, env={})
        returns: Mapping[str, str | None] = json.loads(done.stdout)
    except (subprocess.SubprocessError, ValueError):
        return None
    return returns


# --------------------------------------------------------------------------------------------------------------- ELF


class _Image:
    """A shared object as the dynamic loader reads it: by program headers and the dynamic section alone."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        header = self._read(0, 64)
        if header[:6] != b"\x7fELF\x02\x01":
            raise _Malformed("it is no little-endian ELF64 file")
        kind, machine = struct.unpack_from("<HH", header, 16)
        if kind != _ET_DYN or machine not in _STUBS:
            raise _Malformed("it is no shared object for x86-64 or aarch64")
        self.stub = _STUBS[machine]
        (table,) = struct.unpack_from("<Q", header, 32)
        entry_size, count = struct.unpack_from("<HH", header, 54)
        if entry_size != _PROGRAM_HEADER.size or not 0 < count <= _MAX_SEGMENTS:
            raise _Malformed("its program headers are malformed")
        headers = list(_PROGRAM_HEADER.iter_unpack(self._read(table, entry_size * count)))
        self._segments = _segments(headers, len(data))
        self._dynamic = self._read_dynamic(headers)

    def symbols(self) -> list[_Symbol]:
        """Every symbol of executable memory that the loader can find by name."""
        names = self._at(self._tag(_DT_STRTAB), self._tag(_DT_STRSZ))
        count = self._symbol_count()
        table = self._at(self._tag(_DT_SYMTAB), count * _SYMBOL.size)
        found = []
        for name_at, info, _, section, address, size in _SYMBOL.iter_unpack(table):
            if section in (_SHN_UNDEF, _SHN_ABS) or info >> 4 == _STB_LOCAL or info & 15 == _STT_TLS:
                continue
            if self.code_offset(address, 1) is None or (name := _text(names, name_at)) in ("", "_init", "_fini"):
                continue
            found.append(_Symbol(name, info & 15, address, size))
        return found

    def undefined(self) -> set[str]:
        """Every symbol that the loader looks for elsewhere."""
        names = self._at(self._tag(_DT_STRTAB), self._tag(_DT_STRSZ))
        # Undefined symbols come before those that the hash table reaches. The hash table may reach none.
        table = self._at(self._tag(_DT_SYMTAB), self._symbol_count() * _SYMBOL.size)
        entries = _SYMBOL.iter_unpack(table)
        return {_text(names, name_at) for name_at, _, _, section, _, _ in entries if section == _SHN_UNDEF and name_at}

    def code_offset(self, address: int, size: int) -> int | None:
        """The offset of ``size`` bytes of executable memory in the file, or None if they are not in it."""
        for segment in self._segments:
            at = address - segment.address
            if segment.executable and at >= 0 and at + size <= segment.size:
                return segment.offset + at
        return None

    def _read(self, offset: int, size: int) -> bytes:
        if offset < 0 or size < 0 or offset + size > len(self.data):
            raise _Malformed("it is cut short or points outside of itself")
        return self.data[offset : offset + size]

    def _at(self, address: int, size: int) -> bytes:
        """Bytes by their address in memory; they must come from the file."""
        for segment in self._segments:
            if segment.address <= address and address + size <= segment.address + segment.size:
                return self._read(segment.offset + address - segment.address, size)
        raise _Malformed("a table lies outside of its segments")

    def _read_dynamic(self, headers: list[tuple[int, ...]]) -> dict[int, int]:
        sections = [header for header in headers if header[0] == _PT_DYNAMIC]
        if len(sections) != 1:
            raise _Malformed("it has no single dynamic section")
        offset, size = sections[0][2], sections[0][5]
        count = min(size // 16, _MAX_DYNAMIC_ENTRIES)
        entries: dict[int, int] = {}
        for tag, value in struct.iter_unpack("<QQ", self._read(offset, count * 16)):
            if tag == 0:
                break
            entries[tag] = value  # the last of several counts, as for the loader
        return entries

    def _tag(self, tag: int) -> int:
        if tag not in self._dynamic:
            raise _Malformed("its dynamic section lacks the symbol table")
        return self._dynamic[tag]

    def _symbol_count(self) -> int:
        """The number of entries of the symbol table that its hash tables reach."""
        count: int
        if _DT_GNU_HASH in self._dynamic:
            count = self._gnu_hash_count(self._dynamic[_DT_GNU_HASH])
        elif _DT_HASH in self._dynamic:
            _, count = struct.unpack("<II", self._at(self._dynamic[_DT_HASH], 8))
        else:
            raise _Malformed("it has no hash table, so nothing can be found by name")
        if count > _MAX_SYMBOLS:
            raise _Malformed(f"it has more than {_MAX_SYMBOLS} symbols")
        return count

    def _gnu_hash_count(self, address: int) -> int:
        header: tuple[int, int, int, int] = struct.unpack("<IIII", self._at(address, 16))
        buckets, first, bloom, _ = header
        if max(buckets, first, bloom) > _MAX_SYMBOLS:
            raise _Malformed("its hash table is too large")
        heads: tuple[int, ...] = struct.unpack(f"<{buckets}I", self._at(address + 16 + 8 * bloom, 4 * buckets))
        last = max(heads, default=0)
        if last < first:
            return first
        chains = address + 16 + 8 * bloom + 4 * buckets
        while last < _MAX_SYMBOLS:
            (link,) = struct.unpack("<I", self._at(chains + 4 * (last - first), 4))
            last += 1
            if link & 1:
                break
        return last


def _segments(headers: list[tuple[int, ...]], file_bytes: int) -> list[_Segment]:
    found: list[_Segment] = []
    end = 0
    for kind, flags, offset, address, _, in_file, in_memory, _ in headers:
        if kind != _PT_LOAD:
            continue
        if offset + in_file > file_bytes or in_file > in_memory or address < end:
            raise _Malformed("its segments overlap or lie outside of the file")
        end = address + in_memory
        found.append(_Segment(address, offset, in_file, bool(flags & _EXECUTABLE)))
    if end > _MAX_ADDRESS:
        raise _Malformed("its segments lie outside of memory")
    return found


def _text(table: bytes, start: int) -> str:
    if start >= len(table):
        raise _Malformed("a symbol's name lies outside of the string table")
    return table[start : start + _MAX_NAME_BYTES].partition(b"\0")[0].decode(errors="backslashreplace")
