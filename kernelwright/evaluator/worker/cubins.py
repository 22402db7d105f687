"""What a cubin tells of its kernels: names, code, and where each parameter of a launch lies.

A cubin is an ELF file. A kernel's section ``.nv.info.<kernel>`` is a list of attributes, whose form ``cuobjdump -elf``
prints: a byte for the form, one for the attribute, and two for a value or for the bytes that follow.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

__all__ = ["Field", "Kernel", "kernels_of"]

Field = tuple[int, int]  # offset and size of a parameter, in bytes

_INFO, _CODE = ".nv.info.", ".text."
_HEADERS_AT, _HEADERS = 40, struct.Struct("<Q")  # of ELF's sections
_TABLE_AT, _TABLE = 58, struct.Struct("<3H")  # size of a header, how many, which one has the names
_HEADER = struct.Struct("<IIQQQQ")  # name, type, flags, address, place in the file, size
_ATTRIBUTE = struct.Struct("<BBH")
_SIZED = 4  # EIFMT_SVAL: bytes follow
_PARAMETER, _LARGE_PARAMETER = 0x17, 0x45  # EIATTR_KPARAM_INFO; the form that sizes beyond 14 bits have
_PACKED = struct.Struct("<IHHI")  # index, ordinal, offset, size from bit 18 on
_PLAIN = struct.Struct("<IHHHH")  # index, ordinal, offset, size


class Kernel(NamedTuple):
    """A kernel's parameters in order, and a hash of its machine code; of the image, if that has no such section."""

    fields: tuple[Field, ...]
    code: str


def kernels_of(image: bytes) -> dict[str, Kernel]:
    """The kernels of a cubin by their symbols. Empty for anything else, or where it is cut off."""
    try:
        sections = _sections(image)
        names = [name[len(_INFO) :] for name in sections if name.startswith(_INFO)]
        codes = {name: hashlib.sha256(sections.get(_CODE + name, image)).hexdigest() for name in names}
        return {name: Kernel(tuple(_fields(sections[_INFO + name])), codes[name]) for name in names}
    except (struct.error, ValueError, IndexError, KeyError):
        return {}


def _sections(image: bytes) -> dict[str, bytes]:
    if image[:4] != b"\x7fELF":
        return {}
    (start,) = _HEADERS.unpack_from(image, _HEADERS_AT)
    size, count, naming = _TABLE.unpack_from(image, _TABLE_AT)
    headers = [_HEADER.unpack_from(image, start + number * size) for number in range(count)]
    names, found = headers[naming][4], {}
    for name, _, _, _, at, length in headers:
        text = image[names + name : image.index(b"\0", names + name)].decode(errors="replace")
        found[text] = image[at : at + length]
    return found


def _fields(info: bytes) -> list[Field]:
    """Offset and size of each parameter, in order.

    Raises:
        KeyError: one of them is not told.
    """
    found: dict[int, Field] = {}
    at = 0
    while at < len(info):
        form, attribute, size = _ATTRIBUTE.unpack_from(info, at)
        at += _ATTRIBUTE.size
        if form != _SIZED:
            continue
        if attribute == _PARAMETER:
            _, ordinal, offset, packed = _PACKED.unpack_from(info, at)
            found[ordinal] = offset, packed >> 18
        elif attribute == _LARGE_PARAMETER:
            _, ordinal, offset, length, _ = _PLAIN.unpack_from(info, at)
            found[ordinal] = offset, length
        at += size
    return [found[ordinal] for ordinal in range(len(found))]
