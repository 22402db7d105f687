"""The constants of the model of a GPU's time, and what its record says of it, come from the measured times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelwright.evaluator.profile.expected import H100

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "h100"


@pytest.fixture(scope="module")
def fitted(load_script):
    module = load_script("benchmarks/gpu_model.py")
    return module.record(module.read(RESULTS / "gpu_model_facts.jsonl"))


@pytest.fixture(scope="module")
def kept():
    return json.loads((RESULTS / "gpu_model.json").read_text())


def test_the_constants_are_those_that_the_measured_times_give(fitted, kept):
    assert fitted["constants"] == pytest.approx(kept["constants"], rel=0.02)
    assert {name: getattr(H100, name) for name in kept["constants"]} == kept["constants"]


def test_the_record_says_what_the_model_is_worth_on_problems_held_out(fitted, kept):
    for part in ("within", "within_where_times_differ", "across"):
        assert fitted[part] == pytest.approx(kept[part], abs=0.01)
    for part in ("within_5_percent", "slower_than_best"):
        assert fitted["pick"][part] == pytest.approx(kept["pick"][part], abs=0.02)
    assert kept["within"]["p"] < 0.01, "schedules are ordered better than by chance"
    assert kept["pick"]["within_5_percent"]["model"] > kept["pick"]["within_5_percent"]["default"]


def test_only_choices_that_are_foretold_better_than_by_chance_are_said_to_be(kept):
    assert kept["foretold"] == [name for name, found in kept["choices"].items() if found["p"] < 0.05]
    assert "fusion" in kept["foretold"]
