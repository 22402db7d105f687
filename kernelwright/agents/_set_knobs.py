"""A kernel with knobs that the search chose. No Coder is asked, so it costs nothing."""

from __future__ import annotations

from kernelwright.agents.roles import Assignment, CoderError, Proposal, StepContext


def set_knobs(context: StepContext, assignment: Assignment) -> Proposal:
    """The parent with the knobs that an assignment names.

    Raises:
        CoderError: the parent was never judged here.
    """
    known = {attempt.candidate.sha256: attempt.candidate for attempt in context.attempts}
    parent = known.get(assignment.parents[0])
    if parent is None:
        raise CoderError(f"no attempt has the kernel {assignment.parents[0][:12]}", problem=context.problem.id)
    knobs = {**parent.knobs, **assignment.knobs}
    changed = {name: value for name, value in assignment.knobs.items() if repr(parent.knobs.get(name)) != repr(value)}
    note = ", ".join(f"{name} = {value}" for name, value in changed.items())
    made = parent.model_copy(
        update={
            "knobs": knobs,
            "parents": (parent.sha256,),
            "operator": "tune",
            "prompt_sha256": None,
            "note": note,
        }
    )
    return Proposal(made, f"knobs {note}", {"mode": "tune", "parents": [parent.sha256], "knobs": dict(knobs)})
