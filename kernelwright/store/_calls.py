"""Calls of language models: replies, found again by their question; requests, with their reserved tokens and cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernelwright.errors import StoreError
from kernelwright.records import LLMCall
from kernelwright.records.codec import dump_json
from kernelwright.store._ids import new_id, utc_now
from kernelwright.store._rows import LoggedReply, RequestCount, Spending, StoredCall, UsedReply
from kernelwright.store._runs import Runs

_SUMS = (
    "CAST(total(tokens) FILTER (WHERE state <> 'open') AS INTEGER) AS tokens, "
    "total(cost_usd) FILTER (WHERE state <> 'open') AS cost_usd, "
    "count(*) FILTER (WHERE state = 'open') AS open, "
    "CAST(total(tokens) FILTER (WHERE state = 'open') AS INTEGER) AS open_tokens, "
    "total(cost_usd) FILTER (WHERE state = 'open') AS open_cost_usd, "
    "count(*) - count(cost_usd) AS unknown"
)


class Calls(Runs):
    """Methods of the store about calls of language models."""

    def record_llm_calls(
        self,
        calls: Sequence[LLMCall],
        *,
        run_id: str | None = None,
        step: int | None = None,
        evaluation_id: str | None = None,
    ) -> None:
        """Store calls that belong to no evaluation, or to a stored one."""
        context = {"run_id": run_id, "step": step, "evaluation_id": evaluation_id, "created_at": utc_now()}
        rows = [{"id": new_id(), **context, **call.model_dump()} for call in calls]
        self._connection.insert_all("llm_calls", rows)

    def llm_calls(self, *, run_id: str | None = None, evaluation_id: str | None = None) -> list[StoredCall]:
        """Calls in order: all, or those of a run or of an evaluation."""
        rows = self._connection.rows(
            "SELECT * FROM llm_calls WHERE (:run_id IS NULL OR run_id = :run_id) "
            "AND (:evaluation_id IS NULL OR evaluation_id = :evaluation_id) ORDER BY id",
            {"run_id": run_id, "evaluation_id": evaluation_id},
        )
        return [
            StoredCall(call=LLMCall(**{name: row.pop(name) for name in LLMCall.model_fields}), **row) for row in rows
        ]

    # --------------------------------------------------------------------------------------------- requests

    def open_request(
        self,
        run_id: str,
        *,
        problem: str,
        step: int,
        role: str,
        sample: int,
        attempt: int,
        try_number: int,
        provider: str,
        model: str,
        key: str,
        tokens: int,
        cost_usd: float | None,
    ) -> str:
        """Reserve tokens and cost for a request that is about to be sent. Returns the request's id.

        Args:
            tokens: the most that it can use. ``cost_usd``: the most that it can cost; None if unknown.
        """
        request_id, now = new_id(), utc_now()
        row = {
            "id": request_id,
            "run_id": run_id,
            "problem": problem,
            "step": step,
            "role": role,
            "sample": sample,
            "attempt": attempt,
            "try": try_number,
            "provider": provider,
            "model": model,
            "key": key,
            "state": "open",
            "tokens": tokens,
            "cost_usd": cost_usd,
            "created_at": now,
            "updated_at": now,
        }
        self._connection.insert("llm_requests", row)
        return request_id

    def settle_request(self, request_id: str, call: LLMCall, *, prompt: str, reply: str, run_id: str, step: int) -> str:
        """Store a reply, and replace the reservation of its request by its actual usage, in one transaction.

        If a reply came without usage data, it is stored and its request is booked with the reserved amounts.

        Returns:
            The call's id.
        """
        with self._connection.write():
            call_id = self.keep_reply(call, prompt=prompt, reply=reply, run_id=run_id, step=step)
            if call.input_tokens is None or call.output_tokens is None:
                self._close(
                    request_id, "state = 'booked', outcome = 'reply without usage', call_id = :call", call=call_id
                )
            else:
                self._close(
                    request_id,
                    "state = 'settled', outcome = 'reply', call_id = :call, tokens = :tokens, cost_usd = :cost",
                    call=call_id,
                    tokens=call.input_tokens + call.output_tokens,
                    cost=call.cost_usd,
                )
        return call_id

    def book_request(self, request_id: str, outcome: str) -> None:
        """Book a request of unknown usage with its reserved amounts. ``outcome`` names the fault."""
        self._close(request_id, "state = 'booked', outcome = :outcome", outcome=outcome)

    def release_request(self, request_id: str, outcome: str) -> None:
        """Release a request that was refused before any work was done, at no cost. ``outcome`` names the fault."""
        self._close(request_id, "state = 'released', outcome = :outcome, tokens = 0, cost_usd = 0.0", outcome=outcome)

    def book_lost_requests(self, run_id: str) -> int:
        """Book the requests that a dead process of this run left open. Returns their number."""
        return self._connection.execute(
            "UPDATE llm_requests SET state = 'booked', outcome = 'lost', updated_at = :now "
            "WHERE run_id = :run_id AND state = 'open'",
            {"now": utc_now(), "run_id": run_id},
        )

    def _close(self, request_id: str, assignment: str, **values: Any) -> None:
        changed = self._connection.execute(
            f"UPDATE llm_requests SET {assignment}, updated_at = :now WHERE id = :id",
            {"now": utc_now(), "id": request_id, **values},
        )
        if not changed:
            raise StoreError(f"the store holds no request {request_id!r}")

    def spending(self, run_id: str) -> Spending:
        """The sums of a run's requests so far."""
        rows = self._connection.rows(f"SELECT {_SUMS} FROM llm_requests WHERE run_id = ?", [run_id])
        return Spending(**rows[0])

    def problems_spending(self, run_id: str, problems: Sequence[str]) -> Spending:
        """The sums of a run's requests about some of its problems, including replies that needed no request."""
        rows = self._connection.rows(
            "WITH wanted AS (SELECT value FROM json_each(:problems)), used AS ("
            "SELECT state, tokens, cost_usd FROM llm_requests WHERE run_id = :run AND problem IN wanted "
            "UNION ALL SELECT 'settled', coalesce(input_tokens, 0) + coalesce(output_tokens, 0), cost_usd "
            "FROM llm_calls WHERE run_id = :run AND problem IN wanted AND id NOT IN "
            "(SELECT call_id FROM llm_requests WHERE run_id = :run AND call_id IS NOT NULL)) "
            f"SELECT {_SUMS} FROM used",
            {"run": run_id, "problems": dump_json(list(problems))},
        )
        return Spending(**rows[0])

    def request_counts(self, run_id: str) -> list[RequestCount]:
        """How a run's requests ended, by role."""
        rows = self._connection.rows(
            "SELECT role, state, outcome, count(*) AS requests, sum(tokens) AS tokens, "
            "CASE WHEN count(cost_usd) = count(*) THEN total(cost_usd) END AS cost_usd "
            "FROM llm_requests WHERE run_id = ? GROUP BY role, state, outcome ORDER BY role, state, outcome",
            [run_id],
        )
        return [RequestCount(**row) for row in rows]

    # ---------------------------------------------------------------------------------------------- replies

    def keep_reply(self, call: LLMCall, *, prompt: str, reply: str, run_id: str | None, step: int | None) -> str:
        """Store a reply with its texts. Returns the call's id. The hashes stored are those of the texts."""
        call_id = new_id()
        with self._connection.write():
            hashes = {
                "prompt_sha256": self.put_blob(prompt, "prompt"),
                "reply_sha256": self.put_blob(reply, "reply"),
            }
            row = {"id": call_id, "run_id": run_id, "step": step, "evaluation_id": None, "created_at": utc_now()}
            self._connection.insert("llm_calls", {**row, **call.model_dump(), **hashes})
        return call_id

    def find_reply(self, key: str) -> LoggedReply | None:
        """The first reply stored under a key whose text was not removed, or None."""
        rows = self._connection.rows(
            "SELECT * FROM llm_calls WHERE key = ? AND reply_sha256 NOT IN (SELECT sha256 FROM removed) "
            "ORDER BY id LIMIT 1",
            [key],
        )
        return None if not rows else self._logged(rows[0])

    def reply(self, call_id: str) -> LoggedReply:
        """The reply of a call."""
        return self._logged(self._connection.rows("SELECT * FROM llm_calls WHERE id = ?", [call_id])[0])

    def _logged(self, row: dict[str, Any]) -> LoggedReply:
        call = LLMCall(**{name: row[name] for name in LLMCall.model_fields})
        return LoggedReply(id=row["id"], call=call, text=self.get_text(call.reply_sha256))

    def record_use(
        self,
        run_id: str,
        call_id: str,
        *,
        problem: str,
        step: int,
        role: str,
        sample: int,
        attempt: int,
        prompt: str,
        reused: bool,
    ) -> None:
        """Record which reply a run used at a place. An earlier record for the same place is not changed."""
        with self._connection.write():
            row = {
                "run_id": run_id,
                "problem": problem,
                "step": step,
                "role": role,
                "sample": sample,
                "attempt": attempt,
                "call_id": call_id,
                "prompt_sha256": self.put_blob(prompt, "prompt"),
                "reused": reused,
                "created_at": utc_now(),
            }
            self._connection.insert("llm_uses", row, unless_present=True)

    def uses(self, run_id: str) -> list[UsedReply]:
        """The replies that a run used, by problem, step, role, sample and attempt."""
        rows = self._connection.rows(
            "SELECT problem, step, role, sample, attempt, call_id, prompt_sha256, reused FROM llm_uses "
            "WHERE run_id = ? ORDER BY problem, step, role, sample, attempt",
            [run_id],
        )
        return [UsedReply(**row) for row in rows]
