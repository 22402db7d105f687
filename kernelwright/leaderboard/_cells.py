"""What cells of tables hold, as HTML: numbers, speedups, times, links. Every text in it is escaped.

Templates take these from ``_macros.html``, where a macro for each would take ten times as long.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Undefined
from markupsafe import Markup, escape

NONE = Markup("–")
_HUGE = 1e300
_WHOLE = ((0.01, 0), (0.1, 1), (1, 2), (10, 3), (100, 4), (1000, 5))  # below what size so many digits are not decimals


def path_of(*parts: str) -> str:
    """A path of this site whose parts may hold anything."""
    return "/" + "/".join(quote(part, safe="/@=,._-:") for part in parts)


def number(value: Any, digits: int = 3, unit: str = "") -> Markup:
    """1.53, 15.3, 1,530: so many significant digits, without an exponent where they can be read so; integers whole."""
    return NONE if _is_none(value) else Markup(f"{_digits(value, digits)}{_unit(unit)}")


def speedup(median: Any, low: Any, high: Any, faster: bool | None = None) -> Markup:
    """A speedup. ``faster`` is the claim: true, false (the interval does not carry it), or none where none is made."""
    if _is_none(median):
        return NONE
    text = f'<span class="speedup{" good" if faster else ""}">{_digits(median, 3)}x</span>{_interval(low, high)}'
    return Markup(f'{text}<span class="visually-hidden"> not shown to be faster</span>' if faster is False else text)


def percent(share: Any) -> Markup:
    """A share of one as a percentage; all of a column have one decimal place, so that they stand below each other."""
    return NONE if _is_none(share) else Markup(f"{100 * share:.1f}%")


def latency(ms: Any, low: Any = None, high: Any = None) -> Markup:
    """A time in ms, or in µs where it is below one; with an interval where one is given."""
    if _is_none(ms):
        return NONE
    by, unit = (1, "ms") if ms >= 1 else (1000, "µs")
    between = "" if _is_none(low) or _is_none(high) else _interval(by * low, by * high)
    return Markup(f"{_digits(by * ms, 3)}{_unit(unit)}{between}")


def dollars(cost: Any, digits: int = 4) -> Markup:
    """Dollars, where they are known."""
    return Markup("unknown") if _is_none(cost) else Markup(f"${cost:.{digits}f}")


def badge(text: Any, kind: str = "quiet") -> Markup:
    """A word in a frame; ``kind``: good, bad, warn or quiet."""
    return Markup(f'<span class="badge {escape(kind)}">{escape(text)}</span>')


def status_badge(status: Any) -> Markup:
    """How an evaluation ended."""
    bad = status in ("REWARD_HACK", "QUARANTINED")
    return badge(status, "good" if status == "PASSED" else "bad" if bad else "warn")


def state_badge(state: Any) -> Markup:
    """How a run, or a problem of one, stands."""
    kinds = {"finished": "good", "done": "good", "failed": "bad", "running": "warn"}
    return badge(state, kinds.get(state, "quiet"))


def timed_badge(confirmed: Any) -> Markup:
    """Whether a kernel's time was confirmed in fresh processes, or is one that a search took."""
    return badge("confirmed", "good") if confirmed else badge("search", "quiet")


def short(sha: Any) -> Markup:
    """A hash, cut; the whole of it can be seen by pointing at it."""
    return Markup(f'<code class="hash" title="{escape(sha)}">{escape(sha[:12])}</code>') if sha else NONE


def kernel_link(sha: str, evaluation: Any) -> Markup:
    """An evaluation's kernel."""
    query = urlencode({"evaluation": evaluation})
    return Markup(f'<a href="{escape(path_of("kernels", sha))}?{escape(query)}">{short(sha)}</a>')


def problem_link(problem: str, **where: Any) -> Markup:
    """A problem without its suite, where that is plain from the place; ``where`` it is shown: see the page's query."""
    _, slash, rest = problem.partition("/")
    query = urlencode({name: value for name, value in where.items() if not (_is_none(value) or value == "")})
    address = f"{path_of('problems', problem)}?{query}" if query else path_of("problems", problem)
    return Markup(f'<a href="{escape(address)}">{escape(rest if slash else problem)}</a>')


def stamp(iso: Any) -> Markup:
    """A UTC time as the store keeps it, for a column whose head says that it is UTC."""
    return _time(iso, "")


def when(iso: Any) -> Markup:
    """A UTC time as the store keeps it."""
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
    """ "x" and "%" stand at the number, others after a space that does not break."""
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
