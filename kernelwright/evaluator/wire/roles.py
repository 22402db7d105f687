"""The roles that workers are started for."""

from __future__ import annotations

RIVAL = "rival "  # prefix of the roles of other candidates that are timed beside one
CONTROL = "control"  # a second eager twin; its ratio to the first is known to be one


def is_foreign(role: str) -> bool:
    """Whether a worker of this role runs a candidate's code, the judged one's or a rival's."""
    return role == "candidate" or role.startswith(RIVAL)


def is_compiled(role: str) -> bool:
    """Whether a role is a torch.compile baseline."""
    return role.startswith("compile")


def compile_mode(role: str) -> str:
    """The mode of torch.compile that a baseline is named after: ``compile-reduce-overhead`` has ``reduce-overhead``."""
    return role.removeprefix("compile").removeprefix("-") or "default"
