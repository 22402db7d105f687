"""Text of compilers, tools and candidates made fit for notes: printable, one line, cut."""

from __future__ import annotations

import re

_NAME = re.compile(r"[^\w:<>~,*&().+\- ]", re.ASCII)


def plain(text: str, limit: int = 120) -> str:
    """One line of printable ASCII, at most ``limit`` characters."""
    words = "".join(c if " " <= c <= "~" else " " for c in text[:4000]).split()
    line = " ".join(words)
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def plain_name(text: str, limit: int = 60) -> str:
    """A function's name from a symbol table. Characters that no C++ name contains become underscores."""
    return plain(_NAME.sub("_", text[:1000]), limit)


def first_error(log: bytes, limit: int = 160) -> str:
    """The compiler's first error, else its first line."""
    lines = log[:16_384].decode(errors="replace").splitlines()
    chosen = next((line for line in lines if "error:" in line), lines[0] if lines else "")
    return plain(chosen.partition("error:")[2] or chosen, limit)


def amount(number: float) -> str:
    """A count as people read it: 1,234 or 2.1 million."""
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:.1f} {word}"
    return f"{number:,.0f}"


def plural(count: int, word: str) -> str:
    """``1 loop``, ``2 loops``, ``2 launches``."""
    ending = "es" if word.endswith("ch") else "s"
    return f"{count} {word}" if count == 1 else f"{count} {word}{ending}"
