"""``kernelwright rl export``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from kernelwright.cli._common import Common, common_options, say
from kernelwright.cli._tables import table

if TYPE_CHECKING:
    from kernelwright.records import Backend
    from kernelwright.rl import ExportPlan, ExportReport

_BACKENDS = click.Choice(["cpp", "triton", "cuda"])
_KINDS = click.Choice(["sft", "preferences", "prompts", "trajectories"])
_SHARE = click.FloatRange(0, 1, min_open=True)


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FOLDER", help="New or empty folder.")
@click.option("--kind", "kinds", multiple=True, type=_KINDS, help="What to export (repeatable); default: all four.")
@click.option(
    "--format",
    "form",
    default="both",
    show_default=True,
    type=click.Choice(["parquet", "jsonl", "both"]),
    help="Of the files; parquet needs pyarrow.",
)
@click.option("--backend", "backends", multiple=True, type=_BACKENDS, help="Only these languages (repeatable).")
@click.option(
    "--held-out",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 1, max_open=True),
    metavar="SHARE",
    help="Share of problems, 0 to 1, for a split of their own, chosen by the hash of their ids; 0 for none.",
)
@click.option(
    "--curate",
    default="none",
    show_default=True,
    type=click.Choice(["none", "concur"]),
    help="concur: in sft only few, fast, shortly explained kernels, balanced over categories.",
)
@click.option(
    "--min-speedup",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="concur: least lower bound of the speedup over eager, as a ratio.",
)
@click.option(
    "--best-share",
    default=0.5,
    show_default=True,
    type=_SHARE,
    help="concur: share of these that is kept of a problem, the fastest, above 0 to 1; 1 for all.",
)
@click.option(
    "--per-problem",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="concur: kernels that are kept of a problem and language, those with the shortest reasoning.",
)
@click.option(
    "--balance",
    default=2.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="concur: most kernels of a category, in times the median of all categories.",
)
@click.option(
    "--decontaminate",
    multiple=True,
    metavar="SUITE|FILE|FOLDER",
    help="Leave out problems that are too similar to one of these (repeatable).",
)
@click.option(
    "--threshold",
    default=0.9,
    show_default=True,
    type=_SHARE,
    help="Similarity, above 0 to 1, from which on a problem is left out.",
)
@click.option(
    "--licences",
    metavar="SPDX,SPDX",
    help="Only problems under these licences; 'unknown' is one. Default: all.",
)
@click.option(
    "--include-checked",
    is_flag=True,
    help="Take kernels too that were found right where nothing can be timed; they are marked and have no time.",
)
@click.option(
    "--max-pairs",
    default=100,
    show_default=True,
    type=click.IntRange(min=1),
    help="Most preferences of a problem, language and environment.",
)
@click.option(
    "--suite-dir",
    "suite_dirs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where to look for suites that --decontaminate names (repeatable).",
)
@common_options
def export(common: Common, out: Path, suite_dirs: tuple[Path, ...], **options: Any) -> None:
    """Write data for training out of the store: triples, preference pairs, prompts, whole runs.

    Only kernels that are right, confirmed and not withdrawn stand as good answers. The folder gets parquet and JSONL
    files, a manifest.json with hashes and all that was left out, and a dataset card, so that
    datasets.load_dataset(FOLDER, "sft") reads it.
    """
    from kernelwright.rl import export_dataset

    plan = _plan(**options)
    settings = common.settings(suite_dirs=suite_dirs)
    with common.open_store(settings, readonly=True) as store:
        report = export_dataset(store, out, plan, suite_dirs=settings.suite_dirs)
    for warning in report.warnings:
        say(f"note: {warning}")
    data = {"folder": str(out), **report.model_dump(mode="json")}
    common.show(data, *_tables(report), f"written: {out}")


def _plan(
    kinds: tuple[Any, ...],
    form: Literal["parquet", "jsonl", "both"],
    backends: tuple[Backend, ...],
    licences: str | None,
    max_pairs: int,
    **options: Any,
) -> ExportPlan:
    from kernelwright.rl import KINDS, ExportPlan

    return ExportPlan(
        kinds=tuple(kind for kind in KINDS if kind in kinds) if kinds else KINDS,
        formats=("parquet", "jsonl") if form == "both" else (form,),
        backends=tuple(dict.fromkeys(backends)),
        licences=tuple(name.strip() for name in (licences or "").split(",") if name.strip()),
        most_pairs=max_pairs,
        **options,
    )


def _tables(report: ExportReport) -> list[Any]:
    """Rows by kind and split, what was left out, and what was too similar to what."""
    splits = list(next(iter(report.counts.values())))
    made = [table("kind", *(f">{split.replace('_', '-')}" for split in splits))]
    for kind, counts in report.counts.items():
        made[0].add_row(kind, *(str(counts[split]) for split in splits))
    if report.dropped:
        left_out = table("left out by rule", ">times")
        for rule, number in report.dropped.items():
            left_out.add_row(rule, str(number))
        made.append(left_out)
    if report.contaminated:
        similar = table("problem left out", "is like", ">similarity")
        for found in report.contaminated:
            similar.add_row(found.problem, found.match, f"{found.similarity:.2f}")
        made.append(similar)
    return made
