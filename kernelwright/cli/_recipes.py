"""``kernelwright recipes``."""

from __future__ import annotations

import click

from kernelwright.cli._common import Common, common_options
from kernelwright.cli._tables import table


@click.group()
def recipes() -> None:
    """List and show search recipes."""


@recipes.command("list")
@common_options
def list_recipes(common: Common) -> None:
    """Every recipe that comes with the package."""
    from kernelwright.campaign import load_recipe, recipe_names

    found = [load_recipe(name) for name in recipe_names()]
    made = table("recipe", "what it does", "after")
    for recipe in found:
        made.add_row(recipe.name, recipe.summary, recipe.source.partition(",")[0])
    common.show({"recipes": found}, made)


@recipes.command()
@click.argument("recipe", metavar="R")
@common_options
def show(common: Common, recipe: str) -> None:
    """One recipe: where it comes from, and the settings that it changes. R is a name, or a TOML file."""
    from rich.markup import escape

    from kernelwright.campaign import load_recipe
    from kernelwright.config import Settings

    found = load_recipe(recipe)
    defaults = Settings()
    made = table("setting", "value", "default", "meaning")
    for name, value in found.settings.items():
        field = Settings.model_fields.get(name)
        default = getattr(defaults, name, "")
        made.add_row(name, escape(str(value)), escape(str(default)), (field.description if field else "") or "unknown")
    lines = [f"{found.name}: {found.summary}", *([f"after {found.source}"] if found.source else [])]
    if found.judge_is_coder:
        lines.append("the coder's model is the judge as well, unless --judge names another one")
    common.show(found, *map(escape, lines), *([made] if found.settings else ["it leaves every setting as it is"]))
