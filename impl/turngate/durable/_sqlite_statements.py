"""The statements of a ledger in SQLite. The scripts in `sql/sqlite/` create its tables.

Every step takes the next number. It serves as fence, as first version of a session and as position, so none
of these ever comes again. Steps are saved one after another, so the order of the numbers is the order of the
commits, and a reader that goes on behind the highest number it has seen misses nothing. The last number is
that of the last step in `history`. A process that keeps no history, and a purge, write it into `meta`.
"""

from __future__ import annotations

from typing import Final

STEP: Final = 2**20
"""The position of a message is the number of its step times this, plus its place in the step."""
NUMBER: Final = "SELECT max(number, (SELECT coalesce(max(position), 0) FROM history)) FROM meta"
KEEP_NUMBER: Final = "UPDATE meta SET number = ?"
SESSION: Final = """
    SELECT token, version, next_seq, mark, queued, lead, owner, fence, covered, begun, attempts, since,
        recent, owner IN (SELECT worker FROM worker)
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
KNOWN: Final = f"SELECT {_RUN}, {_COMPLETE}, position FROM run WHERE run_id = ?"
LIVES: Final = "SELECT 1 FROM worker WHERE worker = ?"
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
KEY: Final = "SELECT key, part, request, answer, step_id FROM operation_key WHERE key = ? AND part = ?"
_PUT_KEY: Final = "INTO operation_key (key, part, request, answer, step_id, at) VALUES (?, ?, ?, ?, ?, ?)"
PUT_KEY: Final = f"INSERT {_PUT_KEY}"
KEEP_KEY: Final = f"INSERT OR IGNORE {_PUT_KEY}"
HAS_OLD_KEYS: Final = "SELECT 1 FROM operation_key WHERE at < ? LIMIT 1"
EXPIRE_KEYS: Final = """
    DELETE FROM operation_key
    WHERE (key, part) IN (SELECT key, part FROM operation_key WHERE at < ? ORDER BY at LIMIT ?)
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
TURNS_OF: Final = f"SELECT session_id, fence, covered, version FROM session WHERE {_WITH_TURN} AND owner = ?"
IN_FLIGHT: Final = "SELECT DISTINCT session_id FROM run WHERE state <> 'complete' ORDER BY 1"
COMPLETIONS_AFTER: Final = f"""
    SELECT position, ordinal, {_COMPLETE} FROM run
    WHERE position IS NOT NULL AND (position, ordinal) > (?, ?)
    ORDER BY position, ordinal LIMIT ?
"""
HISTORY_AFTER: Final = (
    "SELECT position, session_id, entries FROM history WHERE position > ? ORDER BY position LIMIT ?"
)
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

EPOCH: Final = "SELECT name FROM epoch ORDER BY number DESC LIMIT 1"
PUT_EPOCH: Final = "INSERT INTO epoch (name, first) VALUES (?, ?)"
END_OF: Final = """
    SELECT (SELECT min(later.first) FROM epoch later WHERE later.number > epoch.number)
    FROM epoch WHERE name = ?
"""
LAST_EPOCH: Final = "SELECT number, name FROM epoch ORDER BY number DESC LIMIT 1"
GOES_ON: Final = """
    SELECT (EXISTS (SELECT 1 FROM epoch WHERE name = ?) OR (SELECT min(number) FROM epoch) > ?)
        AND NOT EXISTS (SELECT 1 FROM epoch WHERE number > ? AND first <= ?)
"""
"""Whether an epoch is still there, or was purged, and none that came later began before a number."""

PURGE_IN_FLIGHT: Final = "SELECT DISTINCT session_id, accepted_at < ? FROM run WHERE state <> 'complete'"
PURGE_LOOK: Final = """
    SELECT position, ordinal, run_id, session_id, message_id, accepted_at < ?, completed_at < ? FROM run
    WHERE position IS NOT NULL AND (position, ordinal) > (?, ?) ORDER BY position, ordinal LIMIT ?
"""
PURGE_MESSAGES: Final = "DELETE FROM message WHERE position BETWEEN ? AND ? AND +turn = ?"
PURGE_RUNS: Final = "DELETE FROM run WHERE run_id = ? AND position = ?"
PURGED: Final = """
    UPDATE meta SET purged = :position, purged_ordinal = :ordinal
    WHERE (purged, purged_ordinal) < (:position, :ordinal)
"""
PURGE_LOOK_AT_SESSIONS: Final = """
    SELECT session_id, version FROM session WHERE session_id > ? AND lead IS NULL ORDER BY session_id LIMIT ?
"""
PURGE_NEW_RUNS: Final = """
    SELECT session_id FROM run WHERE state <> 'complete'
    UNION ALL SELECT session_id FROM run WHERE position IS NOT NULL AND position > ?
"""
PURGE_SESSIONS: Final = "DELETE FROM session WHERE session_id = ? AND version = ? AND lead IS NULL"
PURGE_LOOK_AT_HISTORY: Final = """
    SELECT position, 0, session_id, at FROM history WHERE position > ? ORDER BY position LIMIT ?
"""
PURGE_REST: Final = (
    """
    DELETE FROM checkpoint WHERE NOT EXISTS (
        SELECT 1 FROM session WHERE session.session_id = checkpoint.session_id AND lead IS NOT NULL)
    """,
    # All cursors of these epochs are before the last purged place. The newest epochs stay in any case.
    """
    DELETE FROM epoch WHERE number < (SELECT max(epoch.number) FROM epoch, meta WHERE first <= purged)
        AND number < (SELECT max(number) - 1000 FROM epoch)
    """,
)
