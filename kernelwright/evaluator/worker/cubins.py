"""What a cubin tells of its kernels: names, and where each parameter of a launch lies.

A cubin is an ELF file. A kernel's section ``.nv.info.<kernel>`` is a list of attributes, whose form ``cuobjdump -elf``
prints: a byte for the form, one for the attribute, and two for a value or for the bytes that follow.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

__all__ = ["Field", "kernels_of"]

Field = tuple[int, int]  # offset and size of a parameter, in bytes

_INFO = ".nv.info."
_HEADERS_AT, _HEADERS = 40, struct.Struct("<Q")  # of ELF's sections
_TABLE_AT, _TABLE = 58, struct.Struct("<3H")  # size of a header, how many, which one has the names
_HEADER = struct.Struct("<IIQQQQ")  # name, type, flags, address, place in the file, size
_ATTRIBUTE = struct.Struct("<BBH")
_SIZED = 4  # EIFMT_SVAL: bytes follow
_PARAMETER, _LARGE_PARAMETER = 0x17, 0x45  # EIATTR_KPARAM_INFO; the form that sizes beyond 14 bits have
_PACKED = struct.Struct("<IHHI")  # index, ordinal, offset, size from bit 18 on
_PLAIN = struct.Struct("<IHHHH")  # index, ordinal, offset, size


def kernels_of(image: bytes) -> dict[str, list[Field]]:
    """The parameters of each kernel of a cubin, by its symbol. Empty for anything else, or where it is cut off."""
    try:
        return {name[len(_INFO) :]: _fields(info) for name, info in _sections(image) if name.startswith(_INFO)}
    except (struct.error, ValueError, IndexError, KeyError):
        return {}


def _sections(image: bytes) -> Iterator[tuple[str, bytes]]:
    if image[:4] != b"\x7fELF":
        return
    (start,) = _HEADERS.unpack_from(image, _HEADERS_AT)
    size, count, naming = _TABLE.unpack_from(image, _TABLE_AT)
    headers = [_HEADER.unpack_from(image, start + number * size) for number in range(count)]
    names = headers[naming][4]
    for name, _, _, _, at, length in headers:
        yield image[names + name : image.index(b"\0", names + name)].decode(errors="replace"), image[at : at + length]


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
