"""How a search is set up: its islands, what they select by, and when they meet. Recipes say it in TOML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from kernelwright.records import Backend, Record

Operator = Literal["new", "repair", "improve", "edit", "cross", "tune", "transfer", "simplify"]
Selection = Literal["beam", "best", "curiosity", "power", "sigmoid", "tournament", "uniform"]
Share = Annotated[float, Field(ge=0.0)]

# What each operator is worth before anything was measured. Repairs are not drawn: they follow failures.
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
        axes: what its cells are told apart by; none for those that are usual for the backend.
        selection: how a parent is chosen.
        operators: how often each operator is drawn while nothing is known; one that is missing is never used.
        model: the only model that writes for it; empty for all of the run.
        backend: what its kernels are written in; empty for the run's.
        founders: kernels that it begins with from nothing.
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
        islands: its populations; steps go round.
        models: specs of the models that the bandit chooses from; none for those of the run.
        learns: what the bandit chooses by what it gained for its cost: ``all``, operators and models together;
            ``models``, while operators are drawn by their weights as they are; ``nothing``, both are drawn.
        migrate_every: steps after which each island's best goes to its neighbour; 0 for never.
        migration: ``ring``: to the next island; ``elite``: the best of all goes to every island. Kernels go to islands
            of their own language alone; the others are shown them as inspirations.
        restart_after: steps of an island without a find after which it begins anew, its best kept elsewhere; 0: never.
        remeasure_every: steps after which the best kernel is timed once more; 0 for never.
        repairs: how often a failed kernel and its repairs are repaired before it is given up.
        mends: when one is repaired: ``failures``, where an island's latest failed; ``nothing_right``, only while none
            of the island's has passed.
        races: whether a place in the archive is lost only in a race; without it the better timing has it.
        inspirations: kernels shown beside the parents.
        inspire: which: ``neighbours``, the best of other islands and the elites of cells nearby; or ``contrast``, of
            different speeds, to be compared.
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
        """What its islands write in, each language once, in their order; ``run`` is that of the run."""
        return tuple(dict.fromkeys(island.backend or run for island in self.islands))

    @model_validator(mode="after")
    def _names_once(self) -> SearchPlan:
        names = [island.name for island in self.islands]
        if len(set(names)) != len(names):
            raise ValueError("each island needs a name of its own")
        return self
