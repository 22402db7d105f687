"""Runs with models on the command line: what they would cost, what they cost, pausing, budgets, recordings."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "campaign"))

from campaign_models import well_behaved
from llm_server import Refusal, serve

BUDGET = ("--max-tokens", "10000000")


@pytest.fixture
def server(monkeypatch):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with serve(well_behaved) as serving:
        monkeypatch.setenv("KERNELWRIGHT_OPENAI_BASE_URL", serving.openai_base_url)
        yield serving


def optimize(terminal, problem_file, *words, code: int = 0):
    return terminal(
        "optimize", problem_file, "--coder", "openai:coder", "--judge", "scripted", "--rounds", "2", *words, code=code
    )


def test_a_dry_run_says_prompts_tokens_prices_and_minutes(terminal, problem_file):
    words = ("optimize", problem_file, "--coder", "openai:gpt-5.4", "--judge", "anthropic:claude-opus-5-5")
    plan = terminal.json(*words, "--rounds", "10", "--samples", "2", "--dry-run")
    coder, judge, notes = plan["models"]
    assert (coder["role"], coder["prompts"], judge["prompts"]) == ("coder", 20, 10)
    assert (notes["role"], notes["spec"], notes["prompts"]) == ("scratchpad", judge["spec"], 1), "after round 8"
    assert 20_000 < coder["input_tokens"] < 500_000
    assert 0 < coder["cost_usd"] < coder["worst_usd"]
    assert plan["cost_usd"] == pytest.approx(sum(role["cost_usd"] for role in (coder, judge, notes)))
    assert plan["most_candidates"] == 20
    assert plan["device_minutes"] > 1
    shown = terminal(*words, "--dry-run").stdout
    assert "prices of 2026-" in shown
    assert "of the referee" in shown


def test_a_dry_run_knows_what_it_does_not_know(terminal, problem_file):
    plan = terminal.json("optimize", problem_file, "--coder", "openai:unlisted", "--dry-run")
    assert plan["cost_usd"] is None
    assert plan["models"][0]["cost_usd"] is None
    shown = terminal("optimize", problem_file, "--coder", "openai:unlisted", "--dry-run").stdout
    assert "at an unknown cost" in shown


def test_a_run_shows_what_it_asked_of_models(terminal, problem_file, server):
    optimize(terminal, problem_file, *BUDGET)
    data = terminal.json("runs", "show", "last")
    assert data["costs"]["calls"] == 2
    assert data["costs"]["cost_usd"] is None
    assert [(count["role"], count["outcome"], count["requests"]) for count in data["requests"]] == [
        ("coder", "reply", 2)
    ]
    shown = terminal("runs", "show", "last").stdout
    assert "models: 2 replies" in shown
    assert "cost unknown" in shown
    assert "$0.0000" not in shown
    assert "of 10,000,000" in shown


def test_a_run_is_told_round_by_round(terminal, problem_file, server):
    optimize(terminal, problem_file, *BUDGET)
    rounds = terminal.json("runs", "rounds", "last")["rounds"]
    assert [after["round"] for after in rounds] == [1, 2]
    assert rounds[1]["mean"]["eager"] > 0
    shown = terminal("runs", "rounds", "last").stdout
    assert "mean vs eager" in shown
    assert "1 of 1" in shown


def test_a_run_without_models_shows_no_costs(terminal, problem_file):
    terminal.optimize(problem_file)
    assert "models:" not in terminal("runs", "show", "last").stdout


def test_a_used_up_budget_says_how_to_go_on(terminal, problem_file, server):
    result = optimize(terminal, problem_file, "--max-tokens", "20000", code=4)
    assert "the budget of 20,000 tokens" in result.stderr
    assert "--max-tokens N" in result.stderr
    terminal("runs", "set", "last", "--max-tokens", "10000000")
    assert terminal.json("runs", "show", "last")["config"]["max_tokens"] == 10_000_000
    terminal("resume", "last")
    assert terminal.json("runs", "show", "last")["status"] == "finished"


def test_budgets_to_set_must_be_named(terminal, problem_file):
    terminal.optimize(problem_file)
    assert "which budget?" in terminal("runs", "set", "last", code=2).stderr


def test_only_a_running_run_can_be_paused(terminal, problem_file):
    terminal.optimize(problem_file)
    assert "is finished" in terminal("runs", "pause", "last", code=2).stderr


def test_a_recording_of_a_run_is_replayed(terminal, problem_file, server, tmp_path):
    optimize(terminal, problem_file, *BUDGET)
    recording = tmp_path / "run.jsonl"
    assert terminal.json("runs", "record", "last", "-o", recording)["replies"] == 2
    asked = len(server.asked)
    replay = f"replay:{recording}"
    terminal("optimize", problem_file, "--coder", replay, "--judge", "scripted", "--rounds", "2")
    assert len(server.asked) == asked
    shown = terminal.json("runs", "show", "last")
    assert shown["costs"]["cost_usd"] == 0.0
    assert shown["prompts_that_differ"] == []


def test_a_replay_says_which_prompts_differed(terminal, problem_file, server, tmp_path):
    optimize(terminal, problem_file, *BUDGET)
    recording = tmp_path / "run.jsonl"
    terminal("runs", "record", "last", "-o", recording)
    rows = [json.loads(line) for line in recording.read_text().splitlines()]
    rows[1]["prompt_sha256"] = "0" * 64
    recording.write_text("".join(json.dumps(row) + "\n" for row in rows))
    replay = f"replay:{recording}"
    terminal("optimize", problem_file, "--coder", replay, "--judge", "scripted", "--rounds", "2")
    (differing,) = terminal.json("runs", "show", "last")["prompts_that_differ"]
    assert (differing["step"], differing["role"], differing["recorded"]) == (1, "coder", "0" * 64)
    assert "1 prompt differs" in terminal("runs", "show", "last").stdout


def test_an_offline_run_has_nothing_to_record(terminal, problem_file, tmp_path):
    terminal.optimize(problem_file)
    result = terminal("runs", "record", "last", "-o", tmp_path / "run.jsonl", code=2)
    assert "used no replies" in result.stderr
    assert not (tmp_path / "run.jsonl").exists()


def test_a_mailbox_names_the_file_that_is_awaited(terminal, problem_file, tmp_path):
    words = ("--coder", "mailbox:box", "--judge", "scripted", "--rounds", "1", "--set", "mailbox_minutes=0")
    result = terminal("optimize", problem_file, *words, code=4)
    (prompt,) = (tmp_path / "box").glob("*/*.prompt.md")
    assert f"awaiting a reply: {str(prompt).removesuffix('.prompt.md')}.reply.md" in result.stderr
    assert "replies or verdicts are awaited" in result.stderr
    reply = Path(str(prompt).removesuffix(".prompt.md") + ".reply.md")
    reply.write_text("## plan\nnone\n## source\n```python\nv1\nclass ModelNew:\n    pass\n```\n")
    os.utime(reply, (0, 0))
    terminal("resume", "last")
    assert terminal.json("runs", "show", "last")["problems"][0]["state"] == "done"


def test_a_generation_without_samples_says_why_and_fails(terminal, problem_file, monkeypatch):
    refusal = Refusal(404, "the model `nosuch` does not exist", "not_found_error")
    with serve(lambda asked: refusal) as serving:
        monkeypatch.setenv("KERNELWRIGHT_OPENAI_BASE_URL", serving.openai_base_url)
        words = ("bench", "generate", "mine", problem_file, "--coder", "openai:nosuch", "--samples", "3", *BUDGET)
        done = terminal(*words, code=1)
        assert len(serving.asked) == 1, "what was refused as such is not asked again"
    assert "does not exist" in done.stderr
    assert "next time" not in done.stderr
    assert "0 samples, 0 kernels, 3 not answered" in done.stdout
    assert "judge them" not in done.stdout
    assert "nothing to judge" in terminal("bench", "evaluate", "mine", code=1).stderr
    assert "1 problem not counted below: samples are missing" in terminal("bench", "report", "mine").stdout


def test_a_missing_key_is_named(terminal, problem_file, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    assert "OPENAI_API_KEY" in optimize(terminal, problem_file, *BUDGET, code=3).stderr
