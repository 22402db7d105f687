"""Kills a run with models with SIGKILL at random moments and resumes it, again and again, until it is finished.

For each life of the run a child is forked, and killed after a random time, wherever it is then. After each, one line of
JSON says how the store stands; the next life begins when a line has come on standard input.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import traceback
from pathlib import Path

import anthropic  # noqa: F401 - paid for once, before any fork
import openai  # noqa: F401
from campaign_fakes import FakeReferee, make_problem

from kernelwright.agents.llm import _anthropic, _openai  # noqa: F401
from kernelwright.campaign import Campaign
from kernelwright.config import Settings
from kernelwright.store import Store

PROBLEMS = [make_problem(f"p{number}") for number in range(12)]
LONGEST_LIFE_S = 0.22


def settings_of(folder: Path, openai_url: str, anthropic_url: str) -> Settings:
    return Settings(
        store=folder / "store.db",
        cache_dir=folder / "cache",
        prices=folder / "prices.toml",
        coder="openai:coder",
        judge="anthropic:judge",
        rounds=4,
        parallel_problems=4,
        openai_base_url=openai_url,
        anthropic_base_url=anthropic_url,
    )


def live(settings: Settings) -> None:
    """One life, in a child."""
    with Store.open(settings.store) as store:
        campaign = Campaign(settings, store, open_referee=lambda _: FakeReferee())
        runs = store.runs()
        result = campaign.resume(runs[0].id) if runs else campaign.run(PROBLEMS)
    if result.status != "finished":
        raise AssertionError(result)


def forked(settings: Settings, seconds: float | None) -> int:
    """The exit code of a life that is killed after so many seconds, unless it has ended by then."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    child = os.fork()
    if child == 0:
        code = 1
        try:
            live(settings)
            code = 0
        except BaseException:  # noqa: BLE001 - the child's boundary
            traceback.print_exc()
        finally:
            os._exit(code)
    if seconds is not None and signal.sigtimedwait({signal.SIGCHLD}, seconds) is None:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    while signal.SIGCHLD in signal.sigpending():
        signal.sigwait({signal.SIGCHLD})
    return code


def standing(settings: Settings) -> dict:
    """What the store holds after a life."""
    if not settings.store.exists():
        return {"spent": [0, 0.0], "committed": [], "finished": False}
    with Store.open(settings.store) as store:
        runs = store.runs()
        if not runs:
            return {"spent": [0, 0.0], "committed": [], "finished": False}
        spent = store.spending(runs[0].id)
        rows = store.query("SELECT prompt_sha256 FROM llm_calls")
        return {
            "spent": [spent.tokens, spent.cost_usd],
            "committed": [row["prompt_sha256"] for row in rows],
            "finished": runs[0].status == "finished",
        }


def main(folder: Path, openai_url: str, anthropic_url: str, kills: int, seed: int) -> None:
    settings = settings_of(folder, openai_url, anthropic_url)
    chance = random.Random(seed)
    killed = 0
    while True:
        code = forked(settings, chance.uniform(0.0, LONGEST_LIFE_S) if killed < kills else None)
        killed += code == -signal.SIGKILL
        found = {"code": code, "killed": killed, **standing(settings)}
        print(json.dumps(found), flush=True)
        if found["finished"] or code > 0 or not sys.stdin.readline():
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
