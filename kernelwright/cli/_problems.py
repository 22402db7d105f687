"""``kernelwright problems``."""

from __future__ import annotations

from pathlib import Path

import click

from kernelwright.cli._common import Common, common_options, say
from kernelwright.cli._tables import table

EXIT_WEAK = 1

suite_dir_option = click.option(
    "--suite-dir", "suite_dirs", multiple=True, type=click.Path(path_type=Path), help="More suites."
)


@click.group()
def problems() -> None:
    """List, show, check and capture problems."""


@problems.command("list")
@click.option("--suite", help="Only this suite.")
@click.option("--level", type=int, help="Only this level.")
@suite_dir_option
@common_options
def list_problems(common: Common, suite: str | None, level: int | None, suite_dirs: tuple[Path, ...]) -> None:
    """Every problem, by suite and level."""
    from kernelwright.datasets import load_suite, suites

    settings = common.settings(suite_dirs=suite_dirs)
    names = (suite,) if suite else suites(settings.suite_dirs)
    found = [problem for name in names for problem in load_suite(name, level, settings.suite_dirs)]
    made = table("problem", ">no.", "category", "dtype", "title")
    for problem in found:
        meta = problem.meta
        made.add_row(problem.id, str(problem.number or "-"), meta.category, meta.dtype, meta.title)
    data = [
        {
            "id": problem.id,
            "number": problem.number,
            "category": problem.meta.category,
            "dtype": problem.meta.dtype,
            "title": problem.meta.title,
            "sha256": problem.sha256,
        }
        for problem in found
    ]
    common.show({"problems": data}, made)


@problems.command()
@click.argument("problem", metavar="P")
@suite_dir_option
@common_options
def show(common: Common, problem: str, suite_dirs: tuple[Path, ...]) -> None:
    """One problem: its reference and what it promises."""
    from rich.syntax import Syntax

    from kernelwright.datasets import find_problem

    found = find_problem(problem, common.settings(suite_dirs=suite_dirs).suite_dirs)
    meta = found.meta
    head = [
        f"{found.id}  {meta.title}".rstrip(),
        f"category {meta.category}, dtype {meta.dtype}, mode {meta.mode}, weights are {meta.weights}",
        *([f"heavy operators: {', '.join(meta.heavy_ops)}"] if meta.heavy_ops else []),
        *(f"{kind} variants: {'; '.join(map(_variant, variants))}" for kind, variants in meta.variants.items()),
        *(f"input {name}: {d.fill} in [{d.low:g}, {d.high:g}]" for name, d in meta.inputs.items()),
    ]
    data = {"sha256": found.sha256, **found.model_dump(mode="python")}
    common.show(data, *head, "", Syntax(found.source, "python", background_color="default"))


def _variant(variant: dict[str, int | float | str | bool]) -> str:
    return ", ".join(f"{name}={value}" for name, value in variant.items()) or "the file's own constants"


@problems.command()
@click.argument("problem", metavar="P")
@click.option("--static", "static_only", is_flag=True, help="Only read the file; run nothing.")
@click.option("--sandbox", metavar="S", help="bwrap, process or none.")
@suite_dir_option
@common_options
def lint(common: Common, problem: str, static_only: bool, sandbox: str | None, suite_dirs: tuple[Path, ...]) -> int:
    """A problem's weaknesses: constant, tiny, random, independent of an input. Exit code 1 where there are any.

    The file is read, and then run in the sandbox.
    """
    from kernelwright.datasets import find_problem, lint_static
    from kernelwright.datasets import lint as lint_all
    from kernelwright.sandbox import Limits, open_sandbox

    settings = common.settings(suite_dirs=suite_dirs, sandbox=sandbox)
    found = find_problem(problem, settings.suite_dirs)
    if static_only:
        findings = lint_static(found)
    else:
        say("  running the reference in the sandbox")
        with open_sandbox(settings.sandbox) as opened:
            limits = Limits(memory_bytes=settings.memory_bytes, wall_s=settings.capture_timeout_s)
            findings = lint_all(found, lambda entry, payload: opened.call(entry, payload, limits=limits))
    lines = [f"{entry.severity}: {entry.rule}{_at(entry.line)}: {entry.message}" for entry in findings]
    weak = any(entry.severity != "info" for entry in findings)
    data = {"problem": found.id, "ok": not weak, "findings": findings, "static_only": static_only}
    common.show(data, *(lines or [f"{found.id}: no weakness found"]))
    return EXIT_WEAK if weak else 0


@problems.command()
@click.argument("spec", metavar="MODULE:FACTORY")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The problem file to write.")
@click.option("--inputs", metavar="SPEC", help="Example inputs, such as 'float32[8,64],int64[8]:0..100'.")
@click.option("--force", is_flag=True, help="Replace the file where it exists.")
@common_options
def capture(common: Common, spec: str, output: Path, inputs: str | None, force: bool) -> None:
    """Turn any module into a problem file.

    FACTORY returns (module, example inputs), or only the module where --inputs describes the inputs. MODULE is an
    importable name or a path to a .py file; its code runs with your rights.
    """
    from kernelwright.datasets import capture_module
    from kernelwright.errors import UsageError

    if output.exists() and not force:
        raise UsageError(f"{output} exists", hint="choose another name, or --force")
    problem = capture_module(spec, out=output, inputs=inputs)
    common.show(
        {"problem": str(output), "sha256": problem.sha256},
        f"{output}: written; try 'kernelwright problems lint {output}'",
    )


def _at(line: int | None) -> str:
    return f" (line {line})" if line else ""
