"""The tables of a ledger in SQLite, and what is asked of them.

A number is counted up by every step, for everything that must never come again: fences, first versions,
positions. Steps are saved one after another, so the order of the numbers is the order of the commits, and a
reader who goes by the highest one that it has seen misses nothing. The last number is that of the last step
in `history`, where that is kept; a process that does not keep it, and a purge, write it into `meta`.
"""

from __future__ import annotations

from typing import Final

STEP: Final = 2**20
"""The positions of messages are that far apart from step to step: a step's number, and then their order."""
_RUN_TABLE: Final = """
    run_id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    state TEXT NOT NULL,
    when_busy TEXT NOT NULL,
    covered INTEGER NOT NULL,
    holder INTEGER NOT NULL,
    place INTEGER NOT NULL,
    prompt TEXT NOT NULL,
    attachments TEXT NOT NULL,
    digest TEXT NOT NULL,
    accepted_at REAL NOT NULL,
    completed_at REAL,
    text TEXT,
    error TEXT,
    cancelled INTEGER,
    message_id TEXT,
    folded_into TEXT,
    outcome TEXT,
    position INTEGER,
    ordinal INTEGER
"""
_RUN_INDEXES: Final = (
    "CREATE UNIQUE INDEX run_in_flight ON run (state, session_id, seq) WHERE state <> 'complete'",
    "CREATE INDEX run_accepted ON run (accepted_at) WHERE state = 'accepted'",
    "CREATE UNIQUE INDEX run_in_order ON run (position, ordinal) WHERE position IS NOT NULL",
)
_MESSAGE_TABLE: Final = """
    position INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    session_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    role TEXT NOT NULL,
    text TEXT NOT NULL,
    finish_reason TEXT,
    data TEXT,
    turn TEXT NOT NULL
"""
_MESSAGE_OF_SESSION: Final = "CREATE INDEX message_of_session ON message (session_id, position)"

#: The statements that lead from each `user_version` to the next.
MIGRATIONS: Final = (
    (
        """
        CREATE TABLE meta (
            one INTEGER PRIMARY KEY CHECK (one = 1),
            name TEXT NOT NULL,
            number INTEGER NOT NULL,
            purged INTEGER NOT NULL
        )
        """,
        "CREATE TABLE worker (worker INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL)",
        """
        CREATE TABLE session (
            session_id TEXT PRIMARY KEY,
            token TEXT NOT NULL,
            version INTEGER NOT NULL,
            next_seq INTEGER NOT NULL,
            mark INTEGER NOT NULL,
            queued INTEGER NOT NULL,
            lead TEXT,
            owner INTEGER,
            fence INTEGER NOT NULL,
            covered INTEGER NOT NULL,
            begun INTEGER NOT NULL,
            attempts INTEGER NOT NULL,
            since REAL,
            recent TEXT NOT NULL
        ) WITHOUT ROWID
        """,
        f"CREATE TABLE run ({_RUN_TABLE})",
        *_RUN_INDEXES,
        f"CREATE TABLE message ({_MESSAGE_TABLE})",
        _MESSAGE_OF_SESSION,
        "CREATE INDEX message_of_turn ON message (turn, position)",
        """
        CREATE TABLE history (
            position INTEGER PRIMARY KEY, session_id TEXT NOT NULL, entries TEXT NOT NULL, at REAL NOT NULL
        )
        """,
        """
        CREATE TABLE checkpoint (
            session_id TEXT PRIMARY KEY, fence INTEGER NOT NULL, text TEXT NOT NULL, kept TEXT
        ) WITHOUT ROWID
        """,
    ),
    (
        # A run is in one tree, not in a table and the index of its key.
        f"CREATE TABLE run_by_id ({_RUN_TABLE}) WITHOUT ROWID",
        "INSERT INTO run_by_id SELECT * FROM run",
        "DROP TABLE run",
        "ALTER TABLE run_by_id RENAME TO run",
        *_RUN_INDEXES,
        # The messages of a turn are found by the step that wrote them.
        f"CREATE TABLE message_by_step ({_MESSAGE_TABLE})",
        f"""
        INSERT INTO message_by_step
        SELECT
            run.position * {STEP} + row_number() OVER (PARTITION BY run.position ORDER BY message.position),
            id, message.session_id, run_id, role, message.text, finish_reason, data, turn
        FROM message JOIN run USING (run_id)
        """,
        "DROP TABLE message",
        "ALTER TABLE message_by_step RENAME TO message",
        _MESSAGE_OF_SESSION,
        "DROP INDEX IF EXISTS session_with_turn",
    ),
)

NUMBER: Final = "SELECT max(number, (SELECT coalesce(max(position), 0) FROM history)) FROM meta"
KEEP_NUMBER: Final = "UPDATE meta SET number = ?"
NAMED: Final = "INSERT OR IGNORE INTO meta VALUES (1, ?, 0, 0)"
SESSION: Final = """
    SELECT token, version, next_seq, mark, queued, lead, owner, fence, covered, begun, attempts, since, recent
    FROM session WHERE session_id = ?
"""
_RUN: Final = """
    run_id, session_id, seq, state, when_busy, covered, holder, place, prompt, attachments, digest
"""
_COMPLETE: Final = "session_id, run_id, seq, text, error, cancelled, message_id, folded_into, outcome"
RUNS: Final = f"""
    SELECT {_RUN} FROM run WHERE session_id = :session_id AND state = 'accepted' AND state <> 'complete'
    UNION ALL
    SELECT {_RUN} FROM run WHERE session_id = :session_id AND state = 'active' AND state <> 'complete'
"""
QUEUE: Final = f"""
    SELECT {_RUN} FROM run WHERE session_id = ? AND state = 'queued' AND state <> 'complete'
    ORDER BY seq LIMIT ?
"""
KNOWN: Final = f"SELECT {_RUN}, {_COMPLETE} FROM run WHERE run_id = ?"
IS_KNOWN: Final = "SELECT 1 FROM run WHERE run_id = ?"
LIVES: Final = "SELECT count(*) FROM worker WHERE worker = ?"
TEXT: Final = "SELECT text, kept FROM checkpoint WHERE session_id = ? AND fence = ?"

PUT_SESSION: Final = """
    INSERT OR REPLACE INTO session
        (session_id, token, version, next_seq, mark, queued, lead, owner, fence, covered, begun, attempts,
         since, recent)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
PUT_RUN: Final = f"""
    INSERT INTO run ({_RUN}, accepted_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
MOVE_RUN: Final = "UPDATE run SET state = ?, covered = ?, place = ? WHERE run_id = ?"
COMPLETE_RUN: Final = """
    UPDATE run SET state = 'complete', prompt = '', attachments = '', text = ?, error = ?, cancelled = ?,
        message_id = ?, folded_into = ?, outcome = ?, completed_at = ?, position = ?, ordinal = ?
    WHERE run_id = ? AND state <> 'complete'
"""
PUT_MESSAGE: Final = """
    INSERT INTO message (position, id, session_id, run_id, role, text, finish_reason, data, turn)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
PUT_HISTORY: Final = "INSERT INTO history VALUES (?, ?, ?, ?)"

_WITH_TURN: Final = """
    session_id IN (SELECT session_id FROM run WHERE state = 'active' AND state <> 'complete')
"""
DEAD: Final = f"""
    SELECT session_id FROM session
    WHERE {_WITH_TURN} AND owner IS NOT NULL AND owner NOT IN (SELECT worker FROM worker)
    LIMIT ?
"""
UNOWNED: Final = f"SELECT session_id FROM session WHERE {_WITH_TURN} AND owner IS NULL LIMIT ?"
UNENTERED: Final = """
    SELECT session_id, run_id FROM run
    WHERE state = 'accepted' AND (accepted_at < ? OR holder NOT IN (SELECT worker FROM worker))
    ORDER BY accepted_at LIMIT ?
"""
MINE: Final = f"SELECT session_id, fence, covered, version FROM session WHERE {_WITH_TURN} AND owner = ?"
IN_FLIGHT: Final = "SELECT DISTINCT session_id FROM run WHERE state <> 'complete' ORDER BY 1"
FINISHED: Final = f"""
    SELECT position, ordinal, {_COMPLETE} FROM run
    WHERE position IS NOT NULL AND (position, ordinal) > (?, ?)
    ORDER BY position, ordinal LIMIT ?
"""
TOLD: Final = "SELECT position, session_id, entries FROM history WHERE position > ? ORDER BY position LIMIT ?"
PUT_CHECKPOINT: Final = """
    INSERT INTO checkpoint VALUES (?, ?, ?, ?)
    ON CONFLICT (session_id) DO UPDATE SET fence = excluded.fence, text = excluded.text, kept = excluded.kept
    WHERE excluded.fence >= checkpoint.fence
"""
_MESSAGE: Final = "id, session_id, run_id, role, text, finish_reason, data"
MESSAGES: Final = f"""
    SELECT {_MESSAGE} FROM message WHERE session_id = ? AND position > ? ORDER BY position LIMIT ?
"""
MESSAGE_AT: Final = "SELECT position FROM message WHERE session_id = ? AND id = ?"
MESSAGES_OF: Final = f"""
    SELECT {_MESSAGE} FROM message JOIN (
        SELECT position * {STEP} AS first, message_id FROM run WHERE run_id = ?
    ) ON position BETWEEN first AND first + {STEP - 1} AND turn = message_id ORDER BY position
"""

PURGED: Final = "SELECT max(position), count(*) FROM run WHERE position IS NOT NULL AND completed_at < ?"
PURGE: Final = (
    # The plus keeps SQLite from making an index on the turns of all messages.
    f"""
    DELETE FROM message WHERE position IN (
        SELECT message.position FROM run
        JOIN message ON message.position BETWEEN run.position * {STEP} AND run.position * {STEP} + {STEP - 1}
        WHERE run.completed_at < :before AND +message.turn = run.message_id
    )
    """,
    "DELETE FROM run WHERE completed_at < :before",
    """
    DELETE FROM session WHERE lead IS NULL AND session_id NOT IN (SELECT session_id FROM run)
    """,
    # What is left of a session's history begins with an accept.
    """
    DELETE FROM history
    WHERE at < :before AND session_id NOT IN (SELECT session_id FROM run WHERE accepted_at < :before)
    """,
    "DELETE FROM checkpoint WHERE session_id NOT IN (SELECT session_id FROM session WHERE lead IS NOT NULL)",
)
