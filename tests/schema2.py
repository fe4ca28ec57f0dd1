"""The tables as schema version 2 made them, word for word."""

from __future__ import annotations

VERSION = 2

SCHEMA = (
    "CREATE TABLE scenarios (name TEXT PRIMARY KEY, created_at REAL NOT NULL)",
    """CREATE TABLE records (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        scenario TEXT NOT NULL REFERENCES scenarios,
        request_type TEXT NOT NULL  -- inference | report
    )""",
    "CREATE INDEX records_by_scenario ON records (scenario, seq)",
    """CREATE TABLE exchanges (
        seq INTEGER PRIMARY KEY REFERENCES records,
        receipt TEXT NOT NULL UNIQUE,
        scenario TEXT NOT NULL,
        session TEXT,
        prompt_ids BLOB NOT NULL,  -- int32
        output_ids BLOB NOT NULL,  -- int32
        logprobs BLOB NOT NULL,    -- float64, NaN: none
        spans TEXT NOT NULL,       -- [[version, start, end], …]
        sampling TEXT NOT NULL,
        finish_reason TEXT NOT NULL,
        text TEXT NOT NULL,
        created_at REAL NOT NULL,
        tags TEXT NOT NULL,
        trainable INTEGER NOT NULL,
        why_not TEXT,
        reported INTEGER NOT NULL DEFAULT 0,
        claim TEXT                 -- the one report that trains on it
    )""",
    "CREATE INDEX open_exchanges ON exchanges (seq) WHERE reported = 0 AND trainable = 1",
    """CREATE TABLE reports (
        seq INTEGER PRIMARY KEY REFERENCES records,
        id TEXT NOT NULL UNIQUE,
        scenario TEXT NOT NULL,
        score REAL NOT NULL,
        feedback TEXT NOT NULL,
        metadata TEXT NOT NULL,
        created_at REAL NOT NULL,
        fingerprint TEXT NOT NULL,
        trains INTEGER NOT NULL,   -- as answered
        state TEXT NOT NULL,       -- queued | leased | trained | dropped | recorded
        reason TEXT,               -- why it does not train
        step INTEGER,              -- the step that holds or trained it
        release_id TEXT,
        prompt_group TEXT          -- Sample.group of a report that trains
    )""",
    "CREATE INDEX reports_by_state ON reports (state, reason)",
    "CREATE INDEX queued_reports ON reports (seq) WHERE state = 'queued'",
    "CREATE INDEX taken_by_step ON reports (step, seq) WHERE state IN ('leased', 'trained')",
    "CREATE INDEX taken_by_prompt ON reports (prompt_group, step, seq) WHERE state IN ('leased', 'trained')",
    """CREATE TABLE report_references (
        report TEXT NOT NULL,
        position INTEGER NOT NULL,
        receipt TEXT NOT NULL,
        PRIMARY KEY (report, position)
    ) WITHOUT ROWID""",
    "CREATE INDEX references_by_receipt ON report_references (receipt)",
    """CREATE TABLE releases (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        release_id TEXT NOT NULL UNIQUE,
        scenario TEXT NOT NULL,
        step INTEGER NOT NULL,
        operation TEXT NOT NULL,
        current INTEGER NOT NULL,
        parent_release_id TEXT,
        weight_version TEXT NOT NULL,
        arm TEXT NOT NULL,
        created_at REAL NOT NULL,
        receipts TEXT NOT NULL,
        metrics TEXT NOT NULL,
        checkpoint TEXT,
        digest TEXT NOT NULL,
        lineage INTEGER NOT NULL   -- 0 from the base on; a rollback starts the next
    )""",
    "CREATE UNIQUE INDEX one_current ON releases (scenario) WHERE current = 1",
    "CREATE INDEX releases_by_version ON releases (weight_version, seq)",
)
