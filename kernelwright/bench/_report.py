"""A bench's report: the same tables for a terminal, in Markdown and in HTML, and as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from kernelwright.bench._outcomes import Outcome
from kernelwright.bench._stored import StoredBench
from kernelwright.bench._summary import THRESHOLDS, Breakdown, Summary, break_down, summarise
from kernelwright.plots import bars_svg, curves_svg, dots_svg, speedup_axis
from kernelwright.records import Interval


class TableOf(NamedTuple):
    """A table of texts; ``head`` and each of ``rows`` have the same length. All columns but the first are numbers."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class PlotOf(NamedTuple):
    """A picture: a name for its file, what it shows, and its SVG text, which stands alone."""

    name: str
    title: str
    svg: str


class BenchReport(NamedTuple):
    """The report of a bench.

    Attributes:
        lines: facts in words: what was judged, where, and what is missing.
        tables: in order.
        plots: in order.
        data: all figures as plain JSON.
    """

    title: str
    lines: Sequence[str]
    tables: Sequence[TableOf]
    plots: Sequence[PlotOf]
    data: dict[str, Any]


def report_of(bench: StoredBench, name: str) -> BenchReport:
    """All figures of a bench, against each baseline that it was timed against."""
    outcomes, asked = bench.outcomes(), bench.asked
    data: dict[str, Any] = {
        "bench": name,
        "run": bench.run.id,
        "environments": [environment.model_dump(mode="json") for environment in bench.environments],
        "coder": bench.run.config.coder,
        "problems": len(bench.problems),
        "finished": len(asked),
        "unjudged": bench.unjudged,
        "too_small": bench.too_small,
        "baselines": {},
    }
    if not asked:
        return BenchReport(name, _facts(bench), [], [], data)
    broken = {baseline: break_down(outcomes, asked, baseline) for baseline in bench.baselines}
    first = broken[bench.baselines[0]]
    loose = summarise(bench.outcomes_by_kernelbench(), [problem.name for problem in asked], bench.baselines[0])
    caught = bench.caught()
    tables = [
        _overall(broken),
        _rules(first.all, loose, caught, bench.untried()),
        *(_parts(f"By level, against {baseline}", found, found.by_level) for baseline, found in broken.items()),
        *(_parts(f"By category, against {baseline}", found, found.by_category) for baseline, found in broken.items()),
    ]
    data |= {
        "baselines": {baseline: found.model_dump(mode="json") for baseline, found in broken.items()},
        "by_kernelbench_rule": loose.model_dump(mode="json"),
        "caught": dict(caught),
        "untried": bench.untried(),
    }
    return BenchReport(name, _facts(bench), tables, plots_of(broken, outcomes), data)


def plots_of(broken: Mapping[str, Breakdown], outcomes: Sequence[Outcome]) -> list[PlotOf]:
    """Plots of fast_p against all baselines, of the speedups over the first one, and of the samples' statuses."""
    first = next(iter(broken.values()))
    speedups: dict[str, float] = {}
    for one in outcomes:
        if one.correct and first.baseline in one.speedups:
            speedups[one.problem] = max(one.speedups[first.baseline], speedups.get(one.problem, 0.0))
    over = f"Speedup over {first.baseline}"
    summaries = {baseline: found.all for baseline, found in broken.items()}
    return [
        PlotOf("fast_p", "fast_p", _fast_p_svg(summaries)),
        PlotOf("speedups", over, dots_svg(speedups, over)),
        PlotOf("outcomes", "How samples ended", bars_svg(first.all.statuses, "How samples ended")),
    ]


def _fast_p_svg(summaries: Mapping[str, Summary]) -> str:
    """The share of problems that are right and more than p times as fast as a baseline, over p > 0, a line each.

    A right problem without a time counts at p = 0 alone, so a line begins at the share of problems with a time.
    """
    axis = speedup_axis([p for found in summaries.values() for p, _ in found.curve], 0, 1)
    lines = {}
    for baseline, found in summaries.items():
        lines[f"against {baseline}"] = [
            (axis.low, found.timed / found.problems if found.problems else 0.0),
            *((p, share) for p, share in found.curve if p > 0),
            (axis.high, found.curve[-1][1]),
        ]
    return curves_svg(lines, across="speedup p over the baseline", up="fast_p", log2=True, steps=True, reach=(0, 1))


def markdown_of(report: BenchReport, plots: Mapping[str, str] | None = None) -> str:
    """The report as Markdown.

    Args:
        plots: paths of the plots' files, by the plots' names. Plots without a path are left out.
    """
    parts = [f"# {report.title}", "", *(f"{line}  " for line in report.lines)]
    shown = [f"![{plot.title}](<{plots[plot.name]}>)" for plot in report.plots if plots and plot.name in plots]
    parts += ["", *shown] if shown else []
    for table in report.tables:
        rule = "|".join("---" if number == 0 else "--:" for number in range(len(table.head)))
        rows = [f"| {' | '.join(_cell(text) for text in row)} |" for row in (table.head, *table.rows)]
        parts += ["", f"## {table.title}", "", rows[0], f"|{rule}|", *rows[1:]]
    return "\n".join([*parts, ""])


def html_of(report: BenchReport) -> str:
    """The report as one HTML page that needs no other file."""
    body = [f"<h1>{escape(report.title)}</h1>", *(f"<p>{escape(line)}</p>" for line in report.lines)]
    body.append('<div class="plots">' + "".join(f"<figure>{plot.svg}</figure>" for plot in report.plots) + "</div>")
    for table in report.tables:
        head = "".join(f"<th>{escape(text)}</th>" for text in table.head)
        rows = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in table.rows)
        body.append(f"<h2>{escape(table.title)}</h2><div class=scroll><table><tr>{head}</tr>{rows}</table></div>")
    return f"{_HEAD.replace('TITLE', escape(report.title))}{''.join(body)}</main></html>\n"


_HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>TITLE</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
body{margin:0;background:#f8fafc;color:#0f172a;font:15px/1.5 system-ui,sans-serif}
main{max-width:1080px;margin:0 auto;padding:24px}
h1{font-size:26px;margin:0 0 8px}h2{font-size:17px;margin:28px 0 8px}p{margin:2px 0;color:#475569}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:16px;margin:20px 0}
figure{margin:0;background:#fff;border:1px solid #e2e8f0;border-radius:8px;padding:8px}svg{width:100%;height:auto}
.scroll{overflow-x:auto}table{border-collapse:collapse;background:#fff;font-variant-numeric:tabular-nums}
th,td{padding:5px 12px;border:1px solid #e2e8f0;text-align:right;white-space:nowrap}
th{background:#f1f5f9}th:first-child,td:first-child{text-align:left}
</style><main>
"""


def _facts(bench: StoredBench) -> list[str]:
    judged = sum(found.verdict is not None for found in bench.samples)
    where = f"{judged} judged on {bench.devices}" if bench.environments else "none judged yet"
    config = bench.run.config
    lines = [
        f"{_many(len(bench.problems), 'problem')}, {_many(len(bench.samples), 'sample')} by {config.coder}, {where}",
        f"timed against {', '.join(bench.baselines)}, {config.threads} thread{'s' * (config.threads != 1)}",
    ]
    if unfinished := len(bench.problems) - len(bench.finished):
        why = f"{_many(bench.unjudged, 'sample')} not judged" if bench.unjudged else "samples are missing"
        lines.append(f"{_many(unfinished, 'problem')} not counted below: {why}")
    sampled = {found.problem.id for found in bench.samples}
    if missing := sum(problem.id not in sampled for problem in bench.finished):
        lines.append(f"{_many(missing, 'problem')} without a sample, counted as unsolved")
    if bench.too_small:
        lines.append(f"{_many(bench.too_small, 'sample')} too small to time, counted as right, without a speedup")
    if resized := [problem for problem in bench.problems if "@" in problem.id]:
        lines.append(f"{_many(len(resized), 'problem')} with sizes or variants of their own, as their names say")
    return lines


def _many(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"


def _overall(broken: dict[str, Breakdown]) -> TableOf:
    summaries = [found.all for found in broken.values()]
    one = summaries[0]
    same = [
        ("compiled, of samples", percent(one.compile_rate)),
        ("correct, of samples", percent(one.sample_rate)),
        ("problems solved", percent(one.correct_rate)),
        *((f"pass@{k}", percent(rate)) for k, rate in one.pass_at_k.items()),
        ("own kernels' share of the time", "-" if one.own_share is None else percent(one.own_share)),
        ("SOL score", "-" if one.sol is None else f"{one.sol:.3f}"),
    ]
    against = [
        *((f"fast_{p:g}", [f"{found.fast_p[f'{p:g}']:.3f}" for found in summaries]) for p in THRESHOLDS),
        ("problems with a time", [str(found.timed) for found in summaries]),
        ("geometric mean speedup", [with_interval(found.geometric_mean) for found in summaries]),
        ("median speedup", [with_interval(found.median) for found in summaries]),
    ]
    rows = [[label, value, *[""] * (len(summaries) - 1)] for label, value in same]
    rows += [[label, *values] for label, values in against]
    return TableOf("All problems", ["", *(f"against {name}" for name in broken)], rows)


def _rules(strict: Summary, loose: Summary, caught: Mapping[str, int], untried: int) -> TableOf:
    rows = [
        ["correct, of samples", percent(strict.sample_rate), percent(loose.sample_rate)],
        ["problems solved", percent(strict.correct_rate), percent(loose.correct_rate)],
        *([f"let pass there, here {status}", "", str(count)] for status, count in caught.items()),
        *([["refused here and not asked there, wrong in both columns", "", str(untried)]] if untried else []),
    ]
    return TableOf("Strict, and by KernelBench's own rule", ["", "strict", "KernelBench's rule"], rows)


def _parts(title: str, whole: Breakdown, parts: Any) -> TableOf:
    head = ["", "problems", "solved", "fast_1", "fast_1.5", "fast_2", "geometric mean", "median", "own share"]
    named = [(f"level {name}" if isinstance(name, int) else str(name), found) for name, found in parts.items()]
    return TableOf(title, head, [_part(name, found) for name, found in [*named, ("all", whole.all)]])


def _part(name: str, found: Summary) -> list[str]:
    return [
        name,
        str(found.problems),
        percent(found.correct_rate),
        *(f"{found.fast_p[p]:.3f}" for p in ("1", "1.5", "2")),
        with_interval(found.geometric_mean),
        with_interval(found.median),
        "-" if found.own_share is None else percent(found.own_share),
    ]


def percent(share: float) -> str:
    """A share as a percentage."""
    return f"{100 * share:.1f}%"


def with_interval(found: Interval | None) -> str:
    """An estimate with its interval, as text."""
    return "-" if found is None else f"{found.median:.3f} [{found.low:.3f}, {found.high:.3f}]"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
