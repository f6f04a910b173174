"""The statements of a ledger in PostgreSQL. `{s}` is its schema, whose tables `sql/postgres/` creates.

Positions. Transactions commit in another order than they take numbers from a sequence, so a reader that goes
on behind the highest number it has seen would miss late commits. Therefore a step's position is the id of its
transaction (xid8, which does not wrap), and a reader stops before the oldest transaction that is still
running (`pg_snapshot_xmin`): everything below it is visible, or was rolled back. Steps of one session follow
each other, so their positions grow. The price is that a transaction that is left open anywhere in the cluster
holds readers back, though nothing else.

A step may be saved after its worker was declared dead, because reading the worker's row takes no lock (READ
COMMITTED). That does no harm: what the worker owned gets another fence. Version and fence carry the promises;
the lease only saves useless attempts.
"""

from __future__ import annotations

from typing import Final

_SESSION: Final = """
    token, version, next_seq, mark, queued, lead, owner, fence, covered, begun, attempts, since, recent
"""
_RUN: Final = """
    run_id, session_id, seq, state, when_busy, covered, holder, place, prompt, attachments, digest
"""
_MESSAGE: Final = "id, session_id, run_id, role, text, finish_reason, data"


LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('turngate ' || $1::text, 7))"
LOCK_SHARED: Final = LOCK.replace("xact_lock(", "xact_lock_shared(")
"""Waits until no process is opening the ledger."""
HAS_VERSION: Final = "SELECT to_regclass('{s}.schema_version') IS NOT NULL"
ENCODING: Final = "SELECT current_database(), current_setting('server_encoding')"
MAY_MAKE: Final = """
    SELECT n.oid IS NOT NULL,
        coalesce(
            pg_has_role(n.nspowner, 'USAGE') OR has_schema_privilege(n.oid, 'CREATE'),
            has_database_privilege(current_database(), 'CREATE')
        ),
        has_schema_privilege(n.oid, 'USAGE')
    FROM (SELECT $1::text AS name) this LEFT JOIN pg_namespace n ON n.nspname = this.name
"""
"""Whether the schema exists, whether this role may create or change it, and whether it may use it."""
MISSING_PRIVILEGES: Final = """
    SELECT p || ' on table ' || n.nspname || '.' || c.relname
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace,
        unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p
    WHERE n.nspname = $1 AND c.relkind = 'r' AND (c.relname <> 'schema_version' OR p = 'SELECT')
        AND NOT has_table_privilege(c.oid, p)
    UNION ALL
    SELECT 'USAGE on sequence ' || n.nspname || '.' || c.relname
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND CASE c.relkind WHEN 'S' THEN NOT has_sequence_privilege(c.oid, 'USAGE') END
        AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'i')
    UNION ALL
    SELECT 'EXECUTE on function ' || n.nspname || '.' || f.proname
    FROM pg_proc f JOIN pg_namespace n ON n.oid = f.pronamespace
    WHERE n.nspname = $1 AND NOT has_function_privilege(f.oid, 'EXECUTE')
    ORDER BY 1
"""
"""Sequences of identity columns need no privilege of their own."""
MISSING_TO_RESTORE: Final = """
    SELECT 'UPDATE on sequence ' || n.nspname || '.' || c.relname
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relname IN ('number', 'worker_worker_seq')
        AND CASE c.relkind WHEN 'S' THEN NOT has_sequence_privilege(c.oid, 'UPDATE') END
    ORDER BY 1
"""
HAS_SCHEMA: Final = "SELECT to_regnamespace($1::text) IS NOT NULL"
MAKE_VERSION: Final = "CREATE TABLE IF NOT EXISTS {s}.schema_version (version int NOT NULL)"
VERSION: Final = "SELECT coalesce(max(version), 0) FROM {s}.schema_version"
PUT_VERSION: Final = "INSERT INTO {s}.schema_version VALUES ($1)"
HAS_ORDINALS: Final = """
    SELECT EXISTS (
        SELECT FROM pg_attribute
        WHERE attrelid = to_regclass($1::text || '.history') AND attname = 'ordinal' AND NOT attisdropped)
"""
GIVE_ORDINALS: Final = """
    ALTER TABLE {s}.history ADD COLUMN ordinal int NOT NULL DEFAULT 1;
    ALTER TABLE {s}.history ALTER COLUMN ordinal DROP DEFAULT;
    ALTER TABLE {s}.history DROP CONSTRAINT history_pkey, ADD PRIMARY KEY ("position", ordinal)
"""
"""The first ledgers of version 1 were made before several steps could share a position."""

HOME: Final = "SELECT oid::text FROM pg_database WHERE datname = current_database()"
MAY_SEE_SYSTEM: Final = "SELECT has_function_privilege('pg_control_system()', 'EXECUTE')"
SYSTEM: Final = "SELECT system_identifier::text FROM pg_control_system()"
STORED: Final = """
    SELECT greatest(
        (SELECT max("position") FROM {s}.run), (SELECT max("position") FROM {s}.history), m.purged,
        m.forgotten, (SELECT max(first) - 1 FROM {s}.epoch)
    ), pg_current_xact_id()::text::bigint, m.shift, m.settled, m.home
    FROM {s}.meta m
"""
"""The last stored position, the id of this transaction, and how positions are computed from ids."""
LEAVE_BEHIND: Final = (
    "DELETE FROM {s}.worker",
    """
    SELECT setval(name, nextval(name) + (2 ^ 40 * (1 + random()))::bigint)
    FROM pg_get_serial_sequence('{s}.worker', 'worker') name
    """,
    "SELECT setval('{s}.number', nextval('{s}.number') + 4294967296)",
)
"""For a restored ledger: names of workers and fences that were used elsewhere are not used again."""
PUT_HOME: Final = "UPDATE {s}.meta SET shift = $1, settled = $2, home = $3"
PUT_EPOCH: Final = "INSERT INTO {s}.epoch (name, first) VALUES ($1, $2)"
EPOCH: Final = "SELECT name FROM {s}.epoch ORDER BY number DESC LIMIT 1"
END_OF: Final = """
    SELECT coalesce(
        (SELECT min(later.first) FROM {s}.epoch later WHERE later.number > e.number),
        pg_snapshot_xmax(pg_current_snapshot())::text::bigint + m.shift
    ) FROM {s}.epoch e, {s}.meta m WHERE e.name = $1
"""

_COMPLETE: Final = "session_id, run_id, seq, text, error, cancelled, message_id, folded_into, outcome"
_HORIZON: Final = "greatest(pg_snapshot_xmin(pg_current_snapshot())::text::bigint + m.shift, m.settled)"
"""Of the row `m` of `meta`."""
_NOW: Final = "extract(epoch FROM clock_timestamp())::float8"

_LOADED: Final = f"""
    {_NOW},
    (SELECT json_build_array({_SESSION}) FROM {{s}}.session WHERE session_id = $1),
    (SELECT json_agg(json_build_array({_RUN})) FROM {{s}}.run
     WHERE session_id = $1 AND state IN ('accepted', 'active') AND state <> 'complete'),
    (SELECT json_agg(json_build_array({_RUN})) FROM (
        SELECT * FROM {{s}}.run WHERE session_id = $1 AND state = 'queued' AND state <> 'complete'
        ORDER BY seq LIMIT $2) head),
    (SELECT json_build_array({_RUN}, {_COMPLETE}, "position") FROM {{s}}.run WHERE run_id = $3),
    EXISTS (SELECT 1 FROM {{s}}.worker w JOIN {{s}}.session o ON o.owner = w.worker
            WHERE o.session_id = $1 AND w.expires > clock_timestamp()),
    (SELECT json_build_array(c.text, c.kept)
     FROM {{s}}.checkpoint c JOIN {{s}}.session o USING (session_id, fence)
     WHERE $4 AND o.session_id = $1)
"""
LOAD: Final = f"SELECT nextval('{{s}}.number'), {_LOADED}"
VIEW: Final = f"SELECT 0::bigint, {_LOADED}"
_OF_EACH: Final = (
    _LOADED.replace("$1", "flight.session_id")
    .replace("$2", "NULL")
    .replace("$3", "NULL")
    .replace("$4", "true")
)
VIEW_ALL: Final = f"""
    SELECT flight.session_id, 0::bigint, {_OF_EACH}
    FROM (SELECT DISTINCT session_id FROM {{s}}.run WHERE state <> 'complete') flight ORDER BY 1
"""

SAVE: Final = """
    SELECT alive, at_position, saved, numbers FROM {s}.save($1, $2, $3, $4, $5, $6, $7, $8)
"""

SAVE_KEYED: Final = """
    SELECT alive, at_position, saved, numbers FROM {s}.save_keyed(
        $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13
    )
"""
KEY: Final = "SELECT key, part, request, answer, step_id FROM {s}.operation_key WHERE key = $1 AND part = $2"
KEEP_KEY: Final = """
    INSERT INTO {s}.operation_key (key, part, request, answer, step_id) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT DO NOTHING
"""
EXPIRE_KEYS: Final = """
    WITH gone AS (
        DELETE FROM {s}.operation_key WHERE (key, part) IN (
            SELECT key, part FROM {s}.operation_key WHERE at < clock_timestamp() - $1 * interval '1 second'
            ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED)
        RETURNING 1
    )
    SELECT count(*) FROM gone
"""

HINT: Final = "SELECT pg_notify(channel, '') FROM unnest($1::text[]) channel"
SAY: Final = "SELECT pg_notify($1, message) FROM unnest($2::text[]) message"

REGISTER: Final = """
    INSERT INTO {s}.worker (expires) VALUES (clock_timestamp() + $1 * interval '1 second') RETURNING worker
"""
BEAT: Final = """
    UPDATE {s}.worker SET expires = clock_timestamp() + $2 * interval '1 second'
    WHERE worker = $1 AND expires > clock_timestamp() RETURNING worker
"""
RETIRE: Final = "DELETE FROM {s}.worker WHERE worker = $1"
EXPIRE_WORKERS: Final = "DELETE FROM {s}.worker WHERE expires < clock_timestamp()"
_WITH_TURN: Final = """
    session_id IN (SELECT session_id FROM {s}.run WHERE state = 'active' AND state <> 'complete')
"""
DEAD: Final = f"""
    SELECT session_id FROM {{s}}.session o
    WHERE {_WITH_TURN} AND owner IS NOT NULL AND NOT EXISTS (
        SELECT FROM {{s}}.worker w WHERE w.worker = o.owner AND w.expires > clock_timestamp())
    ORDER BY random() LIMIT $1
"""
UNOWNED: Final = f"""
    SELECT session_id FROM {{s}}.session WHERE {_WITH_TURN} AND owner IS NULL ORDER BY random() LIMIT $1
"""
UNENTERED: Final = """
    SELECT session_id, run_id FROM {s}.run r
    WHERE state = 'accepted' AND (accepted_at < clock_timestamp() - $2 * interval '1 second' OR NOT EXISTS (
        SELECT FROM {s}.worker w WHERE w.worker = r.holder AND w.expires > clock_timestamp()))
    ORDER BY accepted_at LIMIT $1
"""
TURNS_OF: Final = f"""
    SELECT session_id, fence, covered, version FROM {{s}}.session WHERE {_WITH_TURN} AND owner = $1
"""
KNOWN: Final = f"""
    SELECT {_RUN}, {_COMPLETE}, "position" FROM {{s}}.run WHERE run_id = ANY($1::text[])
"""
SNAPSHOT: Final = "SELECT pg_current_snapshot()::text, shift, settled FROM {s}.meta"
COMPLETIONS_AFTER: Final = f"""
    SELECT m.purged, m.purged_ordinal, {_HORIZON}, (
        SELECT json_agg(json_build_array("position", ordinal, {_COMPLETE})) FROM (
            SELECT * FROM {{s}}.run
            WHERE "position" IS NOT NULL AND ("position", ordinal) > ($1, $2) AND "position" < {_HORIZON}
            ORDER BY "position", ordinal LIMIT $3) page)
    FROM {{s}}.meta m
"""
HISTORY_AFTER: Final = f"""
    SELECT m.forgotten, m.forgotten_ordinal, {_HORIZON}, (
        SELECT json_agg(json_build_array("position", ordinal, session_id, entries)) FROM (
            SELECT * FROM {{s}}.history WHERE ("position", ordinal) > ($1, $2) AND "position" < {_HORIZON}
            ORDER BY "position", ordinal LIMIT $3) page)
    FROM {{s}}.meta m
"""
CHECKPOINT: Final = """
    INSERT INTO {s}.checkpoint AS c
    SELECT * FROM json_to_recordset($1::json) AS u (session_id text, fence bigint, text text, kept text)
    ON CONFLICT (session_id) DO UPDATE SET fence = excluded.fence, text = excluded.text, kept = excluded.kept
    WHERE excluded.fence >= c.fence
"""
MESSAGES: Final = f"""
    SELECT {_MESSAGE} FROM {{s}}.message WHERE session_id = $1 AND "position" > $2
    ORDER BY "position" LIMIT $3
"""
MESSAGE_AT: Final = 'SELECT "position" FROM {s}.message WHERE session_id = $1 AND id = $2'
MESSAGES_OF: Final = f"""
    SELECT {_MESSAGE} FROM {{s}}.message
    WHERE turn = (SELECT message_id FROM {{s}}.run WHERE run_id = $1) ORDER BY "position"
"""

PURGE_IN_FLIGHT: Final = """
    SELECT DISTINCT session_id, accepted_at < to_timestamp($1) FROM {s}.run WHERE state <> 'complete'
"""
PURGE_LOOK: Final = f"""
    SELECT r."position", r.ordinal, r.run_id, r.session_id, r.message_id, r.accepted_at < to_timestamp($1),
        r.completed_at < to_timestamp($1)
    FROM {{s}}.meta m, LATERAL (
        SELECT * FROM {{s}}.run
        WHERE "position" IS NOT NULL AND ("position", ordinal) > ($2, $3) AND "position" < {_HORIZON}
        ORDER BY "position", ordinal LIMIT $4) r
    ORDER BY 1, 2
"""
PURGE_RUNS: Final = """
    WITH gone AS (
        DELETE FROM {s}.run r USING unnest($1::text[], $2::bigint[]) u (run_id, "position")
        WHERE r.run_id = u.run_id AND r."position" = u."position" RETURNING r.message_id
    ), unsaid AS (
        DELETE FROM {s}.message WHERE turn IN (SELECT message_id FROM gone)
    ), noted AS (
        UPDATE {s}.meta SET purged = $3, purged_ordinal = $4 WHERE (purged, purged_ordinal) < ($3, $4)
    )
    SELECT count(*) FROM gone
"""
PURGE_LOOK_AT_SESSIONS: Final = """
    SELECT session_id, version FROM {s}.session WHERE session_id > $1 AND lead IS NULL
    ORDER BY session_id LIMIT $2
"""
PURGE_SESSIONS: Final = """
    DELETE FROM {s}.session o USING unnest($1::text[], $2::bigint[]) u (session_id, version)
    WHERE o.session_id = u.session_id AND o.version = u.version AND o.lead IS NULL AND NOT EXISTS (
        SELECT FROM {s}.run r WHERE r.state <> 'complete' AND r.session_id = o.session_id
    ) AND NOT EXISTS (
        SELECT FROM {s}.run r
        WHERE r."position" IS NOT NULL AND r."position" > $3 AND r.session_id = o.session_id
    )
"""
"""A session that takes a step meanwhile has another version."""
PURGE_LOOK_AT_HISTORY: Final = f"""
    SELECT h."position", h.ordinal, h.session_id, extract(epoch FROM h.at)::float8
    FROM {{s}}.meta m, LATERAL (
        SELECT * FROM {{s}}.history WHERE ("position", ordinal) > ($1, $2) AND "position" < {_HORIZON}
        ORDER BY "position", ordinal LIMIT $3) h
    ORDER BY 1, 2
"""
PURGE_HISTORY: Final = """
    WITH noted AS (
        UPDATE {s}.meta SET forgotten = $3, forgotten_ordinal = $4
        WHERE (forgotten, forgotten_ordinal) < ($3, $4)
    )
    DELETE FROM {s}.history h USING unnest($1::bigint[], $2::int[]) u ("position", ordinal)
    WHERE h."position" = u."position" AND h.ordinal = u.ordinal
"""
PURGE_REST: Final = (
    """
    DELETE FROM {s}.checkpoint c WHERE NOT EXISTS (
        SELECT FROM {s}.session o WHERE o.session_id = c.session_id AND o.lead IS NOT NULL)
    """,
    # All cursors of these epochs are before the last purged place. The newest epochs stay in any case.
    """
    DELETE FROM {s}.epoch WHERE number < (
        SELECT max(e.number) FROM {s}.epoch e, {s}.meta m WHERE e.first <= m.purged
    ) AND number < (SELECT max(number) - 1000 FROM {s}.epoch)
    """,
)
