"""The contents of table cells as HTML: numbers, speedups, times, links. All text is escaped.

Templates import these functions through ``_macros.html``. Macros would take ten times as long.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Undefined
from markupsafe import Markup, escape

NONE = Markup("–")
_HUGE = 1e300
_WHOLE = ((0.01, 0), (0.1, 1), (1, 2), (10, 3), (100, 4), (1000, 5))  # (size, n): below size, digits + 2 - n decimals


def path_of(*parts: str) -> str:
    """A path of this site; its parts are quoted."""
    return "/" + "/".join(quote(part, safe="/@=,._-:") for part in parts)


def number(value: Any, digits: int = 3, unit: str = "") -> Markup:
    """A number with ``digits`` significant digits (1.53, 15.3, 1,530), with an exponent only if tiny or huge."""
    return NONE if _is_none(value) else Markup(f"{_digits(value, digits)}{_unit(unit)}")


def speedup(median: Any, low: Any, high: Any, faster: bool | None = None) -> Markup:
    """A speedup. ``faster`` is the claim: True, False (the interval does not support it), or None for no claim."""
    if _is_none(median):
        return NONE
    text = f'<span class="speedup{" good" if faster else ""}">{_digits(median, 3)}x</span>{_interval(low, high)}'
    return Markup(f'{text}<span class="visually-hidden"> not shown to be faster</span>' if faster is False else text)


def percent(share: Any) -> Markup:
    """A share of one as a percentage, with one decimal place so that the values of a column line up."""
    return NONE if _is_none(share) else Markup(f"{100 * share:.1f}%")


def latency(ms: Any, low: Any = None, high: Any = None) -> Markup:
    """A time in ms, or in µs below 1 ms; with its interval if given."""
    if _is_none(ms):
        return NONE
    by, unit = (1, "ms") if ms >= 1 else (1000, "µs")
    between = "" if _is_none(low) or _is_none(high) else _interval(by * low, by * high)
    return Markup(f"{_digits(by * ms, 3)}{_unit(unit)}{between}")


def dollars(cost: Any, digits: int = 4) -> Markup:
    """An amount in dollars, or "unknown"."""
    return Markup("unknown") if _is_none(cost) else Markup(f"${cost:.{digits}f}")


def badge(text: Any, kind: str = "quiet") -> Markup:
    """A word in a frame; ``kind``: good, bad, warn or quiet."""
    return Markup(f'<span class="badge {escape(kind)}">{escape(text)}</span>')


def status_badge(status: Any) -> Markup:
    """The status of an evaluation."""
    bad = status in ("REWARD_HACK", "QUARANTINED")
    return badge(status, "good" if status == "PASSED" else "bad" if bad else "warn")


def state_badge(state: Any) -> Markup:
    """The state of a run, or of a problem of a run."""
    kinds = {"finished": "good", "done": "good", "failed": "bad", "running": "warn"}
    return badge(state, kinds.get(state, "quiet"))


def timed_badge(confirmed: Any) -> Markup:
    """Whether a kernel's time was confirmed in fresh processes, or comes from a search."""
    return badge("confirmed", "good") if confirmed else badge("search", "quiet")


def short(sha: Any) -> Markup:
    """The first digits of a hash; the tooltip shows all."""
    return Markup(f'<code class="hash" title="{escape(sha)}">{escape(sha[:12])}</code>') if sha else NONE


def kernel_link(sha: str, evaluation: Any) -> Markup:
    """A link to an evaluation's kernel."""
    query = urlencode({"evaluation": evaluation})
    return Markup(f'<a href="{escape(path_of("kernels", sha))}?{escape(query)}">{short(sha)}</a>')


def problem_link(problem: str, **where: Any) -> Markup:
    """A link to a problem, named without its suite. ``where`` is the query of its page."""
    _, slash, rest = problem.partition("/")
    query = urlencode({name: value for name, value in where.items() if not (_is_none(value) or value == "")})
    address = f"{path_of('problems', problem)}?{query}" if query else path_of("problems", problem)
    return Markup(f'<a href="{escape(address)}">{escape(rest if slash else problem)}</a>')


def stamp(iso: Any) -> Markup:
    """A UTC time of the store, without "UTC": the column's heading says it."""
    return _time(iso, "")


def when(iso: Any) -> Markup:
    """A UTC time of the store, with "UTC"."""
    return _time(iso, " UTC")


def _time(iso: Any, zone: str) -> Markup:
    if not iso:
        return NONE
    return Markup(f'<time datetime="{escape(iso)}">{escape(str(iso)[:16].replace("T", " "))}{zone}</time>')


def _interval(low: Any, high: Any) -> str:
    if low is None or high is None:
        return ""
    return f' <small class="interval">[{number(low)}, {number(high)}]</small>'


def _unit(unit: str) -> str:
    """The unit: "x" and "%" directly follow the number, others come after a non-breaking space."""
    return f"&nbsp;{escape(unit)}" if unit and unit not in ("x", "%") else unit


def _digits(value: Any, digits: int) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if not isinstance(value, float | int) or value != value or abs(value) > _HUGE:
        return str(escape(value))
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.001 or size >= 1e9:
        return f"{value:.{max(digits - 1, 0)}e}"
    whole = next((places for below, places in _WHOLE if size < below), 6)
    return f"{value:,.{max(digits + 2 - whole, 0)}f}"


def _is_none(value: Any) -> bool:
    return value is None or isinstance(value, Undefined)
