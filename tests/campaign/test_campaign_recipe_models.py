"""Recipes with language models: what each system asks of its Coder, over a loopback server and a referee by table."""

from __future__ import annotations

import itertools
import json
import re
import threading
from pathlib import Path

import pytest
from campaign_fakes import FakeReferee, make_problem
from campaign_models import FIELDS, tokens_of
from llm_server import Answer, Asked, serve

from kernelwright.campaign import Campaign, searches_of, with_recipe
from kernelwright.campaign.ledger import fruitless_of
from kernelwright.campaign.recipe import recipe_names
from kernelwright.config import Settings
from kernelwright.errors import UsageError
from kernelwright.records import Status
from kernelwright.store import Store

PREDICTION = {"outcome": "pass", "confidence": 0.9, "reason": "it looks right"}


class Writer:
    """Answers every Coder's question with another kernel, and everybody else with what their schema wants."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []  # by the Coder
        self.others: list[Asked] = []  # by whoever reads kernels
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> Answer:
        fields = (asked.schema or {}).get("properties", {})
        if "source" not in fields and "edits" not in fields:
            self.others.append(asked)
        for name, reply in FIELDS.items():
            if name in fields:
                return Answer(json.dumps(reply), tokens_of(asked))
        if "outcome" in fields:
            return Answer(json.dumps(PREDICTION), tokens_of(asked))
        with self._lock:
            self.asked.append(asked)
            number = len(self.asked) - 1
        source = f"v{number}\n\n\nclass ModelNew:\n    pass\n"
        if "edits" in fields:
            (parent,) = re.findall(r"^# The kernel to change.*?^(v\d+)$", asked.text, re.DOTALL | re.MULTILINE)
            edits = [{"find": parent, "replace": f"v{number}"}]
            return Answer(json.dumps({"plan": f"plan {number}", "edits": edits}), tokens_of(asked))
        return Answer(json.dumps({"plan": f"plan {number}", "source": source}), tokens_of(asked))


class Run(Writer):
    """A finished run of a recipe on one problem."""

    def __init__(self, folder: Path, recipe: str, referee: FakeReferee | None = None, *, problem=None, **more) -> None:
        super().__init__()
        self.referee = referee or FakeReferee({f"v{number}": 1.0 + number / 10 for number in range(200)})
        with serve(self) as server, Store.open(folder / "store.db") as store:
            flags = {"coder": "openai:coder", "recipe": recipe, "parallel_problems": 1, **more}
            places = {"store": folder / "store.db", "cache_dir": folder / "cache"}
            given = {**places, **flags, "openai_base_url": server.openai_base_url, "max_tokens": 10**9}
            settings = with_recipe(Settings.load(given, env={}, cwd=folder))
            result = Campaign(settings, store, open_referee=lambda _: self.referee).run(
                [problem or make_problem("one")]
            )
            self.evaluations = store.evaluations(run_id=result.run_id, confirmed=False)
            self.config = store.run(result.run_id).config
        self.status = result.status
        (self.row,) = result.rows

    @property
    def words(self) -> list[str]:
        """What was judged in the search, in order."""
        return [word for _, word, confirmed in self.referee.judged if not confirmed]

    @property
    def modes(self) -> list[str]:
        """What the Coder was asked for, in the order in which it was judged."""
        return [str((one.action.get("assignment") or {}).get("mode", "new")) for one in self.evaluations]


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_independent_samples_are_sampled_anew_and_know_nothing_of_each_other(tmp_path):
    failing = FakeReferee(statuses={f"v{number}": Status.COMPILE_ERROR for number in range(3)})
    run = Run(tmp_path, "best-of-n", failing, rounds=5)
    assert run.words == ["v0", "v1", "v2", "v3", "v4"]
    assert len({asked.text for asked in run.asked[:4]}) == 1, "the fourth one was asked for before anything had passed"


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_runs_to_its_end_with_a_model(tmp_path, name):
    referee = FakeReferee(
        {f"v{number}": 1.0 + number / 100 for number in range(200)}, {"v1": Status.COMPILE_ERROR, "v2": Status.TIMEOUT}
    )
    run = Run(tmp_path, name, referee, rounds=4)
    assert run.status == "finished"
    assert run.row.state == "done"
    assert len(run.words) >= 4
    assert len(set(run.words)) == len(run.words) or run.config.search is not None, "only a search judges again"


def test_lines_that_run_side_by_side_know_nothing_of_each_other(tmp_path):
    failing = FakeReferee({f"v{number}": 2.0 - number / 10 for number in range(20)}, {"v4": Status.COMPILE_ERROR})
    run = Run(tmp_path, "kevin", failing, rounds=4, recipe_samples=3)
    lines = {sample: [e for e in run.evaluations if e.action["sample"] == sample] for sample in range(3)}
    assert [len(line) for line in lines.values()] == [4, 4, 4]
    for line in lines.values():
        for earlier, later in itertools.pairwise(line):
            assert later.candidate.parents == (earlier.candidate.sha256,), "each turn goes on from the one before"
            assert later.candidate.operator == ("improve" if earlier.verdict.passed else "repair")
    assert sum(e.candidate.operator == "repair" for e in run.evaluations) == 1
    plans = {e.candidate.sha256: e.candidate.note for e in run.evaluations}
    told = {e.candidate.prompt_sha256: e for e in run.evaluations if e.step == 3}
    with Store.open(tmp_path / "store.db", readonly=True) as store:
        for sha256, evaluation in told.items():
            prompt = store.get_text(sha256)
            own = {e.candidate.sha256 for e in lines[evaluation.action["sample"]] if e.step < 3}
            assert {known for known, plan in plans.items() if f"{plan} " in prompt or f"{plan}\n" in prompt} == own


def test_a_line_goes_on_from_its_latest_kernel_even_where_it_is_slower(tmp_path):
    slower = FakeReferee({f"v{number}": 9.0 - number for number in range(4)})
    run = Run(tmp_path, "kevin", slower, rounds=3, recipe_samples=1)
    assert [len(e.candidate.parents) for e in run.evaluations] == [0, 1, 1]
    assert run.evaluations[2].candidate.parents == (run.evaluations[1].candidate.sha256,)
    assert run.row.candidate == run.evaluations[0].candidate.sha256, "the best of all is kept"


def test_all_kernels_of_a_round_of_fsr_come_from_the_one_that_got_furthest_and_then_from_the_best(tmp_path):
    wrong = {f"v{number}": Status.INCORRECT_NUMERICAL for number in range(8)}
    referee = FakeReferee({"v9": 3.0, "v13": 5.0}, wrong)
    run = Run(tmp_path, "fsr", referee, rounds=5, recipe_samples=4)
    by_round = [[e for e in run.evaluations if e.step == step and e.purpose == "search"] for step in range(5)]
    assert [len(found) for found in by_round] == [4] * 5
    assert {e.candidate.operator for e in by_round[0]} == {"new"}
    assert {e.candidate.operator for e in by_round[1]} <= {"repair", "new"}
    for before, later in ((by_round[2], by_round[3]), (by_round[3], by_round[4])):
        best = max((e for e in [*by_round[0], *by_round[1], *before] if e.verdict.passed), key=speed)
        parents = {e.candidate.parents for e in later}
        assert len(parents) == 1
        assert speed(next(e for e in run.evaluations if (e.candidate.sha256,) in parents)) >= speed(best)
        assert {e.candidate.operator for e in later} == {"improve"}


def speed(evaluation) -> float:
    found = evaluation.verdict.speedup("eager")
    return found.median if found else 0.0


def test_shinka_draws_edits_rewrites_and_crossings_and_never_mends_once_a_kernel_is_right(tmp_path):
    broken = FakeReferee(
        {f"v{n}": 1.0 + n / 100 for n in range(100)}, {f"v{n}": Status.TIMEOUT for n in range(5, 99, 3)}
    )
    run = Run(tmp_path, "shinka", broken, rounds=40)
    drawn = [mode for mode in run.modes if mode != "new"]
    counts = {mode: drawn.count(mode) / len(drawn) for mode in set(drawn)}
    assert set(counts) <= {"edit", "improve", "cross"}
    assert counts["edit"] > counts["improve"]


def test_several_models_write_for_one_search_and_the_islands_name_theirs(tmp_path):
    recipe = tmp_path / "two.toml"
    recipe.write_text(
        'summary = "an island for each model"\n[search]\nmigrate_every = 2\n'
        '[[search.islands]]\nname = "a"\nmodel = "openai:coder"\n'
        '[[search.islands]]\nname = "b"\nmodel = "openai:other"\nselection = "best"\naxes = ["bound"]\n'
    )
    run = Run(tmp_path, str(recipe), rounds=6, models="openai:other")
    written = [e for e in run.evaluations if "assignment" in e.action]  # the others are races of migrants
    authors = {e.action["assignment"].get("island", 0): e.candidate.author for e in written}
    assert authors == {0: "openai:coder", 1: "openai:other"}
    assert {asked.model for asked in run.asked} == {"coder", "other"}
    assert run.config.search["models"] == ["openai:coder", "openai:other"]


class WithASilentModel(Run):
    """One of two models has nothing to say that could be used."""

    def __call__(self, asked: Asked) -> Answer:
        if asked.model == "silent":
            self.others.append(asked)
            return Answer("I would rather not.", tokens_of(asked))
        return super().__call__(asked)


def test_a_model_that_gives_nothing_usable_is_asked_less_and_shown_with_what_it_gained(tmp_path):
    recipe = tmp_path / "two.toml"
    recipe.write_text(
        'summary = "two models"\n[settings]\nstall_rounds = 99\n[search]\nlearns = "models"\n'
        '[[search.islands]]\nname = "a"\noperators = { improve = 1 }\n'
    )
    run = WithASilentModel(tmp_path, str(recipe), rounds=30, models="openai:silent")
    failed = len(run.others) // 2  # it is asked twice each time
    assert 1 <= failed <= 10
    assert len(run.asked) == 30 - failed
    with Store.open(tmp_path / "store.db", readonly=True) as store:
        (row,) = store.runs()
        assert len(fruitless_of(store, row.id)) == failed
        ((island,),) = [view.islands for view in searches_of(store, row)]
    arms = {arm.model: arm for arm in island.arms}
    assert arms["openai:silent"].gain == 0.0
    assert 0 < arms["openai:silent"].steps < arms["openai:coder"].steps


def test_a_search_knows_what_replies_cost_those_included_that_could_not_be_used(tmp_path):
    recipe, prices = tmp_path / "two.toml", tmp_path / "prices.toml"
    recipe.write_text(
        'summary = "two models"\n[settings]\nstall_rounds = 99\n[search]\nlearns = "models"\n'
        '[[search.islands]]\nname = "a"\noperators = { improve = 1 }\n'
    )
    prices.write_text(
        '[[price]]\nprovider = "openai"\nmodels = ["coder", "silent"]\nas_of = 2026-01-01\n'
        "input_usd = 100.0\noutput_usd = 100.0\n"
    )
    run = WithASilentModel(tmp_path, str(recipe), rounds=12, models="openai:silent", prices=prices)
    with Store.open(tmp_path / "store.db", readonly=True) as store:
        (row,) = store.runs()
        told = [fruitless.action["cost_usd"] for _, fruitless in fruitless_of(store, row.id)]
        paid = {
            found["model"]: found["cost_usd"]
            for found in store.query("SELECT model, sum(cost_usd) AS cost_usd FROM llm_calls GROUP BY model")
        }
        ((island,),) = [view.islands for view in searches_of(store, row)]
    assert paid["silent"] > 0.0
    assert sum(told) == pytest.approx(paid["silent"])
    written = [e.action["cost_usd"] for e in run.evaluations if "assignment" in e.action]
    assert sum(written) == pytest.approx(paid["coder"])
    assert all(arm.cost_usd > 0.0 for arm in island.arms)


def test_prompts_are_about_the_language_of_the_island_and_of_the_kernel_that_they_show(tmp_path):
    recipe = tmp_path / "languages.toml"
    recipe.write_text(
        'summary = "two languages"\n[settings]\nexemplar = "pointwise"\n'
        '[[search.islands]]\nname = "a"\n[[search.islands]]\nname = "b"\nbackend = "triton"\n'
    )
    roles = dict.fromkeys(("judge", "verifier"), "openai:reader")
    run = Run(tmp_path, str(recipe), FakeReferee(untimed=frozenset({"triton"})), rounds=8, **roles)
    written = {e.candidate.source.split()[0]: e.candidate for e in run.evaluations}
    assert {candidate.backend for candidate in written.values()} == {"cpp", "triton"}
    said = {"cpp": "## Building: C++ on the CPU", "triton": "## Building: Triton"}
    for number, asked in enumerate(run.asked):
        backend = written[f"v{number}"].backend
        assert f"Backend {backend}," in asked.text
        assert said[backend] in asked.text
        assert ("import triton" in asked.text.partition("# Task")[0].partition("# An exemplar")[2]) == (
            backend == "triton"
        )
        assert ("no GPU on this machine" in asked.text) == (backend == "triton")
    inspired = [asked.text for asked in run.asked if ": written for " in asked.text]
    assert any("Backend triton," in text and ": written for cpp, PASSED\n" in text for text in inspired), "no CPU times"
    assert {asked.model for asked in run.others} == {"reader"}
    for asked in run.others:
        shown = written[re.findall(r"^(v\d+)$", asked.text, re.MULTILINE)[0]]
        assert f"Backend {shown.backend}," in asked.text


def test_the_bandit_of_a_search_draws_among_the_models_of_the_run(tmp_path):
    run = Run(tmp_path, "shinka", rounds=20, models="openai:other")
    bred = [e for e in run.evaluations if e.candidate.parents]
    assert {e.candidate.author for e in bred} == {"openai:coder", "openai:other"}
    assert all(e.action["assignment"]["model"] == e.candidate.author for e in bred)


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("cudaforge", {"models": "openai:other"}, "uses a single model"),
        ("shinka", {"models": "openai:coder"}, "named twice"),
        ("shinka", {"models": "offline"}, "is not a language model"),
    ],
)
def test_models_that_cannot_be_had_are_refused(tmp_path, name, more, message):
    with pytest.raises(UsageError, match=message):
        Run(tmp_path, name, **more)


@pytest.mark.parametrize(
    ("name", "shown"), [("multikernelbench", "(softmax)"), ("best-of-n", "(pointwise)"), ("cuda-l1", "(softmax)")]
)
def test_the_exemplar_is_of_the_category_or_always_the_same(tmp_path, name, shown):
    run = Run(tmp_path, name, problem=make_problem("softmax"), rounds=1)
    assert f"another operator {shown}" in run.asked[0].text


def test_parevo_asks_its_judge_about_profiles_and_repairs_what_failed(tmp_path):
    failing = FakeReferee({f"v{number}": 2.0 for number in range(50)}, {"v2": Status.RUNTIME_ERROR})
    run = Run(tmp_path, "parevo", failing, rounds=4)
    assert run.config.judge == run.config.coder
    repaired = [e for e in run.evaluations if e.candidate.operator == "repair"]
    assert len(repaired) == 1, "one of a round's two candidates mends, the other goes on"
    assert any("one pass" in asked.text for asked in run.asked), "the Judge's advice reaches the Coder"
