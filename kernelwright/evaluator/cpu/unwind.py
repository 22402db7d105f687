"""Finds the caller of a function of an installed library, by the library's own call frame information.

Compilers describe for every instruction where the caller's frame lies and where its registers were saved (DWARF 5,
section 6.4; ``.eh_frame`` and its search table as in the Linux Standard Base). The stack and the registers are those of
a hostile process; the libraries are this machine's own.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

# Where instruction and stack pointer stand among the registers, in DWARF's numbering. The bits of a return address
# above the user's part of memory may hold a signature on aarch64.
_X86_64: Final = platform.machine() != "aarch64"
IP, SP = (16, 7) if _X86_64 else (32, 31)
_LINK: Final = 30  # aarch64: the register that a call leaves its return address in
_ADDRESS_MASK: Final = (1 << 64) - 1 if _X86_64 else (1 << 48) - 1

_PT_LOAD, _PT_GNU_EH_FRAME = 1, 0x6474E550
_PROGRAM_HEADER: Final = struct.Struct("<IIQQQQQQ")
_SEARCH_TABLE: Final = 0x3B  # encoding of the usual search table: 32-bit offsets from its own start
_OMITTED: Final = 0xFF
_POINTER_FORMATS: Final = {0x00: "<Q", 0x02: "<H", 0x03: "<I", 0x04: "<Q", 0x0A: "<h", 0x0B: "<i", 0x0C: "<q"}
_RELATIVE_TO_FIELD: Final = 0x10

# Instructions by their operands: u, s (LEB128, unsigned and signed), 1, 2, 4 (bytes of a number), b (a block).
_BY_OPERANDS: Final = {
    "": (0x00, 0x0A, 0x0B, 0x2D),
    "1": (0x02,),
    "2": (0x03,),
    "4": (0x04,),
    "b": (0x0F,),
    "s": (0x13,),
    "u": (0x06, 0x07, 0x08, 0x0D, 0x0E, 0x2E),
    "ub": (0x10, 0x16),
    "us": (0x11, 0x12, 0x15),
    "uu": (0x05, 0x09, 0x0C, 0x14),
}
_OPERANDS: Final = {operation: kinds for kinds, operations in _BY_OPERANDS.items() for operation in operations}
_FIXED: Final = {"1": "<B", "2": "<H", "4": "<I"}


class UnknownCaller(Exception):
    """There is no call frame information here, or it needs a value that is not known."""


class Frame(NamedTuple):
    """Registers of one frame by DWARF's numbers (None: not known), and the stack that was copied.

    ``stack`` holds the words from address ``stack_start`` upwards. ``called`` is False for the frame that was sampled,
    whose instruction pointer is no return address.
    """

    registers: tuple[int | None, ...]
    stack_start: int
    stack: np.ndarray
    called: bool = False

    def word(self, address: int) -> int | None:
        """The stack's word at an address; None if it was not copied."""
        at, odd = divmod(address - self.stack_start, 8)
        return int(self.stack[at]) if not odd and 0 <= at < len(self.stack) else None

    def return_address_of_leaf(self) -> int | None:
        """The return address if the function is a leaf: it calls nothing and has put nothing on the stack."""
        if not _X86_64:
            return self.registers[_LINK]
        stack_pointer = self.registers[SP]
        return None if stack_pointer is None else self.word(stack_pointer)

    def caller_of_leaf(self) -> Frame:
        """The frame that a leaf returns to, with all other registers unchanged."""
        registers = list(self.registers)
        registers[IP] = self.return_address_of_leaf()
        if _X86_64:
            registers[SP] = (registers[SP] or 0) + 8
        return self._replace(registers=tuple(registers), called=True)


class _Rules(NamedTuple):
    """How to find a caller: its stack pointer is ``register + offset``; ``saved`` says where its registers are.

    A rule is a pair: ``at`` (saved at the caller's stack pointer plus n), ``is`` (that sum itself), ``in`` (register
    n), ``none`` (there is no such value; of the return address: there is no caller), ``unknown``.
    """

    base: tuple[int, int] | None
    saved: Mapping[int, tuple[str, int]]
    return_column: int


class _Cursor:
    """Reads numbers from bytes; ``address`` is where the first of them lies in memory."""

    def __init__(self, data: bytes, address: int) -> None:
        self.data, self.address, self.at = data, address, 0

    def fixed(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return int(value)

    def leb(self, *, signed: bool = False) -> int:
        value = shift = 0
        while True:
            byte = self.fixed("<B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value - (1 << shift) if signed and byte & 0x40 else value

    def pointer(self, encoding: int) -> int:
        field = self.address + self.at
        value = self.fixed(_POINTER_FORMATS[encoding & 0x0F])
        return value + field if encoding & 0x70 == _RELATIVE_TO_FIELD else value

    def skip(self, size: int) -> None:
        self.at += size

    def instructions(self) -> Iterator[tuple[int, list[int]]]:
        """Call frame instructions up to the end: operation and operands. A block's operand is left out."""
        while self.at < len(self.data):
            byte = self.fixed("<B")
            operation, operands = (byte & 0xC0, [byte & 0x3F]) if byte & 0xC0 else (byte, [])
            for kind in "u" if operation == 0x80 else "" if operation in (0x40, 0xC0) else _OPERANDS[operation]:
                if kind == "b":
                    self.skip(self.leb())
                else:
                    operands.append(self.fixed(_FIXED[kind]) if kind in _FIXED else self.leb(signed=kind == "s"))
            yield operation, operands


class _Common(NamedTuple):
    """The part that several functions' descriptions share (a CIE)."""

    code_align: int
    data_align: int
    return_column: int
    pointers: int  # encoding
    is_signal: bool
    instructions: _Cursor


class CallFrames:
    """The call frame information of one ELF file."""

    def __init__(self, path: str) -> None:
        """Read it.

        Raises:
            UnknownCaller: the file cannot be read, or has no call frame information in the usual form.
        """
        try:
            self._data = Path(path).read_bytes()
            self._read_headers()
        except (OSError, struct.error, ValueError) as error:
            raise UnknownCaller(f"no call frame information in {path}: {error}") from error
        self._known: dict[int, _Rules] = {}

    def caller(self, offset: int, frame: Frame) -> Frame | None:
        """The frame that called ``frame``, whose instruction pointer lies at ``offset`` in the file.

        None for the first function of a thread, which has no caller.

        Raises:
            UnknownCaller: the caller cannot be found.
        """
        try:
            address = self._address(offset) - frame.called
            if address not in self._known:
                self._known[address] = self._rules(address)
            return _apply(self._known[address], frame)
        except (struct.error, IndexError, KeyError, ValueError) as error:
            raise UnknownCaller(f"call frame information that is not understood: {error}") from error

    def _read_headers(self) -> None:
        (table,) = struct.unpack_from("<Q", self._data, 32)
        size, count = struct.unpack_from("<HH", self._data, 54)
        headers = list(_PROGRAM_HEADER.iter_unpack(self._data[table : table + size * count]))
        self._segments = [header for header in headers if header[0] == _PT_LOAD]
        _, _, start, self._table_address, *_ = next(header for header in headers if header[0] == _PT_GNU_EH_FRAME)
        _, frames, counted, kind = self._data[start : start + 4]
        if kind != _SEARCH_TABLE or frames == _OMITTED:
            raise ValueError("unusual search table")
        cursor = _Cursor(self._data[start : start + 64], self._table_address)
        cursor.skip(4)
        cursor.pointer(frames)
        entries = cursor.pointer(counted)
        rows = np.frombuffer(self._data, dtype="<i4", count=2 * entries, offset=start + cursor.at).reshape(-1, 2)
        self._starts, self._descriptions = rows[:, 0], rows[:, 1]

    def _address(self, offset: int) -> int:
        for _, _, start, address, _, size, _, _ in self._segments:
            if start <= offset < start + size:
                return int(address + offset - start)
        raise ValueError("an offset outside of the segments")

    def _entry(self, address: int) -> _Cursor:
        """The description at an address, its length already read."""
        for _, _, start, base, _, size, _, _ in self._segments:
            if base <= address < base + size:
                at = start + address - base
                (length,) = struct.unpack_from("<I", self._data, at)
                return _Cursor(self._data[at + 4 : at + 4 + length], address + 4)
        raise ValueError("an address outside of the segments")

    def _rules(self, address: int) -> _Rules:
        row = int(np.searchsorted(self._starts, address - self._table_address, side="right")) - 1
        if row < 0:
            raise ValueError("code before the first description")
        entry = self._entry(self._table_address + int(self._descriptions[row]))
        common = self._common(entry.address - entry.fixed("<I"))
        start = entry.pointer(common.pointers)
        size = entry.pointer(common.pointers & 0x0F)
        if not start <= address < start + size:
            raise ValueError("code without a description")
        entry.skip(entry.leb())  # the augmentation's data
        return _run(common, entry, start, address + common.is_signal)

    def _common(self, address: int) -> _Common:
        entry = self._entry(address)
        entry.skip(4)
        version = entry.fixed("<B")
        end = entry.data.index(b"\0", entry.at)
        augmentation = entry.data[entry.at : end].decode()
        entry.at = end + 1
        if version not in (1, 3) or not augmentation.startswith("z"):
            raise ValueError("unusual description")
        code_align, data_align = entry.leb(), entry.leb(signed=True)
        return_column = entry.fixed("<B") if version == 1 else entry.leb()
        body = entry.leb() + entry.at
        pointers = 0
        for letter in augmentation[1:]:
            if letter == "P":
                entry.pointer(entry.fixed("<B"))
            elif letter in "LR":
                encoding = entry.fixed("<B")
                pointers = encoding if letter == "R" else pointers
        entry.at = body
        return _Common(code_align, data_align, return_column, pointers, "S" in augmentation, entry)


def _run(common: _Common, entry: _Cursor, start: int, address: int) -> _Rules:
    """The rules that hold at ``address``, in the function that begins at ``start``."""
    state = _State(common.data_align)
    for operation, operands in common.instructions.instructions():
        state.step(operation, operands)
    state.initial = dict(state.saved)
    for operation, operands in entry.instructions():
        if operation in (0x40, 0x02, 0x03, 0x04):  # advance
            start += operands[0] * common.code_align
            if start > address:
                break
        else:
            state.step(operation, operands)
    return _Rules(state.base, state.saved, common.return_column)


class _State:
    """The table row that call frame instructions build."""

    def __init__(self, data_align: int) -> None:
        self.base: tuple[int, int] | None = None
        self.saved: dict[int, tuple[str, int]] = {}
        self.initial: dict[int, tuple[str, int]] = {}
        self._data_align = data_align
        self._remembered: list[tuple[tuple[int, int] | None, dict[int, tuple[str, int]]]] = []

    def step(self, operation: int, operands: list[int]) -> None:
        """Perform one instruction that does not advance."""
        if operation == 0x0A:  # remember_state
            self._remembered.append((self.base, dict(self.saved)))
        elif operation == 0x0B:  # restore_state
            self.base, self.saved = self._remembered.pop()
        elif operation in (0x0C, 0x0D, 0x0E, 0x0F, 0x12, 0x13):
            self._define_base(operation, operands)
        elif operation in (0xC0, 0x06):  # restore
            (register,) = operands
            self.saved.pop(register, None)
            if register in self.initial:
                self.saved[register] = self.initial[register]
        elif operands and operation != 0x2E:  # 0x2e: arguments' size
            self.saved[operands[0]] = self._rule(operation, operands)

    def _define_base(self, operation: int, operands: list[int]) -> None:
        register, offset = self.base or (0, 0)
        if operation in (0x0C, 0x12):
            register, offset = operands
        elif operation == 0x0D:
            (register,) = operands
        elif operation in (0x0E, 0x13):
            (offset,) = operands
        if operation in (0x12, 0x13):
            offset *= self._data_align
        self.base = None if operation == 0x0F else (register, offset)  # 0x0f: an expression

    def _rule(self, operation: int, operands: list[int]) -> tuple[str, int]:
        if operation in (0x80, 0x05, 0x11):
            return "at", operands[1] * self._data_align
        if operation in (0x14, 0x15):
            return "is", operands[1] * self._data_align
        if operation in (0x08, 0x09):
            return "in", operands[-1]
        return ("none", 0) if operation == 0x07 else ("unknown", 0)


def _apply(rules: _Rules, frame: Frame) -> Frame | None:
    if rules.base is None:
        raise ValueError("the caller's stack pointer is an expression")
    start = frame.registers[rules.base[0]]
    if start is None:
        raise ValueError("a register is not known")
    top = start + rules.base[1]
    registers = list(frame.registers)
    for register, (how, number) in rules.saved.items():
        if register < len(registers):
            sources = {"at": frame.word(top + number), "is": top + number}
            registers[register] = frame.registers[number] if how == "in" else sources.get(how)
    if rules.saved.get(rules.return_column) == ("none", 0):
        return None
    back = registers[rules.return_column]
    if back is None:
        raise ValueError("the return address is not known")
    registers[SP], registers[IP] = top, back & _ADDRESS_MASK
    return Frame(tuple(registers), frame.stack_start, frame.stack, called=True)
