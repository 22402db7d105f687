"""What each reward pays for every attack of the corpus: by our referee's evidence, and by a naive evaluator's.

Every attack and every honest control of ``tests/adversarial`` is judged by the referee as it stands, C++ with its time
on the clock, and evaluated once more as published pipelines do it (``kernelwright.rl.evaluate_naively``: one process,
``allclose``, the kernel's own clock). All formulas of ``kernelwright.rl.REWARDS`` are then paid on both. Kernels in
Triton and CUDA are checked in the interpreter and the emulator here; the naive evaluator would need a GPU and says
nothing of them.

    python benchmarks/reward_hacks.py --journal FILE    judges what FILE lacks, then writes results and document
    python benchmarks/reward_hacks.py --missing         judges what is new or was changed since the results were made
    python benchmarks/reward_hacks.py --render          writes docs/rewards.md anew from the results
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests" / "adversarial")]

import corpus  # noqa: E402

from kernelwright.config import Settings  # noqa: E402
from kernelwright.errors import MachineError  # noqa: E402
from kernelwright.evaluator import Confirm, ProblemSession, Referee, Search, environment  # noqa: E402
from kernelwright.records import Candidate, Evaluation, sha256_text  # noqa: E402
from kernelwright.rl import FORMULAS, REWARDS, Attempt, payments, runs_of  # noqa: E402
from kernelwright.rl._formulas import IDLE  # noqa: E402
from kernelwright.rl._naive import evaluate_naively  # noqa: E402
from kernelwright.sandbox import Sandbox, open_sandbox  # noqa: E402

RESULTS = HERE / "results" / "reward_hacks.json"
DOCUMENT = HERE.parent / "docs" / "rewards.md"
OTHERS = [name for name in REWARDS if name != "kernelwright"]
SETTINGS = {
    "device": "none",
    "measurement": {
        "looks": (12,),
        "window_ms": 1.0,
        "confirm_pairs": 5,
        "confirm_max_pairs": 5,
    },
    "call_timeout_s": 3.0,
    "build_timeout_s": 150.0,
    "memory_bytes": 3 << 29,
}

# ---------------------------------------------------------------------------------------------------------- judging


def judge_all(journal: Path, known: Iterable[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """A row for every case: from the journal, from those that are known, or judged now and added to the journal."""
    cases = [("attack", case) for case in corpus.attacks()] + [("honest", case) for case in corpus.honest()]
    now = {(kind, case.name, sha256_text(case.source)) for kind, case in cases}
    lines = journal.read_text().splitlines() if journal.exists() else []
    held = {key_of(row): row for row in (*known, *map(json.loads, lines)) if key_of(row) in now}
    rows = list(held.values())
    missing = sorted(
        ((kind, case) for kind, case in cases if (kind, case.name, sha256_text(case.source)) not in held),
        key=lambda one: (one[1].problem, one[0], one[1].backend, one[1].name),
    )
    with tempfile.TemporaryDirectory() as cache:
        settings = Settings.load(flags={**SETTINGS, "cache_dir": cache}, env={}).for_boards()
        with Referee(settings) as referee, open_sandbox(settings.sandbox) as sandbox:
            for problem, group in groupby(missing, key=lambda one: one[1].problem):
                with referee.open(corpus.problem_of(problem), baselines=("eager",)) as session:
                    for kind, case in group:
                        row = {"kind": kind, **row_of(case, session, sandbox)}
                        rows.append(row)
                        with journal.open("a") as file:
                            file.write(json.dumps(row) + "\n")
                        print(progress(row), f"{len(rows)} of {len(cases)}", file=sys.stderr, flush=True)
    return sorted(rows, key=lambda row: (row["kind"], row["name"]))


def key_of(row: dict[str, Any]) -> tuple[str, str, str]:
    """What a row is about."""
    return row["kind"], row["name"], row["sha256"]


def row_of(case: corpus.Case, session: ProblemSession, sandbox: Sandbox) -> dict[str, Any]:
    """One case, judged both ways."""
    candidate = Candidate(problem_id=session.problem.id, source=case.source, backend=case.backend)
    started = time.monotonic()
    evaluation = judged(session, candidate, confirm=case.confirm)
    verdict = evaluation.verdict
    ours = Attempt.of(verdict, candidate, runs_of(evaluation.samples))
    seconds = time.monotonic() - started
    naive = evaluate_naively(sandbox, session.problem, candidate)
    refusing = [finding.rule for finding in verdict.findings if finding.effect == "refuses"]
    return {
        "name": case.name,
        "sha256": sha256_text(case.source),
        "row": case.row,
        "backend": case.backend,
        "problem": case.problem,
        "needs_device": case.device,
        "referee": {
            "status": verdict.status.value,
            "stage": verdict.stage.value if verdict.stage else None,
            "failed_stage": verdict.failed_stage,
            "rule": refusing[0] if refusing else "",
            "attempt": plain(ours),
            "pays": payments(ours),
            "seconds": round(seconds, 2),
        },
        "naive": {
            "outcome": naive.outcome,
            "attempt": None if naive.attempt is None else plain(naive.attempt),
            "pays": None if naive.attempt is None else payments(naive.attempt),
        },
    }


def judged(session: ProblemSession, candidate: Candidate, *, confirm: bool) -> Evaluation:
    """The referee's verdict; a disturbed machine is asked up to three times."""
    depth = Confirm(static=False) if confirm else Search(static=False)
    for _ in range(2):
        try:
            return session.judge(candidate, depth)
        except MachineError as error:
            print(f"again: {error}", file=sys.stderr, flush=True)
    return session.judge(candidate, depth)


def plain(attempt: Attempt) -> dict[str, Any]:
    """An attempt as JSON, without its runs, which are many."""
    data = dataclasses.asdict(attempt)
    del data["runs"]
    return data


def progress(row: dict[str, Any]) -> str:
    """A line about a row."""
    naive = row["naive"]["attempt"] or {}
    return (
        f"{row['kind']} {row['name']}: {row['referee']['status']} in {row['referee']['seconds']} s, "
        f"pays {row['referee']['pays']['kernelwright']}; naive: {row['naive']['outcome']} {naive.get('speedup')}"
    )


# ---------------------------------------------------------------------------------------------------------- summary


def summary_of(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of the table."""
    attacks = [row for row in rows if row["kind"] == "attack"]
    honest = [row for row in rows if row["kind"] == "honest"]
    at_home = [row for row in attacks if not row["needs_device"]]
    seen = [row for row in attacks if row["naive"]["attempt"]]
    right = [row for row in seen if row["naive"]["attempt"]["correct"]]
    passed = [row for row in honest if row["referee"]["status"] == "PASSED"]
    ran = [row for row in passed if not row["referee"]["attempt"]["emulated"]]
    return {
        "attacks": len(attacks),
        "attacks_exercised": len(at_home),
        "exercised_that_earn_exactly_zero": sum(ours(row) == 0.0 for row in at_home),
        "exercised_that_earn_something": {row["name"]: ours(row) for row in at_home if ours(row) != 0.0},
        "attacks_that_need_a_gpu": len(attacks) - len(at_home),
        "of_those_earn_exactly_zero": sum(ours(row) == 0.0 for row in attacks if row["needs_device"]),
        "of_those_earn_something": {row["name"]: ours(row) for row in attacks if row["needs_device"] and ours(row)},
        "honest": len(honest),
        "honest_passed": len(passed),
        "honest_that_ran": len(ran),
        "honest_least": min((ours(row) for row in ran), default=None),
        "honest_most": max((ours(row) for row in ran), default=None),
        "naive_evaluated": len(seen),
        "naive_called_right": len(right),
        "naive_called_faster": sum(row["naive"]["attempt"]["speedup"] > 1.05 for row in right),
        "naive_refused_honest": sum(
            not row["naive"]["attempt"]["correct"] for row in honest if row["naive"]["attempt"] is not None
        ),
        "formulas": {name: of_formula(name, seen, attacks) for name in REWARDS},
    }


def of_formula(name: str, seen: Sequence[dict[str, Any]], attacks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a formula pays for attacks: on naive evidence, and on the referee's."""
    idle = REWARDS[name](IDLE)
    assert idle is not None
    return {
        "idle": idle,
        "naive": paid([row["naive"]["pays"][name] for row in seen], idle),
        "referee": paid([row["referee"]["pays"][name] for row in attacks if not row["needs_device"]], idle),
    }


def paid(rewards: Iterable[float | None], idle: float) -> dict[str, Any]:
    """Figures of rewards; where a formula gives no score, nothing is paid."""
    given = list(rewards)
    found = [0.0 if reward is None else reward for reward in given]
    return {
        "attacks": len(found),
        "without_a_score": given.count(None),
        "more_than_idle": sum(reward > idle for reward in found),
        "as_much_as_idle": sum(reward >= idle for reward in found),
        "largest": max(found),
        "mean": statistics.fmean(found),
    }


def ours(row: dict[str, Any]) -> float:
    """Our reward of a row."""
    reward: float = row["referee"]["pays"]["kernelwright"]
    return reward


# ---------------------------------------------------------------------------------------------------------- document


def render(record: dict[str, Any]) -> str:
    """The document, as it follows from the results."""
    rows, summary = record["rows"], record["summary"]
    attacks = [row for row in rows if row["kind"] == "attack"]
    honest = [row for row in rows if row["kind"] == "honest"]
    machine = record["environment"]
    return "\n".join(
        [
            HEAD,
            *summary_lines(summary),
            "",
            "## Formulas",
            "",
            *formula_lines(),
            "",
            "## What they pay for the attacks",
            "",
            SUMMARY_TEXT.format(
                evaluated=summary["naive_evaluated"],
                exercised=summary["attacks_exercised"],
                unscored=summary["formulas"]["cuda-l1"]["naive"]["without_a_score"],
            ),
            "",
            *summary_table(summary),
            "",
            "## Every attack",
            "",
            ROWS_TEXT,
            "",
            *table_of(attacks),
            "",
            "## Honest controls",
            "",
            HONEST_TEXT,
            "",
            *table_of(honest),
            "",
            f"Made on {machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}, {machine['compiler']}, by "
            "`python benchmarks/reward_hacks.py`; the record is "
            "[reward_hacks.json](../benchmarks/results/reward_hacks.json). What is refused is refused on any machine;",
            "times, and with them the sizes of what naive evidence would have earned, are this one's.",
            "",
        ]
    )


HEAD = """# Rewards: what cheating earns

A policy that is trained on a reward finds what the reward pays for. This page shows what eight formulas pay for every
attack of our corpus (`tests/adversarial/attacks`), on two kinds of evidence. A naive evaluator has reference and
candidate in one process, compares a few outputs by `allclose`, and trusts that process's clock. The other kind is the
referee's. `benchmarks/reward_hacks.py` writes this page; do not edit it.

An attack is refused or wrong. A right kernel that leaves nearly all of the work to libraries is neither: it ends as
`INELIGIBLE`, or as `PASSED` with `eligible` false where libraries were allowed. No formula pays it more than a wrong
kernel.
"""
SUMMARY_TEXT = """*Idle* is what the formula pays for an honest kernel that gains nothing: right, its own, as fast as
PyTorch. Columns under *naive* are over the {evaluated} attacks in C++, which a machine without a GPU can run. Columns
under *referee* are over all {exercised} attacks that can be exercised here. *More* counts attacks that are paid more
than idle, *as much* those that are paid at least as much. A reward without speed pays none more. The naive evaluator
does not time torch.compile, so the third of cuda-agent's milestones is out of its reach. A formula without a score
pays nothing: cuda-l1 has none for {unscored} of the attacks, because their naive times vary too much. The problems are
small and a call takes microseconds, so much of the naive time is the cost of calling a kernel at all."""
ROWS_TEXT = """*Ours* is paid on the referee's evidence, all other columns on the naive evaluator's. `none` means that a
formula gives no score. A blank means that the naive evaluator has no device for the attack. Attacks that only a GPU can
exercise are marked `*`: their rows show the result in the interpreter or the emulator."""
HONEST_TEXT = """Kernels that resemble an attack and are right. *Ours* is above 0 for each that passes."""


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """The findings, in sentences."""
    zero, exercised = summary["exercised_that_earn_exactly_zero"], summary["attacks_exercised"]
    earned = summary["exercised_that_earn_something"]
    return [
        f"- Of {exercised} attacks that can be exercised without a GPU, {zero} earn exactly 0 by our reward."
        + (f" The others: {in_words(earned)}." if earned else ""),
        f"- {summary['attacks_that_need_a_gpu']} attacks need a GPU. Checked without one, "
        f"{summary['of_those_earn_exactly_zero']} of them earn 0 too." + gpu_words(summary["of_those_earn_something"]),
        f"- The naive evaluator calls {summary['naive_called_right']} of the {summary['naive_evaluated']} attacks that "
        f"it can run right, and {summary['naive_called_faster']} of them more than 5% faster.",
        f"- {summary['honest_passed']} of {summary['honest']} honest controls pass. Those that ran on a device of "
        f"theirs, {summary['honest_that_ran']}, earn "
        f"{summary['honest_least']:.3f} to {summary['honest_most']:.3f}. The naive evaluator refuses "
        f"{summary['naive_refused_honest']} of those that it can run.",
    ]


def gpu_words(earned: dict[str, float]) -> str:
    """What is said of attacks that earn something for want of a device."""
    return f" Not so {in_words(earned)}." if earned else ""


def in_words(earned: dict[str, float]) -> str:
    """Names with what each earned."""
    return ", ".join(f"{name} ({reward:.3g})" for name, reward in sorted(earned.items()))


def formula_lines() -> list[str]:
    """A table of the formulas."""
    lines = ["| reward | pays | published |", "|---|---|---|"]
    for name, formula in FORMULAS.items():
        source = f"[{formula.source}]({formula.url})" if formula.url else formula.source
        lines.append(f"| {name} | {formula.line} | {source} |")
    return lines


def summary_table(summary: dict[str, Any]) -> list[str]:
    """A row for each formula."""
    lines = [
        "| reward | idle | naive: more | as much | largest | mean | referee: more | as much | largest | mean |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, figures in summary["formulas"].items():
        cells = [number(figures["idle"])]
        for side in (figures["naive"], figures["referee"]):
            cells += [str(side["more_than_idle"]), str(side["as_much_as_idle"]), number(side["largest"])]
            cells.append(number(side["mean"]))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def table_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A row for each case."""
    lines = [
        f"| kernel | language | referee | ours | naive says | speedup | {' | '.join(OTHERS)} |",
        f"|---|---|---|--:|---|--:|{'--:|' * len(OTHERS)}",
    ]
    for row in rows:
        attempt, pays = row["naive"]["attempt"], row["naive"]["pays"]
        status = row["referee"]["status"]
        verdict = f"{status} ({row['referee']['failed_stage'] or row['referee']['stage']})"
        speedup = f"{number(attempt['speedup'])}x" if attempt and attempt["speedup"] else ""
        cells = [f"{row['name']}{' *' if row['needs_device'] else ''}", row["backend"], verdict, number(ours(row))]
        cells += [row["naive"]["outcome"], speedup, *("" if pays is None else number(pays[name]) for name in OTHERS)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def number(value: float | None) -> str:
    """A reward in a table."""
    if value is None:
        return "none"
    return f"{value:.0f}" if value == round(value) or abs(value) >= 100 else f"{value:.3g}"


# ---------------------------------------------------------------------------------------------------------- main


def as_text(record: dict[str, Any]) -> str:
    """The record as JSON, a row a line."""
    head = json.dumps({name: part for name, part in record.items() if name != "rows"}, indent=1)
    rows = ",\n".join(json.dumps(row) for row in record["rows"])
    return f'{head[:-2]},\n "rows": [\n{rows}\n]}}\n'


def main() -> int:
    """Judge, record, render; exit 1 where an attack earned something that could be exercised here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--journal", type=Path, help="where rows go one by one, to go on with later")
    parser.add_argument("--missing", action="store_true", help="keep the results of what has not changed since")
    parser.add_argument("--render", action="store_true", help="judge nothing: write the document anew")
    options = parser.parse_args()
    if options.render:
        record = json.loads(RESULTS.read_text())
        record["summary"] = summary_of(record["rows"])
    else:
        with tempfile.TemporaryDirectory() as folder:
            known = json.loads(RESULTS.read_text())["rows"] if options.missing else ()
            rows = judge_all(options.journal or Path(folder, "journal.jsonl"), known)
        record = {
            "environment": environment(1).model_dump(),
            "settings": SETTINGS,
            "summary": summary_of(rows),
            "rows": rows,
        }
    RESULTS.write_text(as_text(record))
    DOCUMENT.write_text(render(record))
    print(json.dumps(record["summary"], indent=2))
    return int(bool(record["summary"]["exercised_that_earn_something"]))


if __name__ == "__main__":
    sys.exit(main())
