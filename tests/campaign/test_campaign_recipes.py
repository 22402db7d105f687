"""Recipes: what they change, and what wins over them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from campaign_fakes import FakeReferee, make_problem, register_scripted_roles

from kernelwright.campaign import Campaign, load_recipe, searches_of, with_recipe
from kernelwright.campaign.recipe import recipe_names, settings_of
from kernelwright.config import NAMES, Settings
from kernelwright.errors import UsageError
from kernelwright.store import Store


def settings(tmp_path, *overrides: str, **flags) -> Settings:
    return Settings.load(flags, env={}, cwd=tmp_path, overrides=overrides)


def test_every_recipe_sets_settings_and_says_what_it_does(tmp_path):
    assert {"default", "cudaforge"} <= set(recipe_names())
    for name in recipe_names():
        recipe = load_recipe(name)
        assert recipe.summary
        made = with_recipe(settings(tmp_path, recipe=name))
        said = settings(tmp_path, *(f"{setting}={value}" for setting, value in settings_of(recipe).items()))
        assert all(made.value(setting) == said.value(setting) for setting in settings_of(recipe))


def test_the_default_recipe_leaves_alone_what_it_does_not_name(tmp_path):
    plain = settings(tmp_path)
    made, named = with_recipe(plain), settings_of(load_recipe("default"))
    left = [name for name in NAMES if name not in named]
    assert "threads" in left
    assert [made.value(name) for name in left] == [plain.value(name) for name in left]


def test_what_was_said_wins_over_a_recipe(tmp_path):
    (tmp_path / "kernelwright.toml").write_text("[recipe]\nhistory = 3\n")
    made = with_recipe(settings(tmp_path, "recipe.branch_from=best", recipe="cudaforge", rounds=2))
    assert (made.recipe.history, made.recipe.branch_from, made.rounds) == (3, "best", 2)
    assert with_recipe(settings(tmp_path, recipe="cudaforge")).origin("rounds") == "recipe cudaforge"


@pytest.mark.parametrize(
    ("given", "judge"),
    [
        ({"coder": "openai:gpt-5"}, "openai:gpt-5"),
        ({"coder": "openai:gpt-5", "judge": "offline"}, "offline"),
        ({"coder": "offline"}, "offline"),
    ],
)
def test_one_model_plays_both_roles_of_cudaforge(tmp_path, given, judge):
    assert with_recipe(settings(tmp_path, recipe="cudaforge", **given)).judge.model == judge


def test_a_recipe_of_ones_own_is_a_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('summary = "more at once"\n[settings]\nsamples = 4\n')
    made = with_recipe(settings(tmp_path, recipe=str(path)))
    assert (made.recipe.samples, made.origin("recipe.samples")) == (4, "recipe mine")


def test_the_search_that_the_guide_shows_is_a_recipe(tmp_path):
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text()
    path = tmp_path / "shown.toml"
    path.write_text(
        next(text for text in re.findall(r"```toml[^\n]*\n(.*?)```", guide, re.DOTALL) if "[search]" in text)
    )
    plan = load_recipe(str(path)).search
    assert [(island.name, island.selection) for island in plan.islands] == [("wide", "sigmoid"), ("tuned", "best")]
    assert plan.islands[1].operators == {"improve": 1, "tune": 4}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("summary = ", "is not a recipe"),
        ("rounds = 3", "is not a recipe"),
        ('summary = "x"\n[settings]\nround = 3', "unknown setting"),
        ('summary = "x"\n[settings]\nrounds = 0', "rounds"),
        ('summary = "x"\n[[search.islands]]\nselection = "lottery"', "islands.0.selection: Input should be 'beam'"),
        ('summary = "x"\n[[search.islands]]\noperators = { invent = 1 }', "operators.invent"),
        ('summary = "x"\n[[search.islands]]\noperators = { improve = 0 }', "uses no operator"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path, text, message):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        with_recipe(settings(tmp_path, recipe=str(path)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[search.islands]]\naxes = ["bound", "occupancy"]', "no axis 'occupancy'"),
        ('[[search.islands]]\nmodel = "openai:other"', "does not have"),
        ('[search]\nmodels = ["openai:other"]', "does not have"),
        (
            '[[search.islands]]\nname = "here"\n[[search.islands]]\nname = "there"\nbackend = "triton"',
            "island there is for triton, which the scripted coder does not write",
        ),
        (
            '[[search.islands]]\n[[search.islands]]\nname = "b"\nbackend = "triton"\naxes = ["vector_bits"]',
            "kernels of triton have no axis",
        ),
    ],
)
def test_a_search_that_cannot_be_had_begins_no_run(tmp_path, text, message):
    register_scripted_roles()
    path = tmp_path / "impossible.toml"
    path.write_text(f'summary = "x"\n{text}')
    made = settings(tmp_path, recipe=str(path), store=str(tmp_path / "store.db"), coder="scripted", judge="scripted")
    with Store.open(made.store) as store:
        with pytest.raises(UsageError, match=message):
            Campaign(made, store, open_referee=lambda _: FakeReferee()).run([make_problem("one")])
        assert store.runs() == []


@pytest.mark.parametrize("name", ["cudaforg", "none.toml"])
def test_a_recipe_that_is_not_there_is_told(tmp_path, name):
    with pytest.raises(UsageError, match="recipe") as refused:
        with_recipe(settings(tmp_path, recipe=name))
    assert "cudaforge" in refused.value.hint or "recipes list" in refused.value.hint


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_runs_to_its_end(tmp_path, name):
    register_scripted_roles()
    flags = {"store": str(tmp_path / "store.db"), "cache_dir": str(tmp_path / "cache"), "coder": "scripted"}
    made = with_recipe(settings(tmp_path, recipe=name, judge="scripted", rounds=4, **flags))
    referee = FakeReferee({f"v{number}": 1.0 + number / 2 for number in range(4)})
    with Store.open(made.store) as store:
        result = Campaign(made, store, open_referee=lambda _: referee).run([make_problem("one"), make_problem("two")])
        (run,) = store.runs()
        found = searches_of(store, run)
    assert result.status == "finished"
    assert [row.speedup["eager"].median for row in result.rows] == [2.5, 2.5]
    plan = load_recipe(name).search
    assert [[island.name for island in view.islands] for view in found] == (
        [] if plan is None else [[island.name for island in plan.islands]] * 2
    )
    assert all(elite.measurements for view in found for island in view.islands for elite in island.elites)
    races = plan is not None and plan.races
    assert any(word in ("v1", "v2") for word, _ in referee.beside) == races, "raced while searching"
