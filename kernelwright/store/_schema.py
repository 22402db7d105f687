"""The SQL of the migrations. What was released is never edited."""

from __future__ import annotations

TABLES = """
CREATE TABLE blobs (
    id INTEGER PRIMARY KEY,
    sha256 TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    size_bytes INTEGER NOT NULL,
    content BLOB NOT NULL,
    created_at TEXT NOT NULL
) STRICT;

CREATE TABLE environments (
    id TEXT PRIMARY KEY,
    device TEXT NOT NULL,
    device_class TEXT NOT NULL,
    torch TEXT NOT NULL,
    threads INTEGER NOT NULL,
    record_json TEXT NOT NULL,
    created_at TEXT NOT NULL
) STRICT;

CREATE TABLE problems (
    version TEXT PRIMARY KEY,
    problem TEXT NOT NULL,
    suite TEXT NOT NULL,
    level INTEGER NOT NULL,
    name TEXT NOT NULL,
    number INTEGER,
    source_sha256 TEXT NOT NULL REFERENCES blobs(sha256),
    meta_json TEXT NOT NULL,
    path TEXT,
    created_at TEXT NOT NULL
) STRICT;
CREATE INDEX problems_by_id ON problems(problem);

CREATE TABLE current_problems (
    problem TEXT PRIMARY KEY,
    version TEXT NOT NULL REFERENCES problems(version)
) STRICT;

CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    config_json TEXT NOT NULL,
    software_version TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('running', 'paused', 'finished', 'failed', 'cancelled', 'interrupted')),
    seconds REAL NOT NULL DEFAULT 0 CHECK (seconds >= 0),
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
) STRICT;

CREATE TABLE run_problems (
    run_id TEXT NOT NULL REFERENCES runs(id),
    problem TEXT NOT NULL,
    version TEXT NOT NULL REFERENCES problems(version),
    position INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('pending', 'running', 'done', 'failed')),
    detail TEXT NOT NULL DEFAULT '',
    updated_at TEXT NOT NULL,
    PRIMARY KEY (run_id, problem)
) STRICT;

CREATE TABLE sources (
    id INTEGER PRIMARY KEY,
    sha256 TEXT NOT NULL UNIQUE REFERENCES blobs(sha256)
) STRICT;

CREATE TABLE candidates (
    id TEXT PRIMARY KEY,
    sha256 TEXT NOT NULL,
    problem TEXT NOT NULL,
    source_sha256 TEXT NOT NULL REFERENCES sources(sha256),
    backend TEXT NOT NULL,
    knobs_json TEXT NOT NULL,
    parents_json TEXT NOT NULL,
    operator TEXT NOT NULL,
    author TEXT NOT NULL,
    prompt_sha256 TEXT,
    note TEXT NOT NULL,
    created_at TEXT NOT NULL,
    UNIQUE (sha256, problem)
) STRICT;
CREATE INDEX candidates_by_problem ON candidates(problem, source_sha256);
CREATE INDEX candidates_by_source ON candidates(source_sha256);

CREATE TABLE lineage (
    child TEXT NOT NULL,
    parent TEXT NOT NULL,
    relation TEXT NOT NULL,
    problem TEXT NOT NULL,
    PRIMARY KEY (child, parent, relation, problem),
    FOREIGN KEY (child, problem) REFERENCES candidates(sha256, problem)
) STRICT;
CREATE INDEX lineage_by_parent ON lineage(parent);

CREATE TABLE evaluations (
    id TEXT PRIMARY KEY,
    candidate_id TEXT NOT NULL REFERENCES candidates(id),
    problem_version TEXT NOT NULL REFERENCES problems(version),
    environment_id TEXT NOT NULL REFERENCES environments(id),
    run_id TEXT REFERENCES runs(id),
    step INTEGER,
    generation INTEGER,
    status TEXT NOT NULL,
    stage TEXT,
    failed_stage TEXT,
    reason TEXT NOT NULL,
    control INTEGER NOT NULL CHECK (control IN (0, 1)),
    confirmed INTEGER NOT NULL CHECK (confirmed IN (0, 1)),
    latency_ms REAL,
    latency_low_ms REAL,
    latency_high_ms REAL,
    verdict_json TEXT NOT NULL,
    software_version TEXT NOT NULL,
    created_at TEXT NOT NULL
) STRICT;
CREATE INDEX evaluations_by_candidate ON evaluations(candidate_id, environment_id);
CREATE INDEX evaluations_by_run ON evaluations(run_id);
CREATE INDEX evaluations_on_the_board ON evaluations(problem_version, environment_id, candidate_id)
    WHERE status = 'PASSED' AND control = 0 AND latency_ms IS NOT NULL;

CREATE TABLE speedups (
    evaluation_id TEXT NOT NULL REFERENCES evaluations(id),
    baseline TEXT NOT NULL,
    median REAL NOT NULL,
    low REAL NOT NULL,
    high REAL NOT NULL,
    faster INTEGER NOT NULL CHECK (faster IN (0, 1)),
    PRIMARY KEY (evaluation_id, baseline)
) STRICT, WITHOUT ROWID;

CREATE TABLE timing_samples (
    evaluation_id TEXT NOT NULL REFERENCES evaluations(id),
    number INTEGER NOT NULL,
    phase TEXT NOT NULL,
    role TEXT NOT NULL,
    process INTEGER NOT NULL,
    pair INTEGER NOT NULL,
    position INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    latency_ms REAL NOT NULL,
    PRIMARY KEY (evaluation_id, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE profiles (
    evaluation_id TEXT PRIMARY KEY REFERENCES evaluations(id),
    rung TEXT NOT NULL,
    bound TEXT NOT NULL,
    metrics_json TEXT NOT NULL,
    notes_json TEXT NOT NULL
) STRICT;

CREATE TABLE llm_calls (
    id TEXT PRIMARY KEY,
    evaluation_id TEXT REFERENCES evaluations(id),
    run_id TEXT REFERENCES runs(id),
    step INTEGER,
    role TEXT NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    prompt_sha256 TEXT NOT NULL,
    reply_sha256 TEXT NOT NULL,
    input_tokens INTEGER,
    output_tokens INTEGER,
    cached_tokens INTEGER,
    cost_usd REAL,
    seconds REAL NOT NULL,
    created_at TEXT NOT NULL
) STRICT;
CREATE INDEX llm_calls_by_run ON llm_calls(run_id);
CREATE INDEX llm_calls_by_evaluation ON llm_calls(evaluation_id);

CREATE TABLE artifacts (
    evaluation_id TEXT NOT NULL REFERENCES evaluations(id),
    name TEXT NOT NULL,
    blob_sha256 TEXT NOT NULL REFERENCES blobs(sha256),
    PRIMARY KEY (evaluation_id, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX artifacts_by_blob ON artifacts(blob_sha256);

CREATE TABLE notes (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    candidate TEXT NOT NULL,
    evaluation_id TEXT REFERENCES evaluations(id),
    run_id TEXT REFERENCES runs(id),
    step INTEGER,
    role TEXT NOT NULL,
    mode TEXT NOT NULL,
    bottleneck TEXT NOT NULL,
    method TEXT NOT NULL,
    plan TEXT NOT NULL,
    expected TEXT NOT NULL,
    action_json TEXT NOT NULL,
    created_at TEXT NOT NULL
) STRICT;
CREATE INDEX notes_by_candidate ON notes(candidate);

CREATE TABLE quarantines (
    id TEXT PRIMARY KEY,
    evaluation_id TEXT NOT NULL REFERENCES evaluations(id),
    reason TEXT NOT NULL CHECK (reason <> ''),
    created_at TEXT NOT NULL
) STRICT;
CREATE INDEX quarantines_by_evaluation ON quarantines(evaluation_id);

CREATE TABLE events (
    id TEXT PRIMARY KEY,
    run_id TEXT REFERENCES runs(id),
    kind TEXT NOT NULL,
    data_json TEXT NOT NULL,
    created_at TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_run ON events(run_id);
"""
# The search index keeps no copy of the text: it reads it from the blobs and the notes.
SEARCH = """
CREATE VIEW source_texts AS
    SELECT sources.id AS id, CAST(blobs.content AS TEXT) AS source
    FROM sources JOIN blobs ON blobs.sha256 = sources.sha256;
CREATE VIRTUAL TABLE sources_fts USING fts5(
    source, content='source_texts', content_rowid='id', tokenize="unicode61 tokenchars '_'"
);
CREATE TRIGGER sources_are_indexed AFTER INSERT ON sources BEGIN
    INSERT INTO sources_fts (rowid, source) SELECT id, source FROM source_texts WHERE id = new.id;
END;
CREATE VIRTUAL TABLE notes_fts USING fts5(
    bottleneck, method, plan, expected, content='notes', content_rowid='number', tokenize="unicode61 tokenchars '_'"
);
CREATE TRIGGER notes_are_indexed AFTER INSERT ON notes BEGIN
    INSERT INTO notes_fts (rowid, bottleneck, method, plan, expected)
    VALUES (new.number, new.bottleneck, new.method, new.plan, new.expected);
END;
"""
# A candidate stands by its ruling evaluation: the latest decisive one (a confirmation, a refusal on its merits, or one
# that was quarantined afterwards); a search timing rules only while there is none. So a confirmation replaces the
# optimistic search timing that it confirms, and what a confirmation refused leaves the board.
VIEWS = """
CREATE VIEW judged AS
    SELECT evaluations.*, candidates.sha256 AS candidate, candidates.problem AS problem,
        candidates.backend AS backend, candidates.author AS author,
        EXISTS (SELECT 1 FROM quarantines WHERE quarantines.evaluation_id = evaluations.id) AS quarantined
    FROM evaluations JOIN candidates ON candidates.id = evaluations.candidate_id;

CREATE VIEW ruling AS
    SELECT * FROM (
        SELECT judged.*, row_number() OVER (
            PARTITION BY candidate_id, problem_version, environment_id
            ORDER BY confirmed OR quarantined OR status <> 'PASSED' DESC, id DESC
        ) AS precedence
        FROM judged
        WHERE control = 0 AND (
            quarantined
            OR (status = 'PASSED' AND latency_ms IS NOT NULL)
            OR status IN ('INCORRECT_SHAPE', 'INCORRECT_DTYPE', 'INCORRECT_NUMERICAL', 'REWARD_HACK', 'QUARANTINED')
        )
    ) WHERE precedence = 1;

CREATE VIEW leaderboard AS
    SELECT ruling.problem AS problem, ruling.environment_id AS environment_id, speedups.baseline AS baseline,
        row_number() OVER (
            PARTITION BY ruling.problem, ruling.environment_id, speedups.baseline
            -- confirmations first: the best of many search timings is too good to be true
            ORDER BY ruling.confirmed DESC, speedups.low DESC, ruling.id
        ) AS rank,
        speedups.median AS median, speedups.low AS low, speedups.high AS high, speedups.faster AS faster,
        ruling.latency_ms AS latency_ms, ruling.latency_low_ms AS latency_low_ms,
        ruling.latency_high_ms AS latency_high_ms, ruling.confirmed AS confirmed, ruling.stage AS stage,
        ruling.candidate AS candidate, ruling.backend AS backend, ruling.author AS author,
        ruling.id AS evaluation_id, ruling.run_id AS run_id, ruling.created_at AS created_at
    FROM ruling
    JOIN current_problems ON current_problems.version = ruling.problem_version
    JOIN speedups ON speedups.evaluation_id = ruling.id
    WHERE ruling.status = 'PASSED' AND NOT ruling.quarantined;

CREATE VIEW best_per_problem AS SELECT * FROM leaderboard WHERE rank = 1;

CREATE VIEW run_costs AS
    SELECT runs.id AS run_id, runs.seconds AS seconds, count(llm_calls.id) AS calls,
        CAST(total(llm_calls.input_tokens) AS INTEGER) AS input_tokens,
        CAST(total(llm_calls.output_tokens) AS INTEGER) AS output_tokens,
        total(llm_calls.cost_usd) AS known_cost_usd,
        count(llm_calls.id) - count(llm_calls.cost_usd) AS calls_of_unknown_cost,
        CASE WHEN count(llm_calls.id) = count(llm_calls.cost_usd) THEN total(llm_calls.cost_usd) END AS cost_usd,
        (SELECT count(*) FROM evaluations WHERE evaluations.run_id = runs.id) AS evaluations
    FROM runs LEFT JOIN llm_calls ON llm_calls.run_id = runs.id
    GROUP BY runs.id;

CREATE VIEW failure_taxonomy AS
    SELECT run_id, problem, backend, status, failed_stage,
        count(*) AS evaluations, count(DISTINCT candidate_id) AS candidates
    FROM judged WHERE status <> 'PASSED' AND control = 0
    GROUP BY run_id, problem, backend, status, failed_stage;
"""
APPEND_ONLY = (
    "blobs",
    "environments",
    "problems",
    "sources",
    "candidates",
    "lineage",
    "evaluations",
    "speedups",
    "timing_samples",
    "profiles",
    "llm_calls",
    "artifacts",
    "notes",
    "quarantines",
    "events",
)
# What a budget counts is one row for each time that a provider was asked. While it is open, and where it is booked
# since nobody knows what it cost, tokens and cost are what was reserved; where it is settled, what was used.
CALLS = """
ALTER TABLE llm_calls ADD COLUMN key TEXT;
ALTER TABLE llm_calls ADD COLUMN problem TEXT;
ALTER TABLE llm_calls ADD COLUMN sample INTEGER NOT NULL DEFAULT 0;
ALTER TABLE llm_calls ADD COLUMN attempt INTEGER NOT NULL DEFAULT 0;
ALTER TABLE llm_calls ADD COLUMN stop TEXT NOT NULL DEFAULT 'complete';
ALTER TABLE llm_calls ADD COLUMN cache_write_tokens INTEGER;
ALTER TABLE llm_calls ADD COLUMN reasoning_tokens INTEGER;
CREATE INDEX llm_calls_by_key ON llm_calls(key);

CREATE TABLE llm_requests (
    id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL REFERENCES runs(id),
    problem TEXT NOT NULL,
    step INTEGER NOT NULL,
    role TEXT NOT NULL,
    sample INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    try INTEGER NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    key TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'settled', 'booked', 'released')),
    outcome TEXT NOT NULL DEFAULT '',
    tokens INTEGER NOT NULL CHECK (tokens >= 0),
    cost_usd REAL CHECK (cost_usd >= 0),
    call_id TEXT REFERENCES llm_calls(id),
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
) STRICT;
CREATE INDEX llm_requests_by_run ON llm_requests(run_id);
CREATE TRIGGER llm_requests_refuse_delete BEFORE DELETE ON llm_requests
    BEGIN SELECT RAISE(ABORT, 'llm_requests are never removed'); END;
CREATE TRIGGER llm_requests_refuse_update BEFORE UPDATE ON llm_requests WHEN old.state <> 'open'
    BEGIN SELECT RAISE(ABORT, 'a request that was closed stays as it is'); END;

CREATE TABLE llm_uses (
    run_id TEXT NOT NULL REFERENCES runs(id),
    problem TEXT NOT NULL,
    step INTEGER NOT NULL,
    role TEXT NOT NULL,
    sample INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    call_id TEXT NOT NULL REFERENCES llm_calls(id),
    prompt_sha256 TEXT NOT NULL REFERENCES blobs(sha256),
    reused INTEGER NOT NULL CHECK (reused IN (0, 1)),
    created_at TEXT NOT NULL,
    PRIMARY KEY (run_id, problem, step, role, sample, attempt)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER llm_uses_refuse_update BEFORE UPDATE ON llm_uses
    BEGIN SELECT RAISE(ABORT, 'llm_uses is append-only'); END;
CREATE TRIGGER llm_uses_refuse_delete BEFORE DELETE ON llm_uses
    BEGIN SELECT RAISE(ABORT, 'llm_uses is append-only'); END;

DROP VIEW run_costs;
CREATE VIEW run_costs AS
    SELECT runs.id AS run_id, runs.seconds AS seconds, calls.calls AS calls,
        calls.input_tokens AS input_tokens, calls.output_tokens AS output_tokens,
        calls.cached_tokens AS cached_tokens, calls.reasoning_tokens AS reasoning_tokens,
        calls.cost_usd AS known_cost_usd, calls.unknown AS calls_of_unknown_cost,
        booked.requests AS booked_requests, booked.tokens AS booked_tokens, booked.cost_usd AS booked_cost_usd,
        (SELECT count(*) FROM llm_uses WHERE llm_uses.run_id = runs.id AND reused) AS reused_replies,
        CASE WHEN calls.unknown = 0 AND booked.unknown = 0 THEN calls.cost_usd + booked.cost_usd END AS cost_usd,
        (SELECT count(*) FROM evaluations WHERE evaluations.run_id = runs.id) AS evaluations
    FROM runs
    JOIN (
        SELECT runs.id AS run_id, count(llm_calls.id) AS calls,
            CAST(total(llm_calls.input_tokens) AS INTEGER) AS input_tokens,
            CAST(total(llm_calls.output_tokens) AS INTEGER) AS output_tokens,
            CAST(total(llm_calls.cached_tokens) AS INTEGER) AS cached_tokens,
            CAST(total(llm_calls.reasoning_tokens) AS INTEGER) AS reasoning_tokens,
            total(llm_calls.cost_usd) AS cost_usd,
            -- what arrived without its usage is booked below
            count(llm_calls.id) - count(llm_calls.cost_usd)
                - (SELECT count(*) FROM llm_requests WHERE llm_requests.run_id = runs.id
                    AND state = 'booked' AND call_id IS NOT NULL) AS unknown
        FROM runs LEFT JOIN llm_calls ON llm_calls.run_id = runs.id GROUP BY runs.id
    ) AS calls ON calls.run_id = runs.id
    JOIN (
        SELECT runs.id AS run_id, count(llm_requests.id) AS requests,
            CAST(total(llm_requests.tokens) AS INTEGER) AS tokens, total(llm_requests.cost_usd) AS cost_usd,
            count(llm_requests.id) - count(llm_requests.cost_usd) AS unknown
        FROM runs LEFT JOIN llm_requests ON llm_requests.run_id = runs.id AND state IN ('booked', 'open')
        GROUP BY runs.id
    ) AS booked ON booked.run_id = runs.id;
"""
GENERATORS = """
CREATE TABLE generators (
    problem_version TEXT NOT NULL REFERENCES problems(version),
    id TEXT NOT NULL,
    definition_json TEXT NOT NULL,
    author TEXT NOT NULL,
    evidence_json TEXT NOT NULL,
    created_at TEXT NOT NULL,
    PRIMARY KEY (problem_version, id)
) STRICT;
"""
# Until here every evaluation was of its problem's first variant, and said so nowhere. A variant has a problem id of its
# own, so that ranks by problem keep variants apart; kernels of different languages are ranked apart as well.
VARIANTS = """
ALTER TABLE problems ADD COLUMN variant INTEGER NOT NULL DEFAULT 0 CHECK (variant >= 0);
ALTER TABLE evaluations ADD COLUMN inputs TEXT NOT NULL DEFAULT '';

DROP VIEW best_per_problem;
DROP VIEW leaderboard;
DROP VIEW ruling;
DROP VIEW failure_taxonomy;
DROP VIEW judged;
CREATE VIEW judged AS
    SELECT evaluations.*, candidates.sha256 AS candidate, candidates.problem AS problem,
        candidates.backend AS backend, candidates.author AS author, problems.variant AS variant,
        EXISTS (SELECT 1 FROM quarantines WHERE quarantines.evaluation_id = evaluations.id) AS quarantined
    FROM evaluations
    JOIN candidates ON candidates.id = evaluations.candidate_id
    JOIN problems ON problems.version = evaluations.problem_version;

CREATE VIEW ruling AS
    SELECT * FROM (
        SELECT judged.*, row_number() OVER (
            PARTITION BY candidate_id, problem_version, environment_id
            ORDER BY confirmed OR quarantined OR status <> 'PASSED' DESC, id DESC
        ) AS precedence
        FROM judged
        WHERE control = 0 AND (
            quarantined
            OR (status = 'PASSED' AND latency_ms IS NOT NULL)
            OR status IN ('INCORRECT_SHAPE', 'INCORRECT_DTYPE', 'INCORRECT_NUMERICAL', 'REWARD_HACK', 'QUARANTINED')
        )
    ) WHERE precedence = 1;

CREATE VIEW leaderboard AS
    SELECT ruling.problem AS problem, ruling.environment_id AS environment_id, speedups.baseline AS baseline,
        row_number() OVER (
            PARTITION BY ruling.problem, ruling.backend, ruling.environment_id, speedups.baseline
            -- confirmations first: the best of many search timings is too good to be true
            ORDER BY ruling.confirmed DESC, speedups.low DESC, ruling.id
        ) AS rank,
        speedups.median AS median, speedups.low AS low, speedups.high AS high, speedups.faster AS faster,
        ruling.latency_ms AS latency_ms, ruling.latency_low_ms AS latency_low_ms,
        ruling.latency_high_ms AS latency_high_ms, ruling.confirmed AS confirmed, ruling.stage AS stage,
        ruling.candidate AS candidate, ruling.backend AS backend, ruling.author AS author,
        ruling.id AS evaluation_id, ruling.run_id AS run_id, ruling.created_at AS created_at,
        ruling.variant AS variant, ruling.inputs AS inputs
    FROM ruling
    JOIN current_problems ON current_problems.version = ruling.problem_version
    JOIN speedups ON speedups.evaluation_id = ruling.id
    WHERE ruling.status = 'PASSED' AND NOT ruling.quarantined;

CREATE VIEW best_per_problem AS SELECT * FROM leaderboard WHERE rank = 1;

CREATE VIEW failure_taxonomy AS
    SELECT run_id, problem, backend, status, failed_stage,
        count(*) AS evaluations, count(DISTINCT candidate_id) AS candidates
    FROM judged WHERE status <> 'PASSED' AND control = 0
    GROUP BY run_id, problem, backend, status, failed_stage;
"""
SAMPLES = """
CREATE TABLE samples (
    run_id TEXT NOT NULL REFERENCES runs(id),
    problem TEXT NOT NULL,
    number INTEGER NOT NULL CHECK (number >= 0),
    candidate_id TEXT REFERENCES candidates(id),
    reason TEXT NOT NULL DEFAULT '',
    claimed_json TEXT,
    created_at TEXT NOT NULL,
    PRIMARY KEY (run_id, problem, number),
    CHECK (candidate_id IS NOT NULL OR reason <> '')
) STRICT, WITHOUT ROWID;
"""
# What follows the last slash of a recipe.
RECIPE = "json_extract(config_json, '$.recipe')"
RECIPE_FILE = f"substr({RECIPE}, length(rtrim({RECIPE}, replace({RECIPE}, '/', ''))) + 1)"
# A text that was removed to save space: its row stays, with its hash and its size, and is empty.
REMOVED = (
    "CREATE TABLE removed (sha256 TEXT PRIMARY KEY REFERENCES blobs(sha256) DEFERRABLE INITIALLY DEFERRED, "
    "created_at TEXT NOT NULL) STRICT, WITHOUT ROWID",
    "DROP TRIGGER blobs_refuse_update",
    "CREATE TRIGGER blobs_refuse_update BEFORE UPDATE ON blobs WHEN old.sha256 NOT IN (SELECT sha256 FROM removed) "
    "BEGIN SELECT RAISE(ABORT, 'blobs is append-only'); END",
)
