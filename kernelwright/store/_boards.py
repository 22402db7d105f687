"""Queries for boards and pages. They read small tables kept by triggers, so they are fast in stores of any size."""

from __future__ import annotations

from typing import Any

from kernelwright.store._memory import Memory
from kernelwright.store._standings import RANKING

_ENTRANTS = f"""
SELECT standings.*, problems.problem, candidates.sha256 AS candidate, evaluations.inputs, evaluations.stage FROM (
    SELECT evaluation_id, baseline, row_number() OVER (
        PARTITION BY problem_version, author, recipe ORDER BY {RANKING}
    ) AS place
    FROM improvements
    WHERE environment_id = :environment AND baseline = :baseline
        AND (:backend IS NULL OR backend = :backend)
        AND (:version IS NULL OR problem_version = :version)
        AND (:until IS NULL OR created_at < :until)
) AS best
JOIN standings ON standings.evaluation_id = best.evaluation_id AND standings.baseline = best.baseline
JOIN current_problems ON current_problems.version = standings.problem_version
JOIN problems ON problems.version = standings.problem_version
JOIN candidates ON candidates.id = standings.candidate_id
JOIN evaluations ON evaluations.id = standings.evaluation_id
WHERE best.place = 1
ORDER BY problems.problem, standings.{", standings.".join(RANKING.split(", "))}
"""

# The name of the device; for "cpu" the model of the CPU.
_DEVICE = "iif(environments.device = 'cpu', json_extract(environments.record_json, '$.cpu'), environments.device)"

# The order of the view "ranking" without numbering every kernel of a problem: a page's ranks follow from its offset.
_PAGE = f"""
SELECT standings.*, candidates.sha256 AS candidate, evaluations.inputs, evaluations.stage FROM (
    SELECT evaluation_id, baseline FROM standings
    WHERE environment_id = :environment AND baseline = :baseline AND problem_version = :version
        AND backend = :backend AND eligible
    ORDER BY {RANKING} LIMIT :limit OFFSET :offset
) AS page
JOIN standings ON standings.evaluation_id = page.evaluation_id AND standings.baseline = page.baseline
JOIN candidates ON candidates.id = standings.candidate_id
JOIN evaluations ON evaluations.id = standings.evaluation_id
ORDER BY standings.{", standings.".join(RANKING.split(", "))}
"""

_RANK = """
SELECT count(*) FILTER (
    WHERE (other.confirmed, other.low) > (own.confirmed, own.low)
        OR ((other.confirmed, other.low) = (own.confirmed, own.low) AND other.evaluation_id <= own.evaluation_id)
) AS rank, count(*) AS of
FROM standings AS own
JOIN candidates ON candidates.id = own.candidate_id
JOIN standings AS other ON other.environment_id = own.environment_id AND other.baseline = own.baseline
    AND other.problem_version = own.problem_version AND other.backend = own.backend AND other.eligible = own.eligible
WHERE candidates.sha256 = :candidate AND candidates.problem = :problem AND own.problem_version = :version
    AND own.environment_id = :environment AND own.baseline = :baseline AND own.backend = :backend
"""


class Boards(Memory):
    """Methods of the store that rank kernels and their authors."""

    def board_places(self) -> list[dict[str, Any]]:
        """The boards that have entries: environment, device, baseline, suite, backend, and number of problems."""
        return self._connection.rows(
            f"SELECT environment_id AS environment, {_DEVICE} AS device, environments.device_class, "
            "environments.threads, baseline, problems.suite, backend, count(DISTINCT problems.problem) AS problems "
            "FROM (SELECT DISTINCT environment_id, baseline, problem_version, backend FROM improvements) AS places "
            "JOIN current_problems ON current_problems.version = places.problem_version "
            "JOIN problems ON problems.version = places.problem_version "
            "JOIN environments ON environments.id = places.environment_id "
            "GROUP BY environment_id, baseline, problems.suite, backend ORDER BY 8 DESC, 1, 5, 6, 7"
        )

    def entrants(
        self,
        environment: str,
        baseline: str,
        *,
        backend: str | None = None,
        problem: str | None = None,
        until: str | None = None,
    ) -> list[dict[str, Any]]:
        """The best kernel of each entrant (author and recipe) on each problem in use, by the ranking of the store.

        Args:
            until: only evaluations recorded before this time (ISO 8601, UTC), with today's knowledge of them.
        """
        return self._connection.rows(
            _ENTRANTS,
            {
                "environment": environment,
                "baseline": baseline,
                "backend": backend,
                "version": None if problem is None else self._version(problem),
                "until": until,
            },
        )

    def ranked(
        self, problem: str, environment: str, baseline: str, backend: str, *, limit: int = 50, offset: int = 0
    ) -> list[dict[str, Any]]:
        """Kernels of one problem in one language by rank. The ranks are those of the view ``leaderboard``."""
        rows = self._connection.rows(
            _PAGE,
            {
                "version": self._version(problem),
                "environment": environment,
                "baseline": baseline,
                "backend": backend,
                "limit": limit,
                "offset": offset,
            },
        )
        return [{**row, "rank": offset + number} for number, row in enumerate(rows, 1)]

    def rank_of(
        self, candidate: str, problem: str, environment: str, baseline: str, backend: str
    ) -> dict[str, int] | None:
        """A kernel's ``rank``, and the number ``of`` kernels of its problem that are as eligible; None if unranked."""
        place = {"environment": environment, "baseline": baseline, "backend": backend}
        (row,) = self._connection.rows(
            _RANK, {"candidate": candidate, "problem": problem, "version": self._version(problem), **place}
        )
        return row if row["of"] else None

    def speedups_on(self, problem: str, environment: str, baseline: str, backend: str) -> list[float]:
        """The median speedup of every ranked kernel of a problem, in no order."""
        rows = self._connection.rows(
            "SELECT median FROM standings "
            "WHERE environment_id = ? AND baseline = ? AND problem_version = ? AND backend = ? AND eligible",
            [environment, baseline, self._version(problem), backend],
        )
        return [row["median"] for row in rows]

    def rankings_of(self, problem: str) -> list[dict[str, Any]]:
        """The environments, baselines and languages in which a problem has ranked kernels."""
        return self._connection.rows(
            f"SELECT environment_id AS environment, {_DEVICE} AS device, environments.threads, baseline, backend "
            "FROM (SELECT DISTINCT environment_id, baseline, backend FROM improvements WHERE problem_version = ?) "
            "JOIN environments ON environments.id = environment_id ORDER BY 1, 4, 5",
            [self._version(problem)],
        )

    def speedups(self, evaluation_id: str) -> list[dict[str, Any]]:
        """An evaluation's speedups by baseline."""
        return self._connection.rows(
            "SELECT baseline, median, low, high, faster FROM speedups WHERE evaluation_id = ? ORDER BY baseline",
            [evaluation_id],
        )

    def progress(
        self, environment: str, baseline: str, *, problem: str | None = None, backend: str | None = None
    ) -> list[dict[str, Any]]:
        """Every kernel that was better than all earlier ones of its entrant, in the order of recording."""
        return self._connection.rows(
            "SELECT problems.problem, backend, author, recipe, confirmed, low, median, evaluation_id, "
            "improvements.created_at FROM improvements "
            "JOIN current_problems ON current_problems.version = improvements.problem_version "
            "JOIN problems ON problems.version = improvements.problem_version "
            "WHERE environment_id = :environment AND baseline = :baseline "
            "AND (:problem IS NULL OR problems.problem = :problem) "
            "AND (:backend IS NULL OR backend = :backend) ORDER BY evaluation_id",
            {"environment": environment, "baseline": baseline, "problem": problem, "backend": backend},
        )

    def tallies(
        self, *, environment: str | None = None, problem: str | None = None, run_id: str | None = None
    ) -> list[dict[str, Any]]:
        """Counts of evaluations by problem, language, author, recipe, status and failed stage, without controls."""
        given = {
            "tallies.environment_id = ?": environment,
            "current_problems.problem = ?": problem,
            "tallies.run_id = ?": run_id,
        }
        wanted = {condition: value for condition, value in given.items() if value is not None}
        return self._connection.rows(
            "SELECT current_problems.problem, backend, author, recipe, status, failed_stage, "
            "sum(evaluations) AS evaluations FROM tallies "
            "JOIN current_problems ON current_problems.version = tallies.problem_version "
            f"WHERE {' AND '.join(['1', *wanted])} GROUP BY 1, 2, 3, 4, 5, 6",
            list(wanted.values()),
        )

    def problems_in_use(self) -> list[dict[str, Any]]:
        """Every problem of the store in its current version, without its text."""
        return self._connection.rows(
            "SELECT problems.problem, problems.version, suite, level, name, number, variant, "
            "coalesce(json_extract(meta_json, '$.category'), 'other') AS category "
            "FROM current_problems JOIN problems ON problems.version = current_problems.version "
            "ORDER BY suite, level, number, name"
        )

    def refused(
        self, *, problem: str | None = None, rule: str | None = None, before: str | None = None, limit: int = 50
    ) -> list[dict[str, Any]]:
        """Evaluations judged a hack, quarantined by the referee, or withdrawn afterwards; the latest first.

        Args:
            rule: only those refused by this rule.
            before: only those recorded before the evaluation with this id.
        """
        given = {
            "rule = ?": rule,
            "problem_version IN (SELECT version FROM problems WHERE problem = ?)": problem,
            "evaluation_id < ?": before,
        }
        wanted = {condition: value for condition, value in given.items() if value is not None}
        return self._connection.rows(
            "SELECT evaluations.id, candidates.problem, candidates.sha256 AS candidate, candidates.backend, "
            "candidates.author, evaluations.status, evaluations.failed_stage, evaluations.reason, "
            "evaluations.created_at, evaluations.run_id, evaluations.verdict_json, "
            "(SELECT group_concat(reason, '; ') FROM quarantines WHERE evaluation_id = evaluations.id) AS withdrawn, "
            "(SELECT group_concat(rule, ', ') FROM refusals WHERE evaluation_id = evaluations.id) AS rules "
            f"FROM (SELECT evaluation_id FROM refusals WHERE {' AND '.join(['1', *wanted])} "
            "GROUP BY evaluation_id ORDER BY evaluation_id DESC LIMIT ?) AS found "
            "JOIN evaluations ON evaluations.id = found.evaluation_id "
            "JOIN candidates ON candidates.id = evaluations.candidate_id ORDER BY evaluations.id DESC",
            [*wanted.values(), limit],
        )

    def refusal_rules(self) -> list[dict[str, Any]]:
        """Each rule that refused evaluations, and how many."""
        return self._connection.rows(
            "SELECT rule, count(*) AS evaluations FROM refusals GROUP BY rule ORDER BY evaluations DESC, rule"
        )

    def _version(self, problem: str) -> str:
        """The current version of a problem; empty if the problem is unknown."""
        rows = self._connection.rows("SELECT version FROM current_problems WHERE problem = ?", [problem])
        return str(rows[0]["version"]) if rows else ""
