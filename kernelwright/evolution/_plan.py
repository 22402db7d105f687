"""The plan of a search: its islands, their selection, and their migration. Recipes define it in TOML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from kernelwright.records import Backend, Record

Operator = Literal["new", "repair", "improve", "edit", "cross", "tune", "transfer", "simplify"]
Selection = Literal["beam", "best", "curiosity", "power", "sigmoid", "tournament", "uniform"]
Share = Annotated[float, Field(ge=0.0)]

# The weight of each operator before anything is measured. Repairs are not drawn: they follow failures.
USUAL_WEIGHTS: Mapping[Operator, float] = {
    "improve": 5.0,
    "tune": 2.0,
    "cross": 1.5,
    "transfer": 1.5,
    "new": 0.5,
    "simplify": 0.25,
}


class IslandPlan(Record):
    """One population of a search.

    Attributes:
        axes: the axes that define its cells; empty for the backend's default axes.
        selection: how a parent is chosen.
        operators: how often each operator is drawn before anything is known; a missing operator is never used.
        model: the only model that writes for the island; empty for all models of the run.
        backend: the language of its kernels; empty for the run's backend.
        founders: number of kernels from nothing with which the island begins.
    """

    name: str = "main"
    axes: tuple[str, ...] = ()
    selection: Selection = "sigmoid"
    operators: dict[Operator, Share] = Field(default_factory=lambda: dict(USUAL_WEIGHTS))
    model: str = ""
    backend: Backend | Literal[""] = ""
    founders: int = Field(1, ge=1)

    @model_validator(mode="after")
    def _can_begin(self) -> IslandPlan:
        if not any(self.operators.values()):
            raise ValueError(f"island {self.name!r} uses no operator")
        return self


class SearchPlan(Record):
    """A search over one problem.

    Attributes:
        islands: its populations; steps go to the islands in turn.
        models: specs of the models that the bandit chooses from; empty for the run's models.
        learns: what the bandit chooses by gain for cost: ``all``, operators and models together; ``models``, only
            models, while operators are drawn by their fixed weights; ``nothing``, both are drawn.
        migrate_every: steps after which each island's best goes to its neighbour; 0 for never.
        migration: ``ring``: to the next island; ``elite``: the best of all goes to every island. Kernels go only to
            islands of their own language; other islands see them as inspirations.
        restart_after: steps without a find after which an island begins anew; its best kernel stays known; 0: never.
        remeasure_every: steps after which the best kernel is timed once more; 0 for never.
        repairs: how often a failed kernel and its repairs are repaired before it is given up.
        mends: when to repair: ``failures``, if an island's latest kernel failed; ``nothing_right``, only while no
            kernel of the island has passed.
        races: whether a place in the archive is lost only in a race; otherwise the better timing wins.
        inspirations: number of kernels shown besides the parents.
        inspire: which ones: ``neighbours``, the best of other islands and the elites of nearby cells; or ``contrast``,
            kernels of different speeds to compare.
    """

    islands: tuple[IslandPlan, ...] = Field((IslandPlan(),), min_length=1)
    models: tuple[str, ...] = ()
    learns: Literal["all", "models", "nothing"] = "all"
    migrate_every: int = Field(8, ge=0)
    migration: Literal["ring", "elite"] = "ring"
    restart_after: int = Field(24, ge=0)
    remeasure_every: int = Field(16, ge=0)
    repairs: int = Field(3, ge=0)
    mends: Literal["failures", "nothing_right"] = "failures"
    races: bool = True
    inspirations: int = Field(2, ge=0)
    inspire: Literal["neighbours", "contrast"] = "neighbours"

    def backends(self, run: Backend) -> tuple[Backend, ...]:
        """The languages of its islands in their order, each once; ``run`` is the run's backend."""
        return tuple(dict.fromkeys(island.backend or run for island in self.islands))

    @model_validator(mode="after")
    def _names_once(self) -> SearchPlan:
        names = [island.name for island in self.islands]
        if len(set(names)) != len(names):
            raise ValueError("each island needs a name of its own")
        return self
