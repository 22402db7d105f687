"""Text of others inside a prompt: fenced so that no content can end its fence, cut to a length, and without comments.

A fence's marker is a hash of what it encloses. Content cannot hold its own hash, so it cannot write the closing line.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from kernelwright.prompts._comments import uncommented_c, uncommented_python
from kernelwright.records import sha256_text

__all__ = ["Uncommented", "cut_middle", "fence", "last_lines", "one_line", "readable", "strip_comments"]

MAX_SOURCE_CHARS = 60_000
MAX_ASIDE_CHARS = 12_000  # of a source that is shown for its ideas only
MAX_EXCERPT_CHARS = 2_000  # of a difference of sources, or of notes
MAX_MESSAGE_LINES = 80
MAX_MESSAGE_CHARS = 16_000
_MAX_LINE_CHARS = 400
_MARKER_DIGITS = 32
_UNFIT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]")
_FOLDERS = re.compile(r"(?<![\w.)\]/])/(?:[\w.+@-]+/)+(?=[\w.+-])")
PARTLY = "it does not parse as Python: comments were removed as far as it could be read"


class Uncommented(NamedTuple):
    """Source without comments; ``note`` says where that was not possible throughout, and is empty where it was."""

    text: str
    note: str


@functools.lru_cache(maxsize=128)  # a kernel is shown in several prompts
def strip_comments(source: str) -> Uncommented:
    """A candidate's Python without comments and docstrings, and the C, C++ or CUDA inside of it without comments.

    What parses is written anew from its syntax tree, so that two files which differ in comments and layout alone become
    the same text; the program is equivalent but for docstrings and the comments of sources that it has compiled. A
    string counts as such a source where it includes something, or holds a brace and a line break or semicolon. What
    does not parse keeps its layout, and loses the comments that its tokens show.
    """
    text, complete = uncommented_python(source)
    return Uncommented(text, "" if complete else PARTLY)


def without_quoted_comments(messages: str) -> str:
    """Compilers' messages without the comments in the lines of source that they quote."""
    return "\n".join(uncommented_c(line).rstrip() for line in messages.split("\n"))


def fence(text: str) -> str:
    """``text`` between two lines that share a marker derived from it.

    The marker is lengthened for as long as the text holds it, which takes a broken hash to happen at all.
    """
    marker = sha256_text(text)[:_MARKER_DIGITS]
    while marker in text:
        marker += sha256_text(marker + text)[:_MARKER_DIGITS]
    return f"<<<<<< {marker}\n{text}\n>>>>>> {marker}"


def readable(text: str) -> str:
    """Text of tools without control characters (but tab and line break), without those that reorder or hide what is
    read, and without the folders of this machine: of an absolute path the file's name stays.
    """
    return _FOLDERS.sub("", _UNFIT.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n")))


def cut_middle(text: str, most: int = MAX_SOURCE_CHARS) -> str:
    """At most ``most`` characters of a text and a note: its two ends, where it is longer."""
    if len(text) <= most:
        return text
    left_out = len(text) - most
    return f"{text[: most // 2]}\n[... {left_out:,} characters left out here ...]\n{text[len(text) - most // 2 :]}"


def last_lines(text: str, most: int = MAX_MESSAGE_LINES) -> str:
    """The last lines of a text, each cut, under a note that says how many stood before them."""
    lines = readable(text).rstrip().split("\n")
    shown = [line if len(line) <= _MAX_LINE_CHARS else f"{line[:_MAX_LINE_CHARS]} [...]" for line in lines[-most:]]
    note = [f"[... {len(lines) - most:,} earlier lines left out ...]"] if len(lines) > most else []
    return cut_middle("\n".join([*note, *shown]), MAX_MESSAGE_CHARS)


def one_line(text: object, most: int = _MAX_LINE_CHARS) -> str:
    """Text on one line: every run of blanks is one, and what is too long is cut."""
    line = " ".join(readable(str(text)).split())
    return line if len(line) <= most else f"{line[:most]} [...]"
