"""Runs whose islands differ by language: what is asked for, what wins, and what is shown of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from campaign_fakes import FakeReferee, make_problem
from click.testing import CliRunner

from kernelwright.agents import StepContext
from kernelwright.agents.offline_coder import OfflineCoder
from kernelwright.agents.registry import coders
from kernelwright.agents.roles import Proposal
from kernelwright.campaign import Campaign, CampaignResult, languages_of, searches_of, with_recipe
from kernelwright.campaign.estimate import estimate
from kernelwright.cli import cli as commands
from kernelwright.config import Settings
from kernelwright.datasets import LintRecords
from kernelwright.errors import UsageError
from kernelwright.records import Candidate, Problem, Status
from kernelwright.store import Store

RECIPE = """
summary = "one island a language"

[search]
migrate_every = 2

[[search.islands]]
name = "here"

[[search.islands]]
name = "there"
backend = "triton"
"""
PROBLEM = make_problem("one")


class Polyglot:
    """Writes what is assigned, in the language that the context has, and keeps what it was asked for."""

    name = "polyglot"
    backends = frozenset({"cpp", "triton", "cuda"})
    contexts: list[StepContext] = []  # noqa: RUF012
    smalls: list[tuple[str, Problem | None]] = []  # noqa: RUF012 - language and sizes of its checks

    def propose(self, context: StepContext) -> Proposal:
        self.contexts.append(context)
        self.smalls.append((context.backend, context.bench.small(context.backend)))
        asked = context.assignment
        candidate = Candidate(
            problem_id=context.problem.id,
            source=f"{context.backend}{context.round}\n",
            backend=context.backend,
            parents=asked.parents,
            operator=asked.mode,
        )
        return Proposal(candidate, "written", {})


class CppAlone(Polyglot):
    """Says that it writes every language, and writes C++ whatever it is asked for."""

    name = "stubborn"

    def propose(self, context: StepContext) -> Proposal:
        made = super().propose(context).candidate
        return Proposal(made.model_copy(update={"backend": "cpp"}), "written", {})


@pytest.fixture(autouse=True)
def known():
    Polyglot.contexts.clear()
    Polyglot.smalls.clear()
    for coder in (Polyglot, CppAlone):
        if coder.name not in coders.words():
            coders.register(coder.name, lambda rest, coder=coder: coder())


def settings_of(folder: Path, text: str = RECIPE, **more) -> Settings:
    recipe = folder / "languages.toml"
    recipe.write_text(text)
    places = {"store": str(folder / "store.db"), "cache_dir": str(folder / "cache")}
    flags = {"coder": "polyglot", "judge": "offline", "recipe": str(recipe), "rounds": 8, **more}
    return with_recipe(Settings.load({**places, **flags}, env={}, cwd=folder))


def run(folder: Path, referee: FakeReferee, text: str = RECIPE, **more) -> CampaignResult:
    settings = settings_of(folder, text, **more)
    with Store.open(settings.store) as store:
        return Campaign(settings, store, open_referee=lambda _: referee).run([PROBLEM])


def speeds(**factors: float) -> dict[str, float]:
    return {f"{name}{number}": factor + number / 100 for name, factor in factors.items() for number in range(8)}


def test_each_island_has_kernels_in_its_language_alone_and_a_timed_one_wins(tmp_path):
    result = run(tmp_path, FakeReferee(speeds(cpp=1.1), untimed=frozenset({"triton"})))
    (row,) = result.rows
    assert (row.confirmed, set(row.speedup)) == (True, {"eager", "compile"})
    with Store.open(tmp_path / "store.db") as store:
        assert store.candidate(row.candidate).backend == "cpp"
        config = store.run(result.run_id).config
        (view,) = searches_of(store, store.run(result.run_id))
        judged = store.evaluations(run_id=result.run_id, confirmed=False)
    assert languages_of(config) == ("cpp", "triton")
    assert [(island.name, island.backend) for island in view.islands] == [("here", "cpp"), ("there", "triton")]
    for island in view.islands:
        assert island.elites
        own = {one.candidate.sha256 for one in judged if one.candidate.backend == island.backend}
        assert {elite.kernel for elite in island.elites} <= own
    for context in Polyglot.contexts:
        assert context.backend == ("triton" if context.assignment.island else "cpp")
    by_hash = {one.candidate.sha256: one.candidate for one in judged}
    for one in judged:
        assert {by_hash[parent].backend for parent in one.candidate.parents} <= {one.candidate.backend}


def test_the_coder_is_told_in_which_sizes_its_kernels_are_checked(tmp_path):
    small = make_problem("small")
    run(tmp_path, FakeReferee(speeds(cpp=1.1), untimed=frozenset({"triton"}), small={"triton": small}))
    told = dict(Polyglot.smalls)
    assert told == {"cpp": None, "triton": small}


def test_races_are_between_kernels_in_one_language(tmp_path):
    referee = FakeReferee(speeds(cuda=1.3, triton=1.3))
    text = RECIPE.replace('name = "here"', 'name = "here"\nbackend = "cuda"')
    result = run(tmp_path, referee, text, backend="triton")
    assert referee.beside
    for word, rivals in referee.beside:
        assert {rival[:3] for rival in rivals} == {word[:3]}
    with Store.open(tmp_path / "store.db") as store:
        assert store.candidate(result.rows[0].candidate).backend == "triton", "the better of two on one device"


@pytest.mark.parametrize(("backend", "rules"), [("cuda", ["fitted-sizes"]), ("cpp", [])])
def test_the_lint_runs_a_problem_with_sizes_for_a_gpu_in_smaller_ones(tmp_path, backend, rules):
    large = make_problem("large", PROBLEM.source + "\nROWS = 65536\n")
    settings = settings_of(tmp_path, RECIPE.replace("triton", backend), backend=backend)
    referee = FakeReferee(speeds(cpp=1.1, cuda=1.3), fitted={"ROWS": 8})
    with Store.open(settings.store) as store:
        Campaign(settings, store, open_referee=lambda _: referee).run([large])
    assert [finding.rule for finding in LintRecords(settings.cache_dir).get(large)] == rules


def test_speeds_on_another_device_win_nothing(tmp_path):
    result = run(tmp_path, FakeReferee(speeds(cpp=1.1, triton=40.0)))
    with Store.open(tmp_path / "store.db") as store:
        assert store.candidate(result.rows[0].candidate).backend == "cpp"
    assert result.rows[0].speedup["eager"].median < 2


def test_where_only_kernels_of_another_device_passed_it_says_so(tmp_path):
    wrong = {f"cpp{number}": Status.INCORRECT_NUMERICAL for number in range(8)}
    (row,) = run(tmp_path, FakeReferee(speeds(triton=40.0), statuses=wrong)).rows
    assert row.candidate is None
    assert "those for triton were timed on another device" in row.reason


def test_where_nothing_was_timed_it_ends_with_what_was_checked(tmp_path):
    wrong = {f"cpp{number}": Status.INCORRECT_NUMERICAL for number in range(8)}
    (row,) = run(tmp_path, FakeReferee(statuses=wrong, untimed=frozenset({"triton"}))).rows
    assert (row.confirmed, row.speedup, row.stage.value) == (False, {}, "checked")
    assert row.ranked


def test_a_kernel_in_another_language_than_was_asked_for_is_not_judged(tmp_path):
    referee = FakeReferee(speeds(cpp=1.1, triton=1.2))
    run(tmp_path, referee, coder="stubborn")
    assert {word[:3] for _, word, _ in referee.judged} == {"cpp"}


def test_a_language_that_the_coder_cannot_write_is_refused_before_anything_began(tmp_path, monkeypatch):
    monkeypatch.setattr(OfflineCoder, "backends", frozenset({"cpp", "triton"}))
    with pytest.raises(UsageError, match="island there is for cuda, which the offline coder does not write"):
        run(tmp_path, FakeReferee(), RECIPE.replace("triton", "cuda"), coder="offline")


def test_a_search_without_an_island_for_the_runs_language_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no island .* writes kernels for --backend cuda") as refused:
        run(tmp_path, FakeReferee(), RECIPE.replace('name = "here"', 'name = "here"\nbackend = "cpp"'), backend="cuda")
    assert refused.value.hint == "use --backend cpp or --backend triton"


def test_what_is_shown_of_it_names_the_languages(tmp_path):
    result = run(tmp_path, FakeReferee(speeds(cpp=1.1), untimed=frozenset({"triton"})))
    store = ["--store", str(tmp_path / "store.db")]
    wide = {"COLUMNS": "200"}

    def said(*words: str) -> str:
        return CliRunner().invoke(commands, list(words), env=wide).output

    shown = said("runs", "archive", result.run_id, *store)
    assert "island here (cpp)" in shown
    assert "island there (triton)" in shown
    assert "backend cpp (islands for triton as well)" in said("runs", "show", "last", *store)
    recipe = said("recipes", "show", str(tmp_path / "languages.toml"))
    assert "island there (triton)" in recipe
    assert "of the same language" in recipe
    asked = ["optimize", "level1/softmax", "--recipe", str(tmp_path / "languages.toml"), "--dry-run", "--json", *store]
    plan = json.loads(said(*asked))
    assert plan["languages"] == ["cpp", "triton"]
    with_model = settings_of(tmp_path, coder="openai:some-model")
    assert estimate([PROBLEM], with_model).roles[0].input_tokens > 0
