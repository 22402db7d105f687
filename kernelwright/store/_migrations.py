"""The schema as numbered migrations. A migration that was released is never edited: write the next one.

Evidence (candidates, evaluations and all that hangs on them) is append-only, and triggers hold to it. Runs, the
states of their problems and steps, and which version of a problem is current are the only rows that change.
"""

from __future__ import annotations

from sqlite_utils import Database, Migrations

from kernelwright.store._schema import (
    APPEND_ONLY,
    CALLS,
    GENERATORS,
    RECIPE,
    RECIPE_FILE,
    REMOVED,
    SAMPLES,
    SEARCH,
    TABLES,
    VARIANTS,
    VIEWS,
)
from kernelwright.store._standings import REBUILD, STANDINGS, UNDO

MIGRATIONS = Migrations("kernelwright")
APPLICATION_ID = 0x6B777273  # "kwrs", in the header of every store


def m001_tables(db: Database) -> None:
    """Tables, indexes, and the marker in the file's header by which a store is known."""
    db.executescript(TABLES)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def m002_append_only(db: Database) -> None:
    """Triggers that refuse to change or remove evidence."""
    for table in APPEND_ONLY:
        for verb in ("UPDATE", "DELETE"):
            db.execute(
                f"CREATE TRIGGER {table}_refuse_{verb.lower()} BEFORE {verb} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )


def m003_search(db: Database) -> None:
    """Full-text search over sources and notes."""
    db.executescript(SEARCH)


def m004_views(db: Database) -> None:
    """The views that boards and reports read."""
    db.executescript(VIEWS)


def m005_kernel_resources(db: Database) -> None:
    """What kernels take of a GPU, beside a profile's metrics."""
    db.execute("ALTER TABLE profiles ADD COLUMN kernels_json TEXT NOT NULL DEFAULT '[]'")


def m006_model_calls(db: Database) -> None:
    """Replies that are found again by what was asked; every request with what it was reserved, used or booked for."""
    db.executescript(CALLS)


def m007_generators(db: Database) -> None:
    """A problem's archive: generators of inputs on which candidates are checked besides the fixed distributions."""
    db.executescript(GENERATORS)
    for verb in ("UPDATE", "DELETE"):
        db.execute(
            f"CREATE TRIGGER generators_refuse_{verb.lower()} BEFORE {verb} ON generators "
            "BEGIN SELECT RAISE(ABORT, 'generators is append-only'); END"
        )


def m008_purposes(db: Database) -> None:
    """Why a candidate was judged (first of all, or again beside others, or merely again), and what made it."""
    db.execute(
        "ALTER TABLE evaluations ADD COLUMN purpose TEXT NOT NULL DEFAULT 'search' "
        "CHECK (purpose IN ('search', 'contest', 'remeasure'))"
    )
    db.execute("ALTER TABLE evaluations ADD COLUMN action_json TEXT NOT NULL DEFAULT '{}'")


def m009_variants(db: Database) -> None:
    """Which variant of its problem an evaluation timed, and its inputs in words; ranks by language as well."""
    db.executescript(VARIANTS)


def m010_insights(db: Database) -> None:
    """What a Judge found out beside its advice."""
    db.execute("ALTER TABLE notes ADD COLUMN insights_json TEXT NOT NULL DEFAULT '[]'")


def m011_samples(db: Database) -> None:
    """Independent answers to a problem, by number, judged or not; what somebody else's evaluation said of them."""
    db.executescript(SAMPLES)
    for verb in ("UPDATE", "DELETE"):
        db.execute(
            f"CREATE TRIGGER samples_refuse_{verb.lower()} BEFORE {verb} ON samples "
            "BEGIN SELECT RAISE(ABORT, 'samples is append-only'); END"
        )


def m012_standings(db: Database) -> None:
    """Tables from which boards of any size are read at once, kept by triggers; the views read them."""
    db.executescript(STANDINGS)
    for statement in REBUILD:
        db.execute(statement)


def m013_eligible(db: Database) -> None:
    """Kernels that libraries work for stand apart; nothing is to be done where the tables were made in this form."""
    if "eligible" in {column.name for column in db["standings"].columns}:
        return
    db.executescript(UNDO)
    m012_standings(db)


def m014_recipe_files(db: Database) -> None:
    """A recipe that was read from a file is known by the file's name, and by no folder of its machine."""
    named = f"json_set(config_json, '$.recipe', {RECIPE_FILE})"
    changed = db.execute(f"UPDATE runs SET config_json = {named} WHERE {RECIPE} LIKE '%/%.toml'")
    if changed.rowcount:
        for statement in REBUILD:
            db.execute(statement)


def m015_removed(db: Database) -> None:
    """Texts may be removed; what refers to them stays."""
    for statement in REMOVED:
        db.execute(statement)


def m016_step_states(db: Database) -> None:
    """States of unfinished steps, which were in a file beside the store before.

    One row for each entry of a list of the state; the rest of the state is the row of the part "".
    """
    db.execute(
        "CREATE TABLE steps (run_id TEXT NOT NULL REFERENCES runs(id), problem TEXT NOT NULL, part TEXT NOT NULL, "
        "number INTEGER NOT NULL CHECK (number >= 0), content_json TEXT NOT NULL, "
        "PRIMARY KEY (run_id, problem, part, number)) STRICT, WITHOUT ROWID"
    )


STEPS = (
    m001_tables,
    m002_append_only,
    m003_search,
    m004_views,
    m005_kernel_resources,
    m006_model_calls,
    m007_generators,
    m008_purposes,
    m009_variants,
    m010_insights,
    m011_samples,
    m012_standings,
    m013_eligible,
    m014_recipe_files,
    m015_removed,
    m016_step_states,
)
for _step in STEPS:
    MIGRATIONS()(_step)
