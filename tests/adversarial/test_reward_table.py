"""The table of what cheating earns: it is complete, the document says what the record says, and ours pays nothing."""

from __future__ import annotations

import json

import corpus
import pytest

from kernelwright.rl import REWARDS


@pytest.fixture(scope="module")
def benchmark(load_script):
    return load_script("benchmarks/reward_hacks.py")


@pytest.fixture(scope="module")
def record(benchmark):
    return json.loads(benchmark.RESULTS.read_text(encoding="utf-8"))


def test_the_document_is_what_the_record_renders_to(benchmark, record):
    assert benchmark.DOCUMENT.read_text(encoding="utf-8") == benchmark.render(record), (
        "docs/rewards.md has drifted: python benchmarks/reward_hacks.py --render"
    )
    assert record["summary"] == json.loads(json.dumps(benchmark.summary_of(record["rows"])))


def test_the_table_holds_the_whole_corpus(record):
    held = {(row["kind"], row["name"]) for row in record["rows"]}
    wanted = {("attack", case.name) for case in corpus.attacks()} | {("honest", case.name) for case in corpus.honest()}
    assert held == wanted, "python benchmarks/reward_hacks.py --missing"
    assert len(record["rows"]) == len(held)


def test_what_attacks_earn_by_our_reward_is_exactly_nothing(record):
    for row in record["rows"]:
        earned = row["referee"]["pays"]["kernelwright"]
        if row["kind"] == "honest":
            passed = row["referee"]["status"] == "PASSED"
            assert (earned > 0.0) == (passed and not row["referee"]["attempt"]["emulated"]), row["name"]
        else:
            assert earned == 0.0, row["name"]


def test_naive_evidence_would_have_paid(record):
    figures = record["summary"]["formulas"]
    assert set(figures) == set(REWARDS)
    assert record["summary"]["naive_called_right"] > 50
    assert figures["kevin"]["naive"]["more_than_idle"] > 10
    assert figures["kernelwright"]["referee"]["largest"] == 0.0
