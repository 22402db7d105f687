"""Sources in colour. What is coloured is hostile text: Pygments escapes it, and nothing else of it becomes markup."""

from __future__ import annotations

import difflib
from functools import lru_cache
from typing import NamedTuple

from markupsafe import Markup

MOST_CHARS = 400_000  # beyond it a source is shown plain
_CONTEXT = 4


class DiffLine(NamedTuple):
    """A line of a difference: its kind (``add``, ``del``, ``same``, ``hunk``), both numbers, and its text."""

    kind: str
    before: int | None
    after: int | None
    text: str


@lru_cache(maxsize=256)
def highlight(source: str, language: str = "python") -> Markup:
    """A source as HTML with the class ``code``."""
    from pygments import highlight as coloured
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name

    lexer = get_lexer_by_name(language if len(source) <= MOST_CHARS else "text", stripnl=False)
    return Markup(coloured(source, lexer, HtmlFormatter(cssclass="code", wrapcode=True)))


def difference(before: str, after: str) -> list[DiffLine]:
    """What changed from one source to another, with a few lines around each change."""
    a, b = before.splitlines(), after.splitlines()
    lines: list[DiffLine] = []
    for group in difflib.SequenceMatcher(None, a, b, autojunk=False).get_grouped_opcodes(_CONTEXT):
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
