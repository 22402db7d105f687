"""The replies that a run used, as a recording that can be replayed without an API key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernelwright.agents.llm import RecordedReply, write_recording
from kernelwright.agents.replies import whole_kernel

if TYPE_CHECKING:
    from kernelwright.store import Store, UsedReply


def record_run(store: Store, run_id: str) -> tuple[str, int]:
    """The text of a recording of a run, and the number of its replies.

    A Coder's edits become the whole resulting file, since a replay with other timings may edit another kernel.
    """
    replies = [_recorded(store, use) for use in store.uses(run_id)]
    return write_recording(replies), len(replies)


def _recorded(store: Store, use: UsedReply) -> RecordedReply:
    logged = store.reply(use.call_id)
    call = logged.call
    return RecordedReply(
        problem=use.problem,
        step=use.step,
        role=use.role,
        sample=use.sample,
        attempt=use.attempt,
        provider=call.provider,
        model=call.model,
        reply=whole_kernel(logged.text, _source_made(store, use)),
        stop=call.stop,
        prompt=store.get_text(use.prompt_sha256),
        prompt_sha256=use.prompt_sha256,
        input_tokens=call.input_tokens,
        output_tokens=call.output_tokens,
        cost_usd=call.cost_usd,
    )


def _source_made(store: Store, use: UsedReply) -> str | None:
    """The source of the candidate that a prompt led to, or None."""
    rows = store.query(
        "SELECT source_sha256 FROM candidates WHERE prompt_sha256 = ? AND problem = ?", [use.prompt_sha256, use.problem]
    )
    return store.get_text(rows[0]["source_sha256"]) if rows else None
