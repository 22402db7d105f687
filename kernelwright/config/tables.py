"""The tables among the settings: what a recipe decides, who plays a role, which server is asked.

A text in place of a table sets its main field: ``coder = "openai:gpt-5"`` sets ``coder.model``, ``recipe = "kevin"``
sets ``recipe.name``.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from kernelwright.config.values import Count, Many, Positive, WebAddress, Word, number, optional, parameters_of
from kernelwright.records import KnobValue


class Table(BaseModel):
    """Settings that belong together. ``main``: the field that a text in place of the table sets; empty for no field."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    main: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
        return {cls.main: value} if cls.main and isinstance(value, str) else value


class Recipe(Table):
    """A recipe by name, and what it decides about a search; whatever is set here overrides the recipe's file."""

    main = "name"

    name: Word = Field("default", description="search recipe")
    samples: Count = Field(1, description="candidates that a model writes side by side in each round")
    repairs: Many = Field(3, description="times that a model's failed kernel is repaired before it is given up")
    branch_from: Literal["best", "latest", "own"] = Field(
        "best", description="kernel that a model starts from; own: each sample from the latest of its own line"
    )
    history: Many = Field(
        16, description="measured moves that a prompt shows at most: the best ones and the latest; 0 for none"
    )
    moves_shown: Many = Field(
        0, description="moves measured on similar problems that a prompt shows at most; 0 for none"
    )
    insights_shown: Many = Field(
        0, description="findings of Judges, here and on similar problems, that a prompt shows at most; 0 for none"
    )
    scratchpad_every: Many = Field(
        0, description="rounds after which what was learned on a problem is summed up for prompts; 0 for never"
    )
    exemplar: Literal["category", "pointwise", "none"] = Field(
        "category", description="right kernel that a model is shown: of the problem's category, or always the same"
    )
    search_seed: Annotated[int, BeforeValidator(number)] = Field(0, description="random seed of an evolutionary search")
    stall_rounds: Annotated[Count | None, BeforeValidator(optional)] = Field(
        None, description="rounds of a model without a gain that end a problem; none for no such end"
    )
    speed_of_light: Annotated[Positive | None, BeforeValidator(optional)] = Field(
        0.95, description="share of the roofline's speed at which a model's problem ends; none for no such end"
    )


class Role(Table):
    """Who plays a role: ``offline``, ``openai:MODEL`` and the like, and what its model is given with each request."""

    main = "model"

    model: Word = Field(description="who plays this role")
    parameters: Annotated[dict[str, KnobValue], BeforeValidator(parameters_of)] = Field(
        default_factory=dict, description="sent to this role's model with each request: temperature=0.7,effort=high"
    )


class Endpoint(Table):
    """A server of language models, and how it is asked."""

    base_url: WebAddress = Field(description="address of the server")
    concurrency: Count = Field(8, description="requests to this server at once")
    tries: Count = Field(6, description="times that a request is sent at most, where sending it again may help")
    timeout_s: Positive = Field(600.0, description="limit for one reply in seconds")
