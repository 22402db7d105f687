"""``kernelwright recipes``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kernelwright.cli._common import Common, common_options
from kernelwright.cli._tables import table

if TYPE_CHECKING:
    from kernelwright.evolution import SearchPlan


MANY = 1000  # a number in a recipe that is not below this one means "all" or "no limit"
_LEARNS = {"models": ", models by their gain for the cost", "nothing": ""}


@click.group()
def recipes() -> None:
    """List and show search recipes."""


@recipes.command("list")
@common_options
def list_recipes(common: Common) -> None:
    """List the recipes that come with the package."""
    from kernelwright.campaign import load_recipe
    from kernelwright.campaign.recipe import recipe_names

    found = [load_recipe(name) for name in recipe_names()]
    made = table("recipe", "what it does", "source")
    for recipe in found:
        made.add_row(recipe.name, recipe.summary, recipe.source.partition(",")[0])
    common.show({"recipes": found}, made)


@recipes.command()
@click.argument("recipe", metavar="R")
@common_options
def show(common: Common, recipe: str) -> None:
    """Show one recipe: its source and the settings that it changes. R is a name or a TOML file."""
    from rich.markup import escape

    from kernelwright.campaign import load_recipe
    from kernelwright.campaign.recipe import settings_of
    from kernelwright.config import NAMES

    found = load_recipe(recipe)
    made = table("setting", "value", "default", "meaning")
    for name, value in settings_of(found).items():
        setting = NAMES[name]
        made.add_row(name, escape(str(value)), escape(str(setting.default)), setting.description)
    lines = [f"{found.name}: {found.summary}", *([f"source: {found.source}"] if found.source else [])]
    if found.judge_is_coder:
        lines.append("the coder's model is the judge as well, unless --judge names another one")
    if found.verifier_is_coder:
        lines.append("the coder's model is the verifier as well, unless --verifier names another one")
    if found.search is not None:
        lines += _search_lines(found.search)
    differs = ["differences from the source:", *(f"- {what}" for what in found.differs)] if found.differs else []
    settings = made if found.settings else "it changes no settings"
    common.show(found, *map(escape, lines), settings, *map(escape, differs))


def _repairs(most: int) -> str:
    if not most:
        return "failed kernels are not repaired"
    return "a failed kernel is repaired " + ("until it passes" if most >= MANY else f"{most} times at most")


def _search_lines(plan: SearchPlan) -> list[str]:
    """The lines that describe an evolutionary search."""
    lines = [
        "cells of the archive go to " + ("winners of races" if plan.races else "the better timing"),
        _repairs(plan.repairs),
    ]
    if plan.repairs and plan.mends == "nothing_right":
        lines.append("once a kernel is right, failed kernels are not repaired")
    if plan.learns != "all":
        lines.append("operators are drawn by their weights" + (_LEARNS[plan.learns]))
    if plan.models:
        lines.append(f"written by {', '.join(plan.models)}")
    if plan.inspirations:
        which = "of different speeds, for comparison" if plan.inspire == "contrast" else "of other islands and cells"
        lines.append(f"prompts show up to {plan.inspirations} other kernels, {which}")
    if plan.migrate_every and len(plan.islands) > 1:
        whither = "of an island goes to the next" if plan.migration == "ring" else "of all goes to every island"
        alike = " of the same language" if any(island.backend for island in plan.islands) else ""
        lines.append(f"every {plan.migrate_every} kernels, the best kernel {whither}{alike}")
    if plan.restart_after:
        lines.append(f"an island restarts after {plan.restart_after} kernels that win no cell")
    if plan.remeasure_every:
        lines.append(f"the best is timed again every {plan.remeasure_every} kernels")
    for island in plan.islands:
        drawn = ", ".join(f"{name} {weight:g}" for name, weight in island.operators.items())
        axes = ", ".join(island.axes) or "the backend's usual ones"
        founders = "all" if island.founders >= MANY else island.founders
        by = f"; written by {island.model}" if island.model else ""
        name = f"{island.name} ({island.backend})" if island.backend else island.name
        lines.append(f"island {name}: axes {axes}; parents by {island.selection}; {founders} from scratch; {drawn}{by}")
    return lines
