"""The messages between a reward server and its clients: closed records with bounds, sent as JSON."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import ConfigDict, Field

from kernelwright.records import Backend, Record
from kernelwright.rl._completions import MOST_COMPLETION_CHARACTERS
from kernelwright.rl._env import EpisodeScore, Observation, StepOutcome
from kernelwright.rl._scoring import Scored, ScoreRequest

MOST_REQUESTS: Final = 256  # in one job
MOST_BODY_BYTES: Final = 16 * 2**20
MOST_WAIT_S: Final = 60.0
MOST_TURNS: Final = 64
NAME_PATTERN: Final = r"^[A-Za-z0-9._-]{8,64}$"
TOKEN_PATTERN: Final = r"[!-~]{16,512}"
CLIENT_HEADER: Final = "x-kernelwright-client"


class Wire(Record):
    """Base of all messages: closed, strictly typed, and without NaN and infinities."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)


class ScoreJob(Wire):
    """Kernels to score. ``job``: a name that the client chooses; ``wait_s``: how long the reply may wait for scores."""

    job: str = Field(pattern=NAME_PATTERN)
    requests: tuple[ScoreRequest, ...] = Field(min_length=1, max_length=MOST_REQUESTS)
    wait_s: float = Field(default=0.0, ge=0.0, le=MOST_WAIT_S)


class EpisodeJob(Wire):
    """An episode to begin."""

    job: str = Field(pattern=NAME_PATTERN)
    problem: str = Field(min_length=1, max_length=300)
    backend: Backend = "cpp"
    turns: int = Field(default=4, ge=1, le=MOST_TURNS)
    wait_s: float = Field(default=MOST_WAIT_S, ge=0.0, le=MOST_WAIT_S)


class StepJob(Wire):
    """A turn of an episode."""

    job: str = Field(pattern=NAME_PATTERN)
    completion: str = Field(max_length=MOST_COMPLETION_CHARACTERS)
    wait_s: float = Field(default=MOST_WAIT_S, ge=0.0, le=MOST_WAIT_S)


class Results(Wire):
    """The reply to a score job that is done."""

    job: str
    state: Literal["done"] = "done"
    results: tuple[Scored, ...]


class Begun(Wire):
    """The reply to an episode that was begun."""

    job: str
    state: Literal["done"] = "done"
    episode: str
    observation: Observation


class Stepped(Wire):
    """The reply to a turn that was taken."""

    job: str
    state: Literal["done"] = "done"
    outcome: StepOutcome
    score: EpisodeScore


class Pending(Wire):
    """The reply to a job that is not done."""

    job: str
    state: Literal["waiting", "running"]


class Refusal(Wire):
    """Why a request is refused, and what to do about it."""

    detail: str = Field(max_length=4_000)
    hint: str = Field(default="", max_length=4_000)
