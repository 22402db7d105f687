"""Recipes: named sets of settings that make the engine search like a published system."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernelwright.agents.llm import is_model
from kernelwright.agents.registry import coders
from kernelwright.config import NAMES, Settings
from kernelwright.errors import UsageError
from kernelwright.evolution import IslandPlan, SearchPlan, axes_named
from kernelwright.records import Backend, Record

_FOLDER = Path(__file__).with_name("recipes")
SUFFIX = ".toml"


class Recipe(Record):
    """Settings that replace the defaults.

    Attributes:
        source: the system that the recipe follows and its publication; empty for our own recipes.
        differs: differences from that system, one sentence each.
        judge_is_coder: if no Judge is named, the Coder's model is the Judge as well.
        verifier_is_coder: if no Verifier is named, the Coder's model is the Verifier as well.
        search: how an evolutionary search is set up; None for a recipe that follows one line of kernels.
    """

    name: str
    summary: str
    source: str = ""
    differs: tuple[str, ...] = ()
    judge_is_coder: bool = False
    verifier_is_coder: bool = False
    settings: Mapping[str, Any] = {}
    search: SearchPlan | None = None


def recipe_names() -> tuple[str, ...]:
    """The recipes that come with the package, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob(f"*{SUFFIX}")))


def load_recipe(name: str) -> Recipe:
    """A recipe by its name, or from a file whose path ends in ``.toml``.

    Raises:
        UsageError: no such recipe, or the file is not a recipe.
    """
    if name.endswith(SUFFIX):
        return _read(Path(name), Path(name).stem)
    if name not in recipe_names():
        near = difflib.get_close_matches(name, recipe_names(), n=2)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(
            f"unknown recipe {name!r}",
            hint=f"{meant}known: {', '.join(recipe_names())}, or a file that ends in {SUFFIX}",
        )
    return _read(_FOLDER / f"{name}{SUFFIX}", name)


def with_recipe(settings: Settings) -> Settings:
    """Settings with the values of their recipe in place of defaults.

    Raises:
        UsageError: no such recipe, or it sets an unknown setting.
    """
    recipe = load_recipe(settings.recipe.name)
    origin = f"recipe {recipe.name}"
    open_ones = {name: value for name, value in settings_of(recipe).items() if settings.origin(name) == "default"}
    if recipe.judge_is_coder and is_model(settings.coder.model) and settings.origin("judge") == "default":
        open_ones["judge"] = settings.coder.model
    if recipe.verifier_is_coder and is_model(settings.coder.model) and settings.origin("verifier") == "default":
        open_ones["verifier"] = settings.coder.model
    return settings.with_values(origin, **open_ones) if open_ones else settings


def planned_search(recipe: Recipe, backend: Backend, coder: str, models: Sequence[str] = ()) -> SearchPlan | None:
    """A recipe's search with the models that write for the run; None if the recipe has no search.

    Raises:
        UsageError: an island's axes do not exist for its backend, its coder cannot write that backend, no island
            writes for the run's backend, the recipe names models that the run lacks, or there are several models but
            no search to choose among them.
    """
    writers = (coder, *models)
    if models and (unfit := [spec for spec in writers if not is_model(spec)]):
        raise UsageError(f"{unfit[0]} is not a language model, so no search can choose it", hint="name only models")
    if len(set(writers)) < len(writers):
        raise UsageError("a model is named twice", hint="'models' lists the models besides the coder's")
    plan = recipe.search
    if plan is None:
        if models:
            raise UsageError(
                f"the recipe {recipe.name} follows one line of kernels and uses a single model",
                hint="choose one that evolves kernels: 'kernelwright recipes list'",
            )
        return None
    for island in plan.islands:
        axes_named(island.axes, island.backend or backend)
        _require_language(island, coder)
    if backend not in (written := plan.backends(backend)):
        raise UsageError(
            f"no island of the recipe {recipe.name} writes kernels for --backend {backend}",
            hint=f"use {' or '.join(f'--backend {name}' for name in written)}",
        )
    named = [*plan.models, *(island.model for island in plan.islands if island.model)]
    if missing := [spec for spec in named if spec not in writers]:
        raise UsageError(
            f"the recipe {recipe.name} names the model {missing[0]}, which this run does not have",
            hint=f"--set models={','.join(dict.fromkeys(missing))}",
        )
    return plan.model_copy(update={"models": writers}) if models and not plan.models else plan


def _require_language(island: IslandPlan, coder: str) -> None:
    """Raise UsageError if an island's coder cannot write its backend."""
    if not island.backend:
        return
    writer = coders.build(island.model or coder)
    if island.backend not in writer.backends:
        raise UsageError(
            f"island {island.name} is for {island.backend}, which the {writer.name} coder does not write",
            hint=f"it writes {' and '.join(sorted(writer.backends))}; let a model write: --coder openai:MODEL",
        )


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """The values that a recipe sets, by full name: ``samples`` in its file becomes ``recipe.samples``.

    Raises:
        UsageError: the recipe sets an unknown setting.
    """
    return {
        NAMES.find(f"recipe.{name}") or NAMES.known(name, f"recipe {recipe.name}"): value
        for name, value in recipe.settings.items()
    }


def _read(path: Path, name: str) -> Recipe:
    try:
        return Recipe(name=name, **tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(
            f"cannot read the recipe {path}: {error.strerror}", hint="'kernelwright recipes list'"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(
            f"{path} is not a recipe: {'.'.join(map(str, first['loc']))}: {first['msg']}",
            hint="'kernelwright recipes show cudaforge' prints one",
            file=str(path),
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, TypeError) as error:
        raise UsageError(
            f"{path} is not a recipe: {error}",
            hint="'kernelwright recipes show cudaforge' prints one",
            file=str(path),
        ) from error
