"""Highlighted sources and differences. Sources are untrusted text, which Pygments escapes."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from markupsafe import Markup

MOST_CHARS = 100_000  # longer sources are shown without colour
_CONTEXT = 4
_MOST_STEPS = 20_000_000  # of a comparison of lines: about a second
_MOST_PAIRS = 64  # of equal lines, if comparing all of them would take too long


class DiffLine(NamedTuple):
    """A line of a difference: its kind (``add``, ``del``, ``same``, ``hunk``), both numbers, and its text."""

    kind: str
    before: int | None
    after: int | None
    text: str


@lru_cache(maxsize=64)
def highlight(source: str, language: str = "python") -> Markup:
    """A source as HTML with the class ``code``, without trailing white space in its lines.

    Pygments needs time quadratic in the number of lines that contain only blanks: minutes for 100 KB of them.
    """
    from pygments import highlight as coloured
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name

    lexer = get_lexer_by_name(language if len(source) <= MOST_CHARS else "text", stripnl=False)
    text = "\n".join(line.rstrip() for line in source.split("\n"))
    return Markup(coloured(text, lexer, HtmlFormatter(cssclass="code", wrapcode=True)))


def difference(before: str, after: str) -> list[DiffLine]:
    """The changes from one source to another, with a few lines around each change."""
    a, b = before.splitlines(), after.splitlines()
    lines: list[DiffLine] = []
    for group in _matcher(a, b).get_grouped_opcodes(_CONTEXT):
        first, last = group[0], group[-1]
        head = f"@@ -{first[1] + 1},{last[2] - first[1]} +{first[3] + 1},{last[4] - first[3]} @@"
        lines.append(DiffLine("hunk", None, None, head))
        for kind, a_from, a_to, b_from, b_to in group:
            if kind == "equal":
                lines += [DiffLine("same", i + 1, i - a_from + b_from + 1, a[i]) for i in range(a_from, a_to)]
                continue
            lines += [DiffLine("del", i + 1, None, a[i]) for i in range(a_from, a_to)]
            lines += [DiffLine("add", None, i + 1, b[i]) for i in range(b_from, b_to)]
    return lines


def _matcher(a: list[str], b: list[str]) -> difflib.SequenceMatcher[str]:
    """A matcher of lines with bounded time: each pair of equal lines may be visited once for each line.

    With too many pairs, frequent lines are matched only next to other matches, or no lines are matched.
    """
    ours, theirs = Counter(a), Counter(b)
    pairs = {line: count * theirs[line] for line, count in ours.items()}

    def steps(most: float) -> int:
        return sum(count for count in pairs.values() if count <= most) * min(len(a), len(b))

    most = next(most for most in (math.inf, _MOST_PAIRS, 0) if steps(most) <= _MOST_STEPS)
    often = {line for line, count in pairs.items() if count > most}
    return difflib.SequenceMatcher(often.__contains__, a, b, autojunk=False)
