"""``kernelwright recipes``."""

from __future__ import annotations

import pytest

from kernelwright.campaign import load_recipe
from kernelwright.campaign.recipe import recipe_names

ALL = {
    "best-of-n",
    "cuda-l1",
    "cudaforge",
    "default",
    "fsr",
    "gigaevo",
    "kevin",
    "multikernelbench",
    "parevo",
    "robust-kbench",
    "shinka",
}


def test_every_published_system_has_its_recipe(terminal):
    listed = {recipe["name"]: recipe for recipe in terminal.json("recipes", "list")["recipes"]}
    assert set(listed) == set(recipe_names()) == ALL
    for name in ALL - {"default"}:
        assert "arXiv:" in listed[name]["source"]
        assert listed[name]["differs"], "no system is followed to the letter, and a recipe says where it is not"


@pytest.mark.parametrize("name", sorted(ALL))
def test_show_prints_source_settings_search_and_what_differs(terminal, name):
    recipe = load_recipe(name)
    shown = " ".join(terminal("recipes", "show", name).stdout.split())
    told = [recipe.summary, recipe.source, *recipe.differs, *recipe.settings]
    if recipe.search is not None:
        told += [f"island {island.name}:" for island in recipe.search.islands]
        told += [word for island in recipe.search.islands for word in island.operators]
    for words in told:
        assert " ".join(words.split()) in shown
    assert terminal.json("recipes", "show", name)["settings"] == dict(recipe.settings)


def test_show_says_how_operators_are_drawn_and_when_failures_are_mended(terminal):
    shown = terminal("recipes", "show", "shinka").stdout
    assert "models by their gain" in shown
    assert "once a kernel is right, failed kernels are not repaired" in shown
    assert "until it passes" in shown


def test_a_dry_run_counts_the_prompts_of_every_model(terminal, problem_file):
    words = ("optimize", problem_file, "--recipe", "shinka", "--coder", "mailbox:a", "--rounds", "10", "--dry-run")
    roles = terminal.json(*words, "--set", "models=mailbox:b")["models"]
    assert [role["spec"].rpartition(":")[2] for role in roles] == ["a", "b"]
    assert [role["prompts"] for role in roles] == [5, 5]


def test_a_dry_run_refuses_models_that_the_recipe_has_no_use_for(terminal, problem_file):
    words = ("optimize", problem_file, "--recipe", "cudaforge", "--coder", "mailbox:a", "--dry-run")
    assert "uses a single model" in terminal(*words, "--set", "models=mailbox:b", code=2).stderr
