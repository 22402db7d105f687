"""Writes a bench as a dataset: rows in JSONL or parquet, and a card that describes them and their origin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kernelwright import __version__
from kernelwright.bench._exchange import rows_of_bench
from kernelwright.bench._report import markdown_of, report_of
from kernelwright.bench._stored import StoredBench
from kernelwright.errors import MissingToolError, UsageError

if TYPE_CHECKING:
    import pyarrow

CARD = "README.md"
_COLUMNS = {
    "problem": "id of the problem; sizes and variants that differ from the file's own stand behind @",
    "suite": "whose problem it is",
    "level": "of the problem",
    "number": "of the problem in its level; none where it has none",
    "category": "kind of the problem",
    "problem_sha256": "hash of the reference's exact text",
    "sample": "number of the sample, from 0; samples of a problem do not know of each other",
    "candidate": "hash of the kernel and its knobs; none where no kernel came",
    "source": "the kernel's file",
    "backend": "cpp, triton or cuda",
    "author": "who wrote it",
    "status": "what the referee called it; none where it was not judged",
    "stage": "the last stage that it completed",
    "reason": "why it did not pass, or why there is no kernel",
    "correct": "whether it passed",
    "kernelbench_correct": "whether allclose on the same trials, KernelBench's rule, would have called it correct",
    "latency_ms": "median time of a call, milliseconds",
    "own_kernel_share": "share of its time that it spends in kernels of its own, 0 to 1",
    "environment": "id of the machine and software it was judged on",
    "device": "what it was judged on",
    "claimed": "what somebody else's evaluation had said of it, as JSON; none where nobody had",
}
_SIZES = {"n<1K": 1e3, "1K<n<10K": 1e4, "10K<n<100K": 1e5, "100K<n<1M": 1e6}  # size categories of the hub
_WHOLE = ("level", "number", "sample")
_TRUTHS = ("correct", "kernelbench_correct")
_NUMBERS = ("latency_ms", "own_kernel_share")


def write_dataset(folder: Path, bench: StoredBench, name: str, form: Literal["jsonl", "parquet"]) -> list[Path]:
    """Write a bench's rows and a card into a folder, made if it is missing. Return the files.

    Raises:
        MissingToolError: parquet is asked for, and pyarrow is not installed.
        UsageError: the folder cannot be written.
    """
    from kernelwright.files import write_for_user

    rows = list(rows_of_bench(bench))
    data, card = folder / f"samples.{form}", folder / CARD
    if form == "jsonl":
        write_for_user(data, "".join(json.dumps(row) + "\n" for row in rows))
    else:
        _write_parquet(data, rows, bench)
    write_for_user(card, _card(bench, name, data.name, len(rows)))
    return [data, card]


def _write_parquet(path: Path, rows: list[dict[str, Any]], bench: StoredBench) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingToolError(
            "parquet needs the package pyarrow", hint="pip install 'kernelwright[data]', or --format jsonl"
        ) from None
    whole = pyarrow.Table.from_pylist(rows, schema=_schema(pyarrow, bench))
    temporary = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(whole, temporary)
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error}", hint="choose another place") from error


def _schema(pyarrow: Any, bench: StoredBench) -> pyarrow.Schema:
    """The schema of the rows, independent of their content: a column of only None has its type too."""

    def kind(column: str) -> Any:
        if column in _WHOLE:
            return pyarrow.int64()
        if column in _TRUTHS:
            return pyarrow.bool_()
        return pyarrow.float64() if column in _NUMBERS else pyarrow.string()

    speedups = [
        f"speedup_{baseline.replace('-', '_')}{end}" for baseline in bench.baselines for end in ("", "_low", "_high")
    ]
    named = [(column, kind(column)) for column in _COLUMNS]
    return pyarrow.schema([*named, *((column, pyarrow.float64()) for column in speedups)])


def _card(bench: StoredBench, name: str, file: str, count: int) -> str:
    """A dataset card as the Hugging Face hub reads it: a head in YAML, then the text."""
    size = next((label for label, most in _SIZES.items() if count < most), "n>1M")
    machine = [
        f"- {key}: {value}"
        for environment in bench.environments
        for key, value in environment.model_dump(mode="json").items()
        if key != "extra"
    ]
    baselines = ", ".join(bench.baselines)
    columns = [f"| `{column}` | {what} |" for column, what in _COLUMNS.items()]
    return "\n".join(
        [
            "---",
            f"pretty_name: {json.dumps(name)}",
            "tags: [kernels, code-generation, performance]",
            f"size_categories: [{json.dumps(size)}]",
            "configs:",
            "- config_name: default",
            f"  data_files: {file}",
            "---",
            "",
            markdown_of(report_of(bench, name)).rstrip(),
            "",
            "## What the rows are",
            "",
            f"One row for each sample, by {bench.run.config.coder}, judged by kernelwright {__version__}: built "
            "and run in a sandbox, checked on every shape variant against float64, timed in turns with the baselines "
            f"({baselines}) on fresh data. A sample that nobody judged has no status.",
            "",
            "| column | what it holds |",
            "|---|---|",
            *columns,
            "| `speedup_B`, `speedup_B_low`, `speedup_B_high` | time of baseline B over its time, 95% interval |",
            "",
            *(["## Where it was judged", "", *machine, ""] if machine else []),
        ]
    )
