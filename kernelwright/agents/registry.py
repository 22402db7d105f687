"""Makes a role from a specification such as ``offline`` or ``openai:gpt-5``."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from kernelwright.agents.llm import MODEL_WORDS
from kernelwright.agents.model_roles import ModelCoder, ModelJudge
from kernelwright.agents.offline_coder import OfflineCoder
from kernelwright.agents.offline_judge import OfflineJudge
from kernelwright.agents.policy_coder import PolicyCoder
from kernelwright.agents.roles import Coder, Judge, require_backend
from kernelwright.agents.tester import ModelTester
from kernelwright.agents.verifier import ModelVerifier, Verifier
from kernelwright.errors import UsageError
from kernelwright.records import Backend

Role = TypeVar("Role")


class RoleRegistry(Generic[Role]):
    """Factories by the word before the colon. A factory gets the text after the colon, or ""."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._factories: dict[str, Callable[[str], Role]] = {}

    def register(self, word: str, factory: Callable[[str], Role]) -> None:
        """Register a factory for ``word``.

        Raises:
            ValueError: the word is taken, which is a programming error.
        """
        if word in self._factories:
            raise ValueError(f"two {self.kind}s claim the name {word!r}")
        self._factories[word] = factory

    def words(self) -> tuple[str, ...]:
        """All registered words, sorted."""
        return tuple(sorted(self._factories))

    def build(self, spec: str) -> Role:
        """The role for ``spec``.

        Raises:
            UsageError: the word is unknown, or its factory rejects the spec.
        """
        word, _, rest = spec.partition(":")
        if word not in self._factories:
            near = difflib.get_close_matches(word, self._factories, n=2)
            meant = f"did you mean {' or '.join(near)}? " if near else ""
            raise UsageError(
                f"unknown {self.kind} {spec!r}", hint=f"{meant}known: {', '.join(self.words())}", spec=spec, near=near
            )
        return self._factories[word](rest)


def _model(word: str, role: Callable[[str], Role], rest: str) -> Role:
    return role(f"{word}:{rest}")


def _offline(role: Callable[[], Role], kind: str) -> Callable[[str], Role]:
    def build(rest: str) -> Role:
        if rest:
            raise UsageError(f"the offline {kind} takes no argument, but got {rest!r}", hint=f"use --{kind} offline")
        return role()

    return build


coders: RoleRegistry[Coder] = RoleRegistry("coder")
judges: RoleRegistry[Judge] = RoleRegistry("judge")
verifiers: RoleRegistry[Verifier | None] = RoleRegistry("verifier")
verifiers.register("none", lambda rest: None)
testers: RoleRegistry[ModelTester | None] = RoleRegistry("tester")
testers.register("offline", lambda rest: None)
coders.register("offline", _offline(OfflineCoder, "coder"))
coders.register("policy", PolicyCoder)
judges.register("offline", _offline(OfflineJudge, "judge"))
for _word in sorted(MODEL_WORDS):
    coders.register(_word, partial(_model, _word, ModelCoder))
    judges.register(_word, partial(_model, _word, ModelJudge))
    verifiers.register(_word, partial(_model, _word, ModelVerifier))
    testers.register(_word, partial(_model, _word, ModelTester))


def coder_from_spec(spec: str, backend: Backend = "cpp") -> Coder:
    """The Coder for ``spec``. A language model still needs its tools.

    Raises:
        UsageError: no such Coder, or it cannot write ``backend``.
    """
    coder = coders.build(spec)
    require_backend(coder, backend)
    return coder


def judge_from_spec(spec: str) -> Judge:
    """The Judge for ``spec``. A language model still needs its tools."""
    return judges.build(spec)


def verifier_from_spec(spec: str) -> Verifier | None:
    """The Verifier for ``spec``; None for "none". A language model still needs its tools."""
    return verifiers.build(spec)


def tester_from_spec(spec: str) -> ModelTester | None:
    """The model that proposes generators for ``spec``; None for "offline". It still needs its tools."""
    return testers.build(spec)
