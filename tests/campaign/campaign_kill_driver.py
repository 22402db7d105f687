"""Kills a run with SIGKILL at one point after the other, resumes it, and prints what came of it as JSON.

A child is forked for every life of a run, so that a kill takes nothing else with it and imports are paid for once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections import Counter
from pathlib import Path

from campaign_fakes import FakeReferee, ScriptedCoder, ScriptedJudge, make_problem

from kernelwright.agents.registry import coders, judges
from kernelwright.campaign import Campaign, CampaignResult, rows_of
from kernelwright.config import Settings
from kernelwright.store import Store

SPEEDUPS = {"v0": 1.1, "v1": 2.0}
PROBLEMS = [make_problem("one"), make_problem("two")]


class KillSwitch:
    """Counts points; at the chosen one the process dies as by ``kill -9``."""

    def __init__(self, die_at: int | None) -> None:
        self.die_at = die_at
        self.seen: list[str] = []

    def __call__(self, name: str) -> None:
        if len(self.seen) == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen.append(name)


def live(folder: Path, die_at: int | None, resume: bool, report: Path) -> None:
    """One life of the run, in a child."""
    point = KillSwitch(die_at)
    coders.register("scripted", lambda rest: ScriptedCoder(point=point))
    judges.register("scripted", lambda rest: ScriptedJudge(point=point))
    settings = Settings(
        store=folder / "store.db", cache_dir=folder / "cache", coder="scripted", judge="scripted", rounds=2
    )
    referee = FakeReferee(SPEEDUPS, point=point)
    with Store.open(settings.store) as store:
        tell = lambda event: point(f"told {event.kind}")  # noqa: E731
        campaign = Campaign(settings, store, open_referee=lambda _: referee, tell=tell)
        result = go_on(campaign, store) if resume else campaign.run(PROBLEMS)
        evaluations = store.evaluations(run_id=result.run_id)
        counts = Counter((e.candidate.problem_id, e.candidate.source[:2], e.verdict.stage) for e in evaluations)
        report.write_text(
            json.dumps(
                {
                    "points": point.seen,
                    "status": result.status,
                    "won": [store.candidate(row.candidate).source[:2] for row in result.rows if row.candidate],
                    "repeated": [str(key) for key, count in counts.items() if count > 1],
                    "evaluations": len(evaluations),
                    "notes": len(store.notes(run_id=result.run_id)),
                    "sound": store.check().ok,
                    "runs": len(store.runs()),
                }
            )
        )


def go_on(campaign: Campaign, store: Store) -> CampaignResult:
    """What a user does after a crash: resume, or start where there is nothing to resume."""
    runs = store.runs()
    if not runs:
        return campaign.run(PROBLEMS)
    if runs[0].status == "finished":
        return CampaignResult(run_id=runs[0].id, status="finished", rows=rows_of(store, runs[0].id))
    return campaign.resume(runs[0].id)


def forked(folder: Path, die_at: int | None, resume: bool) -> dict | None:
    """The report of one life; None where it was killed."""
    report = folder / f"report-{resume}.json"
    folder.mkdir(exist_ok=True)
    child = os.fork()
    if child == 0:
        try:
            live(folder, die_at, resume, report)
        except BaseException:  # noqa: BLE001 - the child's boundary
            traceback.print_exc()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return json.loads(report.read_text()) if report.exists() else None


def main(base: Path) -> None:
    whole = forked(base / "whole", None, resume=False)
    lives = []
    for die_at in range(len(whole["points"])):
        folder = base / f"killed-{die_at}"
        killed = forked(folder, die_at, resume=False)
        lives.append({"killed": killed is None, "at": whole["points"][die_at], **forked(folder, None, resume=True)})
    print(json.dumps({"whole": whole, "lives": lives}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
