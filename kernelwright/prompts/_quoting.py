"""Quotes untrusted text in a prompt: fenced so that no content can end its fence, cut, and without comments.

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
MAX_EXCERPT_CHARS = 2_000  # of a diff of sources, or of notes
MAX_MESSAGE_LINES = 80
MAX_MESSAGE_CHARS = 16_000
_MAX_LINE_CHARS = 400
_MARKER_DIGITS = 32
_UNFIT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]")
_FOLDERS = re.compile(r"(?<![\w.)\]/])/(?:[\w.+@-]+/)+(?=[\w.+-])")
PARTLY = "it does not parse as Python: comments were removed as far as it could be read"


class Uncommented(NamedTuple):
    """Source without comments; ``note`` says if some could not be removed, and is empty otherwise."""

    text: str
    note: str


@functools.lru_cache(maxsize=128)  # a kernel is shown in several prompts
def strip_comments(source: str) -> Uncommented:
    """A candidate's Python without comments and docstrings, and the C, C++ or CUDA inside of it without comments.

    Source that parses is written anew from its syntax tree, so that files which differ only in comments and layout
    become the same text. The program is equivalent except for docstrings, and comments in the C sources inside of it. A
    string counts as C source if it has an ``#include``, or a brace and a line break or semicolon. Source that does not
    parse keeps its layout, and loses the comments that its tokens show.
    """
    text, complete = uncommented_python(source)
    return Uncommented(text, "" if complete else PARTLY)


def without_quoted_comments(messages: str) -> str:
    """Compiler messages without the comments in the source lines that they quote."""
    return "\n".join(uncommented_c(line).rstrip() for line in messages.split("\n"))


def fence(text: str) -> str:
    """``text`` between two lines that share a marker derived from it.

    The marker is lengthened while the text contains it. That can only happen if the hash is broken.
    """
    marker = sha256_text(text)[:_MARKER_DIGITS]
    while marker in text:
        marker += sha256_text(marker + text)[:_MARKER_DIGITS]
    return f"<<<<<< {marker}\n{text}\n>>>>>> {marker}"


def readable(text: str) -> str:
    """Output of tools without control characters (except tab and line break), without characters that reorder or hide
    text, and without folders of this machine: only the file name of an absolute path stays.
    """
    return _FOLDERS.sub("", _UNFIT.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n")))


def cut_middle(text: str, most: int = MAX_SOURCE_CHARS) -> str:
    """A text of at most ``most`` characters; the two ends of a longer one, with a note between them."""
    if len(text) <= most:
        return text
    left_out = len(text) - most
    return f"{text[: most // 2]}\n[... {left_out:,} characters left out here ...]\n{text[len(text) - most // 2 :]}"


def last_lines(text: str, most: int = MAX_MESSAGE_LINES) -> str:
    """The last lines of a text, each cut, below a note on the number of lines before them."""
    lines = readable(text).rstrip().split("\n")
    shown = [line if len(line) <= _MAX_LINE_CHARS else f"{line[:_MAX_LINE_CHARS]} [...]" for line in lines[-most:]]
    note = [f"[... {len(lines) - most:,} earlier lines left out ...]"] if len(lines) > most else []
    return cut_middle("\n".join([*note, *shown]), MAX_MESSAGE_CHARS)


def one_line(text: object, most: int = _MAX_LINE_CHARS) -> str:
    """Text on one line. Every run of blanks becomes one blank, and a text that is too long is cut."""
    line = " ".join(readable(str(text)).split())
    return line if len(line) <= most else f"{line[:most]} [...]"
