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
    help="Format of the files; parquet needs pyarrow.",
)
@click.option("--backend", "backends", multiple=True, type=_BACKENDS, help="Only these languages (repeatable).")
@click.option(
    "--held-out",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 1, max_open=True),
    metavar="SHARE",
    help="Share of problems, 0 to 1, in a held-out split, chosen by the hash of their ids; 0: no such split.",
)
@click.option(
    "--curate",
    default="none",
    show_default=True,
    type=click.Choice(["none", "concur"]),
    help="concur: sft has only a few fast kernels with short reasoning, balanced over categories.",
)
@click.option(
    "--min-speedup",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="concur: minimum of the lower bound of the speedup over eager, as a ratio.",
)
@click.option(
    "--best-share",
    default=0.5,
    show_default=True,
    type=_SHARE,
    help="concur: share of a problem's kernels to keep, the fastest; above 0, up to 1 (all).",
)
@click.option(
    "--per-problem",
    default=1,
    show_default=True,
    type=click.IntRange(min=1),
    help="concur: kernels to keep for each problem and language, those with the shortest reasoning.",
)
@click.option(
    "--balance",
    default=2.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="concur: limit of a category's kernels, as a multiple of the median of all categories.",
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
    help="Similarity at which a problem is left out; above 0, up to 1.",
)
@click.option(
    "--licences",
    metavar="SPDX,SPDX",
    help="Only problems under these licences; 'unknown' is allowed. Default: all.",
)
@click.option(
    "--include-checked",
    is_flag=True,
    help="Include kernels that passed on machines that cannot time them. They are marked and have no time.",
)
@click.option(
    "--max-pairs",
    default=100,
    show_default=True,
    type=click.IntRange(min=1),
    help="Limit of preference pairs for a problem, language and environment.",
)
@click.option(
    "--suite-dir",
    "suite_dirs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Folder to search for suites that --decontaminate names (repeatable).",
)
@common_options
def export(common: Common, out: Path, suite_dirs: tuple[Path, ...], **options: Any) -> None:
    """Export training data from the store: triples, preference pairs, prompts, whole runs.

    Only kernels that are right, confirmed and not withdrawn count as good answers. The folder gets parquet and JSONL
    files, a dataset card, and a manifest.json with hashes and everything that was left out.
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
    """Tables: rows by kind and split, rows left out by rule, and problems left out as too similar."""
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
        similar = table("problem left out", "similar to", ">similarity")
        for found in report.contaminated:
            similar.add_row(found.problem, found.match, f"{found.similarity:.2f}")
        made.append(similar)
    return made
