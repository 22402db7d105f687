"""The prompt and the answer of a training example: how a Coder is asked for a new kernel, and how it replies."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kernelwright.errors import UsageError
from kernelwright.prompts import DeviceFacts, Exemplar, Task, exemplar_for, render
from kernelwright.records import Backend, DeviceClass, Environment, Problem
from kernelwright.rl._scrub import scrub

if TYPE_CHECKING:
    from kernelwright.store import Store

__all__ = ["Message", "answer", "new_kernel_prompt", "stored_prompt", "stored_text"]

Message = dict[str, str]  # role and content
BASELINES: Final = ("eager", "compile")
_USER = "\n\n[user]\n"
_NO_CACHES = Path("no-caches")  # exported kernels were judged elsewhere: this machine's caches do not apply


def new_kernel_prompt(
    problem: Problem,
    backend: Backend,
    environment: Environment | None = None,
    *,
    shown: Callable[[Exemplar], bool] = lambda exemplar: True,
) -> list[Message]:
    """The two messages that ask for a new kernel.

    Args:
        environment: where the kernel is to be fast; None if unknown.
        shown: whether an exemplar may be shown.
    """
    facts = _facts(environment, backend)
    exemplar = exemplar_for(problem, backend)
    made = render(
        "coder-new",
        task=Task.of(
            problem,
            backend,
            device_class=facts.device_class,
            threads=1 if environment is None else environment.threads,
            baselines=dict.fromkeys(BASELINES),
        ),
        device=facts,
        exemplar=exemplar if exemplar is not None and shown(exemplar) else None,
        schema_text=_schema(),
    )
    return _messages(made.system, made.user)


def answer(reasoning: str, source: str) -> list[Message]:
    """The reply that a Coder gives, in the form that its prompt asks for: first the plan, then the file."""
    return [{"role": "assistant", "content": json.dumps({"plan": reasoning, "source": source}, ensure_ascii=False)}]


def stored_prompt(store: Store, sha256: str | None, allowed: Callable[[str], bool]) -> list[Message] | None:
    """The messages of a prompt that was sent; None if it is not stored, not allowed, or holds an earlier answer.

    Args:
        allowed: whether a prompt may be published, by its text.
    """
    text = stored_text(store, sha256)
    system, found, user = text.removeprefix("[system]\n").partition(_USER)
    if not text.startswith("[system]\n") or not found or "\n\n[assistant]\n" in user or not allowed(text):
        return None
    return _messages(system, user)


def stored_text(store: Store, sha256: str | None) -> str:
    """A text from the store; empty if it is not there. Bytes that are not UTF-8 are replaced."""
    if not sha256:
        return ""
    try:
        return store.get_blob(sha256).decode("utf-8", "replace")
    except UsageError:  # calls may be recorded without their texts
        return ""


def _messages(system: str, user: str) -> list[Message]:
    return [{"role": "system", "content": scrub(system)}, {"role": "user", "content": scrub(user)}]


def _facts(environment: Environment | None, backend: Backend) -> DeviceFacts:
    from kernelwright.evaluator import device_facts

    if environment is None:
        return _UNKNOWN_CPU if backend == "cpp" else _UNKNOWN_GPU
    return device_facts(environment, backend, caches=_NO_CACHES)


def _unknown(name: str, device_class: DeviceClass) -> DeviceFacts:
    return DeviceFacts(name=name, device_class=device_class, facts={})


_UNKNOWN_CPU: Final = _unknown("a CPU, not known which", "cpu")
_UNKNOWN_GPU: Final = _unknown("an NVIDIA GPU, not known which", "gpu")


@functools.cache
def _schema() -> str:
    from kernelwright.agents import reply_schemas

    return json.dumps(reply_schemas()["coder-new"], indent=1)
