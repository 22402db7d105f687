"""Runs: their configuration, the state of each problem, events, and costs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast, get_args

from kernelwright import __version__
from kernelwright.errors import UsageError
from kernelwright.records import Problem, RunConfig
from kernelwright.records.codec import dump_json, load_record
from kernelwright.store._catalog import Catalog
from kernelwright.store._ids import new_id, utc_now
from kernelwright.store._rows import Event, JobState, ProblemState, RunCosts, RunRow, RunStatus

_SAVE_STEP = (
    "INSERT INTO steps (run_id, problem, part, number, content_json) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT DO UPDATE SET content_json = excluded.content_json"
)


class Runs(Catalog):
    """Methods of the store about runs."""

    def create_run(self, config: RunConfig, problems: Sequence[Problem]) -> str:
        """Start a run, pinned to these versions of its problems, with status ``running``. Returns its id."""
        with self._connection.write():
            run_id, now = new_id(), utc_now()  # under the lock: all stored records have smaller ids
            row = {
                "id": run_id,
                "config_json": dump_json(config),
                "software_version": __version__,
                "status": "running",
                "created_at": now,
                "updated_at": now,
            }
            self._connection.insert("runs", row)
            jobs = [
                {
                    "run_id": run_id,
                    "problem": problem.id,
                    "version": self.record_problem(problem),
                    "position": position,
                    "state": "pending",
                    "updated_at": now,
                }
                for position, problem in enumerate(problems)
            ]
            self._connection.insert_all("run_problems", jobs)
        return run_id

    def add_run_problem(self, run_id: str, problem: Problem) -> None:
        """Add a problem to a run, pinned to this version. Does nothing if the run already has that problem.

        Raises:
            UsageError: the run is unknown.
        """
        with self._connection.write():
            config = self.run(run_id).config
            asked = "SELECT count(*) AS known, coalesce(sum(problem = ?), 0) AS same FROM run_problems WHERE run_id = ?"
            (row,) = self._connection.rows(asked, [problem.id, run_id])
            if row["same"]:
                return
            job = {
                "run_id": run_id,
                "problem": problem.id,
                "version": self.record_problem(problem),
                "position": row["known"],
                "state": "pending",
                "updated_at": utc_now(),
            }
            self._connection.insert("run_problems", job)
            self.set_run_config(run_id, config.model_copy(update={"problems": (*config.problems, problem.id)}))

    def set_run_status(self, run_id: str, status: RunStatus) -> None:
        """Change a run's status. Raises UsageError for an unknown run or status."""
        _known(status, get_args(RunStatus), "run status")
        self._change_run("status = :value", run_id, status)

    def set_run_config(self, run_id: str, config: RunConfig) -> None:
        """Change a run's configuration, such as its budgets, from now on. Raises UsageError for an unknown run."""
        self._change_run("config_json = :value", run_id, dump_json(config))

    def add_run_seconds(self, run_id: str, seconds: float) -> float:
        """Add wall-clock seconds to a run. Returns the sum over all its sessions."""
        with self._connection.write():
            self._change_run("seconds = seconds + :value", run_id, seconds)
            return self.run(run_id).seconds

    def _change_run(self, assignment: str, run_id: str, value: Any) -> None:
        changed = self._connection.execute(
            f"UPDATE runs SET {assignment}, updated_at = :now WHERE id = :run_id",
            {"value": value, "now": utc_now(), "run_id": run_id},
        )
        if not changed:
            raise _no_run(run_id)

    def run(self, run_id: str) -> RunRow:
        """A run by its id, or by a unique prefix of it.

        Raises:
            UsageError: no run, or several, match.
        """
        wanted = run_id.strip().upper()
        rows = self._connection.rows(
            "SELECT * FROM runs WHERE substr(id, 1, length(:id)) = :id AND :id <> '' ORDER BY id", {"id": wanted}
        )
        if not rows:
            raise _no_run(run_id)
        if len(rows) > 1:
            matches = [row["id"] for row in rows]
            raise UsageError(
                f"{run_id!r} names several runs: {', '.join(matches)}", hint="give more characters", matches=matches
            )
        return _run(rows[0])

    def run_status(self, run_id: str) -> RunStatus:
        """A run's status, by its full id. Raises UsageError for an unknown run."""
        rows = self._connection.rows("SELECT status FROM runs WHERE id = ?", [run_id])
        if not rows:
            raise _no_run(run_id)
        return cast(RunStatus, rows[0]["status"])

    def runs(self, limit: int = 50) -> list[RunRow]:
        """The latest runs, newest first."""
        return [_run(row) for row in self._connection.rows("SELECT * FROM runs ORDER BY id DESC LIMIT ?", [limit])]

    def device_seconds(self, run_id: str) -> float:
        """Seconds that the referee spent on a run's candidates, over all stages of all its evaluations."""
        return self.device_seconds_after(run_id, "")[0]

    def device_seconds_after(self, run_id: str, after: str) -> tuple[float, str]:
        """The referee's seconds for a run's evaluations after ``after``, and the id of the latest (or ``after``)."""
        rows = self._connection.rows(
            "SELECT coalesce(max(id), :after) AS latest, "
            "total((SELECT total(value) FROM json_each(verdict_json, '$.seconds'))) AS seconds "
            "FROM evaluations WHERE run_id = :run_id AND id > :after",
            {"run_id": run_id, "after": after},
        )
        return float(rows[0]["seconds"]), str(rows[0]["latest"])

    def mean_evaluation_seconds(self, latest: int = 200) -> float | None:
        """Mean seconds that the referee spent on a candidate, over the latest unconfirmed evaluations; None if none."""
        rows = self._connection.rows(
            "SELECT avg(seconds) AS seconds FROM (SELECT "
            "(SELECT total(value) FROM json_each(verdict_json, '$.seconds')) AS seconds "
            "FROM evaluations WHERE confirmed = 0 ORDER BY id DESC LIMIT ?)",
            [latest],
        )
        return None if rows[0]["seconds"] is None else float(rows[0]["seconds"])

    def run_costs(self, run_id: str) -> RunCosts:
        """The resources that a run used. Raises UsageError for an unknown run."""
        rows = self._connection.rows("SELECT * FROM run_costs WHERE run_id = ?", [run_id])
        if not rows:
            raise _no_run(run_id)
        return RunCosts(**rows[0])

    # --------------------------------------------------------------------------------------- a run's problems

    def set_problem_state(self, run_id: str, problem_id: str, state: JobState, detail: str = "") -> None:
        """Set the state of a problem in a run. Of one that is done, the step's state goes.

        Raises:
            UsageError: the run has no such problem.
        """
        _known(state, get_args(JobState), "problem state")
        with self._connection.write():
            changed = self._connection.execute(
                "UPDATE run_problems SET state = :state, detail = :detail, updated_at = :now "
                "WHERE run_id = :run_id AND problem = :problem",
                {"state": state, "detail": detail, "now": utc_now(), "run_id": run_id, "problem": problem_id},
            )
            if state == "done":
                self._connection.execute("DELETE FROM steps WHERE run_id = ? AND problem = ?", [run_id, problem_id])
        if not changed:
            raise UsageError(f"run {run_id} has no problem {problem_id!r}", hint="'kernelwright runs show' lists them")

    def save_step(
        self,
        run_id: str,
        problem_id: str,
        state: Mapping[str, object],
        *,
        known: Mapping[str, Sequence[object]] | None = None,
    ) -> None:
        """Save the state of a run's step on a problem, in place of the earlier one.

        Args:
            state: plain JSON. Its lists are kept entry by entry, so that long ones that grow are cheap to save.
            known: lists of the state that was saved last; an entry that is the same object in the same place is not
                written again.
        """
        known = known or {}
        lists = {name: content for name, content in state.items() if isinstance(content, list)}
        rest = {name: content for name, content in state.items() if name not in lists}
        rest["lengths"] = {name: len(content) for name, content in lists.items()}
        entries: list[tuple[str, int, object]] = [("", 0, rest)]
        for name, content in lists.items():
            before = known.get(name, ())
            entries += [
                (name, number, entry)
                for number, entry in enumerate(content)
                if number >= len(before) or entry is not before[number]
            ]
        with self._connection.write():
            for part, number, entry in entries:
                self._connection.execute(_SAVE_STEP, [run_id, problem_id, part, number, json.dumps(entry)])

    def step(self, run_id: str, problem_id: str) -> dict[str, Any] | None:
        """The state of a run's step on a problem, as it was saved last; None if none was, or the problem is done."""
        rows = self._connection.rows(
            "SELECT part, content_json FROM steps WHERE run_id = ? AND problem = ? ORDER BY part, number",
            [run_id, problem_id],
        )
        if not rows:
            return None
        state: dict[str, Any] = json.loads(rows[0]["content_json"])
        lengths: dict[str, int] = state.pop("lengths")
        lists: dict[str, list[Any]] = {name: [] for name in lengths}
        for row in rows[1:]:
            if row["part"] in lists:  # others are of an earlier state
                lists[row["part"]].append(json.loads(row["content_json"]))
        return {**state, **{name: lists[name][:length] for name, length in lengths.items()}}

    def problem_states(self, run_id: str) -> list[ProblemState]:
        """The states of a run's problems, in the order of the request."""
        rows = self._connection.rows(
            "SELECT problem, version, state, detail, updated_at FROM run_problems WHERE run_id = ? ORDER BY position",
            [run_id],
        )
        return [ProblemState(**row) for row in rows]

    def run_problems(self, run_id: str) -> list[Problem]:
        """A run's problems in the order of the request, in the versions that the run is pinned to."""
        return [self.problem(item.problem, version=item.version) for item in self.problem_states(run_id)]

    # ------------------------------------------------------------------------------------------------- events

    def event(self, run_id: str | None, kind: str, data: Mapping[str, Any] | None = None) -> str:
        """Store an event. Returns its id."""
        event_id = new_id()
        row = {
            "id": event_id,
            "run_id": run_id,
            "kind": kind,
            "data_json": dump_json(data or {}),
            "created_at": utc_now(),
        }
        self._connection.insert("events", row)
        return event_id

    def events(self, run_id: str | None, *, after: str = "", kind: str | None = None) -> list[Event]:
        """Events of a run (None: those outside of runs) after the event ``after``, in order."""
        rows = self._connection.rows(
            "SELECT * FROM events WHERE run_id IS :run_id AND id > :after AND kind = coalesce(:kind, kind) ORDER BY id",
            {"run_id": run_id, "after": after, "kind": kind},
        )
        return [Event(data=json.loads(row.pop("data_json")), **row) for row in rows]


def _run(row: dict[str, Any]) -> RunRow:
    return RunRow(config=load_record(RunConfig, row.pop("config_json")), **row)


def _no_run(run_id: str) -> UsageError:
    return UsageError(f"the store holds no run {run_id!r}", hint="'kernelwright runs list' shows the runs")


def _known(value: str, choices: tuple[str, ...], what: str) -> None:
    if value not in choices:
        raise UsageError(f"{value!r} is not a {what}", hint=f"one of {', '.join(choices)}")
