"""Kills an evolutionary run at one point after the other, resumes it, and prints what came of it as JSON.

Verdicts are a table keyed by the candidate, as if recorded: what differs between two lives differs by the search.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import campaign_kill_driver as driver
from campaign_fakes import FakeReferee, ScriptedJudge, make_problem

from kernelwright.agents import StepContext
from kernelwright.agents.registry import coders, judges
from kernelwright.agents.roles import Proposal
from kernelwright.campaign import Campaign, searches_of
from kernelwright.campaign.ledger import duplicates_of
from kernelwright.config import Settings
from kernelwright.records import Candidate, sha256_text
from kernelwright.store import Store

PROBLEMS = [make_problem("one")]
ROUNDS = 11
AGAIN = 0.15  # how often it repeats itself in other words
RECIPE = """
summary = "two islands of different languages on which everything happens soon"

[settings]
stall_rounds = "none"

[search]
migrate_every = 3
restart_after = 3
remeasure_every = 2
repairs = 1

[[search.islands]]
name = "a"
founders = 2
operators = { improve = 2, new = 2, cross = 1 }

[[search.islands]]
name = "b"
backend = "triton"
selection = "tournament"
operators = { improve = 1, new = 3 }
"""


class Table(dict):
    """Speedups by the kernel's name: any name has one."""

    def get(self, word: str, default: float = 1.0) -> float:
        return 0.8 + int(sha256_text(word)[:6], 16) / 0xFFFFFF


class KnobCoder:
    """Writes what is assigned: three letters of which a child changes one; now and then what is known already."""

    name = "knobs"
    backends = frozenset({"cpp", "triton"})

    def __init__(self, point: driver.KillSwitch) -> None:
        self.point = point

    def propose(self, context: StepContext) -> Proposal:
        self.point(f"proposing {context.round}")
        asked, known = context.assignment, {a.candidate.sha256: a.candidate for a in context.attempts}
        rng = random.Random(asked.seed)
        words = [known[sha256].source.split()[0] for sha256 in asked.parents]
        tried = {candidate.source.split()[0] for candidate in known.values()}
        while True:
            if tried and rng.random() < AGAIN:
                return self._made(context, f"{rng.choice(sorted(tried))}  # again {asked.seed}\n")
            word = list(words[0] if words else rng.choices("abcdef", k=3))
            word[rng.randrange(3)] = rng.choice("abcdef")
            if "".join(word) not in tried:
                break
        return self._made(context, "".join(word) + "\n")

    def _made(self, context: StepContext, source: str) -> Proposal:
        asked = context.assignment
        candidate = Candidate(
            problem_id=context.problem.id,
            source=source,
            backend=context.backend,
            parents=asked.parents,
            operator=asked.mode,
        )
        return Proposal(candidate, "drawn", {"origin": asked.mode})


def live(folder: Path, die_at: int | None, resume: bool, report: Path) -> None:
    """One life of the run, in a child."""
    point = driver.KillSwitch(die_at)
    coders.register("knobs", lambda rest: KnobCoder(point))
    judges.register("scripted", lambda rest: ScriptedJudge(point=point))
    recipe = folder / "quick.toml"
    recipe.write_text(RECIPE)
    settings = Settings(
        store=folder / "store.db",
        cache_dir=folder / "cache",
        coder="knobs",
        judge="scripted",
        rounds=ROUNDS,
        recipe=str(recipe),
        recipe_speed_of_light=None,
        recipe_search_seed=2,
    )
    referee = FakeReferee(Table(), point=point)
    with Store.open(settings.store) as store:
        tell = lambda event: point(f"told {event.kind}")  # noqa: E731
        campaign = Campaign(settings, store, open_referee=lambda _: referee, tell=tell)
        result = driver.go_on(campaign, store) if resume else campaign.run(PROBLEMS)
        (run,) = store.runs()
        evaluations = store.evaluations(run_id=result.run_id)
        report.write_text(
            json.dumps(
                {
                    "points": point.seen,
                    "status": result.status,
                    "won": [row.candidate for row in result.rows],
                    "evaluations": [(e.candidate.source.strip(), e.purpose, e.action) for e in evaluations],
                    "duplicates": [again.model_dump(mode="json") for _, again in duplicates_of(store, run.id)],
                    "searches": [view.model_dump(mode="json") for view in searches_of(store, run)],
                    "sound": store.check().ok,
                }
            )
        )
    os._exit(0)


if __name__ == "__main__":
    driver.PROBLEMS, driver.live = PROBLEMS, live
    driver.main(Path(sys.argv[1]))
