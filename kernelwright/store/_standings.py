"""Tables from which boards are read. Triggers keep them consistent with the evidence, so pages need not scan it all.

``rulings`` has the decisive evaluation of each candidate in each environment. ``standings`` has its measurements there
against each baseline. ``improvements`` has the standings that were better than all earlier ones of their entrant, and
``tallies`` has counts. Ineligible kernels are ranked among themselves and have no improvements. All these tables can be
rebuilt from the evidence at any time (:data:`REBUILD`); ``Store.check`` compares them with it.
"""

from __future__ import annotations

import re

# Ranking: confirmations first, as the best of many search timings is too good to be true; then by the lower bound.
WITHDRAWN = "withdrawn"
RANKING = "confirmed DESC, low DESC, evaluation_id"

# The latest decisive evaluation rules: a confirmation, a refusal on its merits, or one that was withdrawn afterwards.
# Without a decisive one, the latest other one rules: a search timing, or a verdict that the kernel is ineligible.
_WITHDRAWN = "EXISTS (SELECT 1 FROM quarantines WHERE quarantines.evaluation_id = {of}.id)"
_COUNTS = """{of}.control = 0 AND (
    ({of}.status = 'PASSED' AND {of}.latency_ms IS NOT NULL)
    OR {of}.status IN ('INCORRECT_SHAPE', 'INCORRECT_DTYPE', 'INCORRECT_NUMERICAL', 'REWARD_HACK', 'QUARANTINED')
    OR ({of}.status = 'INELIGIBLE' AND NOT {eligible})
    OR {withdrawn})"""
_DECIDES = "({of}.confirmed OR {of}.status NOT IN ('PASSED', 'INELIGIBLE') OR {withdrawn})"
_ELIGIBLE = "coalesce(json_extract({of}.verdict_json, '$.eligible'), 1)"


def _counts(of: str) -> str:
    return _COUNTS.format(of=of, withdrawn=_WITHDRAWN.format(of=of), eligible=_ELIGIBLE.format(of=of))


def _decides(of: str) -> str:
    return _DECIDES.format(of=of, withdrawn=_WITHDRAWN.format(of=of))


def _number(path: str) -> str:
    """SQL for a number of a verdict. The verdict stores a number that is not finite as text; here it is NULL."""
    found = f"json_extract(evaluations.verdict_json, '$.{path}')"
    return f"iif(typeof({found}) IN ('real', 'integer'), {found}, NULL)"


_STANDING = f"""
    SELECT evaluations.environment_id, speedups.baseline, evaluations.problem_version, candidates.backend,
        candidates.author, coalesce(json_extract(runs.config_json, '$.recipe'), '') AS recipe, evaluations.confirmed,
        speedups.low, speedups.median, speedups.high, speedups.faster, evaluations.latency_ms,
        {_number("own_kernel_share")} AS own_share,
        {_number("profile.metrics.distance_to_roofline")} AS distance,
        evaluations.id AS evaluation_id, evaluations.candidate_id, evaluations.run_id, evaluations.created_at,
        {_ELIGIBLE.format(of="evaluations")} AS eligible
    FROM speedups
    JOIN evaluations ON evaluations.id = speedups.evaluation_id
    JOIN rulings ON rulings.evaluation_id = evaluations.id
    JOIN candidates ON candidates.id = evaluations.candidate_id
    LEFT JOIN runs ON runs.id = evaluations.run_id
    WHERE evaluations.status = 'PASSED' AND evaluations.latency_ms IS NOT NULL
        AND NOT {_WITHDRAWN.format(of="evaluations")}"""

_RULING = f"""
    SELECT candidate_id, problem_version, environment_id, id AS evaluation_id, decisive FROM (
        SELECT evaluations.*, {_decides("evaluations")} AS decisive, row_number() OVER (
            PARTITION BY candidate_id, problem_version, environment_id
            ORDER BY {_decides("evaluations")} DESC, id DESC
        ) AS precedence
        FROM evaluations WHERE {_counts("evaluations")}
    ) WHERE precedence = 1"""

_ENTRANT = ("environment_id", "baseline", "problem_version", "backend", "author", "recipe", "confirmed")
_IMPROVED = ", ".join((*_ENTRANT, "evaluation_id", "low", "median", "created_at"))


def _same_entrant(table: str, row: str) -> str:
    return " AND ".join(f"{table}.{column} = {row}.{column}" for column in _ENTRANT)


_IMPROVEMENT = f"""
    SELECT {_IMPROVED} FROM (
        SELECT standings.*, max(low) OVER (
            PARTITION BY {", ".join(_ENTRANT)} ORDER BY evaluation_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before FROM standings WHERE eligible
    ) WHERE (before IS NULL OR low > before)"""

_TALLY = """
    SELECT evaluations.problem_version, evaluations.environment_id, candidates.backend, candidates.author,
        coalesce(json_extract(runs.config_json, '$.recipe'), '') AS recipe, coalesce(evaluations.run_id, '') AS run_id,
        evaluations.status, coalesce(evaluations.failed_stage, '') AS failed_stage, 1 AS evaluations
    FROM evaluations
    JOIN candidates ON candidates.id = evaluations.candidate_id
    LEFT JOIN runs ON runs.id = evaluations.run_id
    WHERE evaluations.control = 0"""
_TALLIED = "problem_version, environment_id, backend, author, recipe, run_id, status, failed_stage"
_COUNT_ONE_MORE = f"""
    INSERT INTO tallies {_TALLY} AND {{which}}
    ON CONFLICT ({_TALLIED}) DO UPDATE SET evaluations = evaluations + 1"""

# The rules by which evaluations were judged hacks or quarantined. Those withdrawn afterwards have their own rule.
_REFUSAL = f"""
    SELECT evaluations.id AS evaluation_id, json_extract(finding.value, '$.rule') AS rule, evaluations.problem_version
    FROM evaluations, json_each(evaluations.verdict_json, '$.findings') AS finding
    WHERE evaluations.status IN ('REWARD_HACK', 'QUARANTINED')
        AND json_extract(finding.value, '$.effect') = 'refuses' AND {{which}}
    UNION
    SELECT evaluations.id, '{WITHDRAWN}', evaluations.problem_version
    FROM quarantines JOIN evaluations ON evaluations.id = quarantines.evaluation_id WHERE {{which}}
    UNION
    SELECT evaluations.id, lower(evaluations.status), evaluations.problem_version
    FROM evaluations WHERE evaluations.status IN ('REWARD_HACK', 'QUARANTINED') AND {{which}} AND NOT EXISTS (
        SELECT 1 FROM json_each(evaluations.verdict_json, '$.findings') AS finding
        WHERE json_extract(finding.value, '$.effect') = 'refuses'
    )"""

_TABLES = """
CREATE TABLE rulings (
    candidate_id TEXT NOT NULL REFERENCES candidates(id),
    problem_version TEXT NOT NULL REFERENCES problems(version),
    environment_id TEXT NOT NULL REFERENCES environments(id),
    evaluation_id TEXT NOT NULL REFERENCES evaluations(id),
    decisive INTEGER NOT NULL CHECK (decisive IN (0, 1)),
    PRIMARY KEY (candidate_id, problem_version, environment_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX rulings_by_evaluation ON rulings(evaluation_id);

CREATE TABLE standings (
    environment_id TEXT NOT NULL REFERENCES environments(id),
    baseline TEXT NOT NULL,
    problem_version TEXT NOT NULL REFERENCES problems(version),
    backend TEXT NOT NULL,
    author TEXT NOT NULL,
    recipe TEXT NOT NULL,
    confirmed INTEGER NOT NULL CHECK (confirmed IN (0, 1)),
    low REAL NOT NULL,
    median REAL NOT NULL,
    high REAL NOT NULL,
    faster INTEGER NOT NULL CHECK (faster IN (0, 1)),
    latency_ms REAL NOT NULL,
    own_share REAL,
    distance REAL,
    evaluation_id TEXT NOT NULL REFERENCES evaluations(id),
    candidate_id TEXT NOT NULL REFERENCES candidates(id),
    run_id TEXT REFERENCES runs(id),
    created_at TEXT NOT NULL,
    eligible INTEGER NOT NULL CHECK (eligible IN (0, 1)),
    PRIMARY KEY (evaluation_id, baseline)
) STRICT, WITHOUT ROWID;
CREATE INDEX standings_by_rank
    ON standings(environment_id, baseline, problem_version, backend, confirmed DESC, low DESC, evaluation_id, median);
CREATE INDEX standings_by_entrant
    ON standings(environment_id, baseline, problem_version, backend, author, recipe, confirmed, evaluation_id, low);
CREATE INDEX standings_by_candidate ON standings(candidate_id);

CREATE TABLE improvements (
    environment_id TEXT NOT NULL,
    baseline TEXT NOT NULL,
    problem_version TEXT NOT NULL,
    backend TEXT NOT NULL,
    author TEXT NOT NULL,
    recipe TEXT NOT NULL,
    confirmed INTEGER NOT NULL CHECK (confirmed IN (0, 1)),
    evaluation_id TEXT NOT NULL REFERENCES evaluations(id),
    low REAL NOT NULL,
    median REAL NOT NULL,
    created_at TEXT NOT NULL,
    PRIMARY KEY (environment_id, baseline, problem_version, backend, author, recipe, confirmed, evaluation_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE tallies (
    problem_version TEXT NOT NULL REFERENCES problems(version),
    environment_id TEXT NOT NULL REFERENCES environments(id),
    backend TEXT NOT NULL,
    author TEXT NOT NULL,
    recipe TEXT NOT NULL,
    run_id TEXT NOT NULL,
    status TEXT NOT NULL,
    failed_stage TEXT NOT NULL,
    evaluations INTEGER NOT NULL CHECK (evaluations > 0),
    PRIMARY KEY (problem_version, environment_id, backend, author, recipe, run_id, status, failed_stage)
) STRICT, WITHOUT ROWID;
CREATE INDEX tallies_by_run ON tallies(run_id);

DROP INDEX evaluations_by_run;
CREATE INDEX evaluations_by_run ON evaluations(run_id, id);
DROP INDEX events_by_run;
CREATE INDEX events_by_run ON events(run_id, id);

CREATE TABLE refusals (
    evaluation_id TEXT NOT NULL REFERENCES evaluations(id),
    rule TEXT NOT NULL,
    problem_version TEXT NOT NULL REFERENCES problems(version),
    PRIMARY KEY (evaluation_id, rule)
) STRICT, WITHOUT ROWID;
CREATE INDEX refusals_by_rule ON refusals(rule, evaluation_id);
CREATE INDEX refusals_by_problem ON refusals(problem_version, evaluation_id);
"""

_TRIGGERS = f"""
CREATE TRIGGER evaluations_rule AFTER INSERT ON evaluations WHEN {_counts("new")} BEGIN
    INSERT INTO rulings (candidate_id, problem_version, environment_id, evaluation_id, decisive)
    VALUES (new.candidate_id, new.problem_version, new.environment_id, new.id, {_decides("new")})
    ON CONFLICT (candidate_id, problem_version, environment_id)
    DO UPDATE SET evaluation_id = excluded.evaluation_id, decisive = excluded.decisive
    WHERE (excluded.decisive, excluded.evaluation_id) > (rulings.decisive, rulings.evaluation_id);
END;
CREATE TRIGGER evaluations_are_counted AFTER INSERT ON evaluations WHEN new.control = 0 BEGIN
    {_COUNT_ONE_MORE.format(which="evaluations.id = new.id")};
END;
CREATE TRIGGER evaluations_are_refused AFTER INSERT ON evaluations
WHEN new.status IN ('REWARD_HACK', 'QUARANTINED') BEGIN
    INSERT INTO refusals {_REFUSAL.format(which="evaluations.id = new.id")};
END;
CREATE TRIGGER quarantines_refuse AFTER INSERT ON quarantines BEGIN
    INSERT OR IGNORE INTO refusals SELECT id, '{WITHDRAWN}', problem_version FROM evaluations
    WHERE id = new.evaluation_id;
END;
CREATE TRIGGER quarantines_rule AFTER INSERT ON quarantines BEGIN
    INSERT INTO rulings (candidate_id, problem_version, environment_id, evaluation_id, decisive)
    SELECT evaluations.candidate_id, evaluations.problem_version, evaluations.environment_id, evaluations.id,
        {_decides("evaluations")}
    FROM evaluations
    JOIN evaluations AS withdrawn ON withdrawn.id = new.evaluation_id
        AND withdrawn.candidate_id = evaluations.candidate_id
        AND withdrawn.problem_version = evaluations.problem_version
        AND withdrawn.environment_id = evaluations.environment_id
    WHERE {_counts("evaluations")}
    ORDER BY {_decides("evaluations")} DESC, evaluations.id DESC LIMIT 1
    ON CONFLICT (candidate_id, problem_version, environment_id)
    DO UPDATE SET evaluation_id = excluded.evaluation_id, decisive = excluded.decisive;
END;
CREATE TRIGGER rulings_change AFTER UPDATE ON rulings BEGIN
    DELETE FROM standings WHERE evaluation_id = old.evaluation_id;
    INSERT INTO standings {_STANDING} AND speedups.evaluation_id = new.evaluation_id;
END;
CREATE TRIGGER speedups_stand AFTER INSERT ON speedups BEGIN
    INSERT INTO standings {_STANDING}
        AND speedups.evaluation_id = new.evaluation_id AND speedups.baseline = new.baseline;
END;
CREATE TRIGGER standings_improve AFTER INSERT ON standings WHEN new.eligible BEGIN
    DELETE FROM improvements
    WHERE {_same_entrant("improvements", "new")} AND evaluation_id > new.evaluation_id AND low <= new.low
        AND NOT EXISTS (
            SELECT 1 FROM improvements AS earlier WHERE {_same_entrant("earlier", "new")}
            AND earlier.evaluation_id < new.evaluation_id AND earlier.low >= new.low
        );
    INSERT INTO improvements
    SELECT {", ".join(f"new.{column}" for column in _IMPROVED.split(", "))}
    WHERE NOT EXISTS (
        SELECT 1 FROM improvements AS earlier WHERE {_same_entrant("earlier", "new")}
        AND earlier.evaluation_id < new.evaluation_id AND earlier.low >= new.low
    );
END;
CREATE TRIGGER standings_fall AFTER DELETE ON standings WHEN EXISTS (
    SELECT 1 FROM improvements WHERE {_same_entrant("improvements", "old")} AND evaluation_id = old.evaluation_id
) BEGIN
    DELETE FROM improvements WHERE {_same_entrant("improvements", "old")} AND evaluation_id >= old.evaluation_id;
    INSERT INTO improvements
    SELECT {_IMPROVED} FROM (
        SELECT standings.*, max(low) OVER (
            ORDER BY evaluation_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before FROM standings WHERE eligible AND {_same_entrant("standings", "old")}
    ) WHERE evaluation_id > old.evaluation_id AND (before IS NULL OR low > before);
END;
"""

_VIEWS = f"""
CREATE VIEW ruling AS
    SELECT judged.* FROM rulings JOIN judged ON judged.id = rulings.evaluation_id;

CREATE VIEW ranking AS
    SELECT standings.*, row_number() OVER (
        PARTITION BY environment_id, baseline, problem_version, backend, eligible ORDER BY {RANKING}
    ) AS rank FROM standings;

CREATE VIEW leaderboard AS
    SELECT problems.problem AS problem, ranking.environment_id AS environment_id, ranking.baseline AS baseline,
        ranking.rank AS rank, ranking.median AS median, ranking.low AS low, ranking.high AS high,
        ranking.faster AS faster, ranking.latency_ms AS latency_ms, evaluations.latency_low_ms AS latency_low_ms,
        evaluations.latency_high_ms AS latency_high_ms, ranking.confirmed AS confirmed, evaluations.stage AS stage,
        candidates.sha256 AS candidate, ranking.backend AS backend, ranking.author AS author,
        ranking.evaluation_id AS evaluation_id, ranking.run_id AS run_id, ranking.created_at AS created_at,
        problems.variant AS variant, evaluations.inputs AS inputs, ranking.eligible AS eligible
    FROM ranking
    JOIN current_problems ON current_problems.version = ranking.problem_version
    JOIN problems ON problems.version = ranking.problem_version
    JOIN evaluations ON evaluations.id = ranking.evaluation_id
    JOIN candidates ON candidates.id = ranking.candidate_id;

CREATE VIEW best_per_problem AS SELECT * FROM leaderboard WHERE rank = 1 AND eligible;

-- The best of each entrant on each problem, which is always among its improvements.
CREATE VIEW best_per_entrant AS
    SELECT standings.* FROM (
        SELECT evaluation_id, baseline, row_number() OVER (
            PARTITION BY environment_id, baseline, problem_version, backend, author, recipe ORDER BY {RANKING}
        ) AS place FROM improvements
    ) AS best JOIN standings
        ON standings.evaluation_id = best.evaluation_id AND standings.baseline = best.baseline
    WHERE best.place = 1;
"""

_DROPPED = ("best_per_problem", "leaderboard", "ruling")
_MADE_BY_TRIGGERS = ("rulings", "standings", "improvements", "tallies", "refusals")

# Removes everything that :data:`STANDINGS` makes, so that it can be made in another form.
UNDO = f"""
{"".join(f"DROP VIEW {view};" for view in ("best_per_entrant", "best_per_problem", "leaderboard", "ranking", "ruling"))}
{"".join(f"DROP TRIGGER {name};" for name in re.findall("CREATE TRIGGER ([a-z_]+)", _TRIGGERS))}
{"".join(f"DROP TABLE {table};" for table in _MADE_BY_TRIGGERS)}
CREATE VIEW ruling AS SELECT 1;
CREATE VIEW leaderboard AS SELECT 1;
CREATE VIEW best_per_problem AS SELECT 1;
"""
STANDINGS = f"""
{_TABLES}
{"".join(f"DROP VIEW {view};" for view in _DROPPED)}
{_TRIGGERS}
{_VIEWS}
"""

# Statements that rebuild every derived row; the triggers on rulings and standings do the rest.
REBUILD = (
    "DELETE FROM improvements",
    "DELETE FROM standings",
    "DELETE FROM rulings",
    "DELETE FROM tallies",
    "DELETE FROM refusals",
    f"INSERT INTO rulings {_RULING} ORDER BY evaluation_id",
    f"INSERT INTO standings {_STANDING} ORDER BY evaluations.id",
    f"{_COUNT_ONE_MORE.format(which='true')}",
    f"INSERT INTO refusals {_REFUSAL.format(which='true')}",
)

# Statements that take the evaluations of the candidates in ``temp.credited`` out of the tables, and put them back after
# something of these candidates changed that the tables repeat, such as the author.
_OF_CREDITED = "evaluations.candidate_id IN (SELECT id FROM temp.credited)"
_SAME_TALLY = " AND ".join(f"tallies.{column} = counted.{column}" for column in _TALLIED.split(", "))
TAKE_OUT = (
    "DELETE FROM standings WHERE candidate_id IN (SELECT id FROM temp.credited)",
    f"CREATE TEMP TABLE counted AS SELECT {_TALLIED}, count(*) AS n FROM ({_TALLY} AND {_OF_CREDITED}) "
    f"GROUP BY {_TALLIED}",
    f"DELETE FROM tallies WHERE EXISTS (SELECT 1 FROM temp.counted WHERE {_SAME_TALLY} AND n = tallies.evaluations)",
    f"UPDATE tallies SET evaluations = evaluations - n FROM temp.counted WHERE {_SAME_TALLY}",
    "DROP TABLE temp.counted",
)
PUT_BACK = (
    _COUNT_ONE_MORE.format(which=_OF_CREDITED),
    f"INSERT INTO standings {_STANDING} AND {_OF_CREDITED}",
)

# By name of a derived table: a query of the table, and a query of the evidence that must give the same rows.
DERIVED = {
    "rulings": ("SELECT candidate_id, problem_version, environment_id, evaluation_id, decisive FROM rulings", _RULING),
    "standings": ("SELECT * FROM standings", _STANDING),
    "improvements": ("SELECT * FROM improvements", _IMPROVEMENT),
    "refusals": ("SELECT * FROM refusals", _REFUSAL.format(which="true")),
    "tallies": (
        "SELECT * FROM tallies",
        f"SELECT {_TALLIED}, count(*) FROM ({_TALLY}) GROUP BY {_TALLIED}",
    ),
}
