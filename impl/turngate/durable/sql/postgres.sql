-- The statements of a ledger in PostgreSQL. `{s}` is its schema, whose tables the scripts in
-- `postgres/` create.
--
-- Positions. Transactions commit in another order than they take numbers from a sequence, so a reader that goes
-- on behind the highest number it has seen would miss late commits. Therefore a step's position is the id of its
-- transaction (xid8, which does not wrap), and a reader stops before the oldest transaction that is still
-- running (`pg_snapshot_xmin`): everything below it is visible, or was rolled back. Steps of one session follow
-- each other, so their positions grow. The price is that a transaction that is left open anywhere in the cluster
-- holds readers back, though nothing else.
--
-- A step may be saved after its worker was declared dead, because reading the worker's row takes no lock (READ
-- COMMITTED). That does no harm: what the worker owned gets another fence. Version and fence carry the promises;
-- the lease only saves useless attempts.

-- Opening.

-- name: lock
SELECT pg_advisory_xact_lock(hashtextextended('turngate ' || $1::text, 7))

-- name: lock_shared
-- Waits until no process is opening the ledger.
SELECT pg_advisory_xact_lock_shared(hashtextextended('turngate ' || $1::text, 7))

-- name: has_version
SELECT to_regclass('{s}.schema_version') IS NOT NULL

-- name: encoding
SELECT current_database(), current_setting('server_encoding')

-- name: may_make
-- Whether the schema exists, whether this role may create or change it, and whether it may use it.
SELECT n.oid IS NOT NULL,
    coalesce(
        pg_has_role(n.nspowner, 'USAGE') OR has_schema_privilege(n.oid, 'CREATE'),
        has_database_privilege(current_database(), 'CREATE')
    ),
    has_schema_privilege(n.oid, 'USAGE')
FROM (SELECT $1::text AS name) this LEFT JOIN pg_namespace n ON n.nspname = this.name

-- name: missing_privileges
-- Sequences of identity columns need no privilege of their own.
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

-- name: missing_to_restore
SELECT 'UPDATE on sequence ' || n.nspname || '.' || c.relname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname IN ('number', 'worker_worker_seq')
    AND CASE c.relkind WHEN 'S' THEN NOT has_sequence_privilege(c.oid, 'UPDATE') END
ORDER BY 1

-- name: has_schema
SELECT to_regnamespace($1::text) IS NOT NULL

-- name: make_version
CREATE TABLE IF NOT EXISTS {s}.schema_version (version int NOT NULL)

-- name: version
SELECT coalesce(max(version), 0) FROM {s}.schema_version

-- name: put_version
INSERT INTO {s}.schema_version VALUES ($1)

-- name: has_ordinals
SELECT EXISTS (
    SELECT FROM pg_attribute
    WHERE attrelid = to_regclass($1::text || '.history') AND attname = 'ordinal' AND NOT attisdropped)

-- name: give_ordinals
-- The first ledgers of version 1 were made before several steps could share a position.
ALTER TABLE {s}.history ADD COLUMN ordinal int NOT NULL DEFAULT 1;
ALTER TABLE {s}.history ALTER COLUMN ordinal DROP DEFAULT;
ALTER TABLE {s}.history DROP CONSTRAINT history_pkey, ADD PRIMARY KEY ("position", ordinal)

-- name: home
-- The database, and the tables of this schema: those of a dump that is restored are new ones.
SELECT oid || ':' || '{s}.meta'::regclass::oid FROM pg_database WHERE datname = current_database()

-- name: may_see_system
SELECT has_function_privilege('pg_control_system()', 'EXECUTE')

-- name: system
SELECT system_identifier::text FROM pg_control_system()

-- name: stored
-- The last stored position, the id of this transaction, and how positions are computed from ids.
SELECT greatest(
    (SELECT max("position") FROM {s}.run), (SELECT max("position") FROM {s}.history), m.purged,
    m.forgotten, (SELECT max(first) - 1 FROM {s}.epoch)
), pg_current_xact_id()::text::bigint, m.shift, m.settled, m.home
FROM {s}.meta m

-- name: leave_behind
-- For a restored ledger: names of workers and fences that were used elsewhere are not used again.
DELETE FROM {s}.worker;
SELECT setval(name, nextval(name) + (2 ^ 40 * (1 + random()))::bigint)
FROM pg_get_serial_sequence('{s}.worker', 'worker') name;
SELECT setval('{s}.number', nextval('{s}.number') + 4294967296)

-- name: put_home
UPDATE {s}.meta SET shift = $1, settled = $2, home = $3

-- name: put_epoch
INSERT INTO {s}.epoch (name, first) VALUES ($1, $2)

-- name: epoch
SELECT name FROM {s}.epoch ORDER BY number DESC LIMIT 1

-- name: epoch_end
SELECT coalesce(
    (SELECT min(later.first) FROM {s}.epoch later WHERE later.number > e.number),
    pg_snapshot_xmax(pg_current_snapshot())::text::bigint + m.shift
) FROM {s}.epoch e, {s}.meta m WHERE e.name = $1

-- Positions and time.

-- name: horizon
-- Of the row `m` of `meta`.
greatest(pg_snapshot_xmin(pg_current_snapshot())::text::bigint + m.shift, m.settled)

-- name: now
extract(epoch FROM clock_timestamp())::float8

-- Steps.

-- name: loaded
-- What a step sees of a session: $1 runs of the queue that may start, all of it if that is null; the run $2; with the text if $3.
this.session_id, {now},
(SELECT json_build_array({session_columns}) FROM {s}.session o WHERE o.session_id = this.session_id),
(SELECT json_agg(json_build_array({run_columns})) FROM {s}.run r
 WHERE r.session_id = this.session_id AND r.state IN ('accepted', 'active') AND r.state <> 'complete'),
(SELECT json_agg(json_build_array({run_columns})) FROM (
    SELECT * FROM (
        SELECT * FROM {s}.run r WHERE r.session_id = this.session_id AND r.state = 'queued'
            AND r.state <> 'complete' AND r.held <= ($1::bigint IS NULL) AND r.bound = ''
            ORDER BY r.held, r.rank LIMIT $1::bigint
    ) free
    UNION SELECT * FROM {s}.run r WHERE r.session_id = this.session_id AND r.bound <> '' AND r.state = 'queued'
 ) head),
(SELECT json_build_array({run_columns}, {complete_columns}, "position") FROM {s}.run r WHERE r.run_id = $2::text),
EXISTS (SELECT FROM {s}.session o JOIN {s}.worker w ON o.owner = w.worker
        WHERE o.session_id = this.session_id AND w.expires > clock_timestamp()),
(SELECT json_build_array(c.text, c.kept) FROM {s}.session o JOIN {s}.checkpoint c USING (session_id, fence)
 WHERE $3::boolean AND o.session_id = this.session_id)

-- name: load
SELECT nextval('{s}.number'), {loaded} FROM (SELECT $4::text AS session_id) this

-- name: view
SELECT 0::bigint, {loaded} FROM (SELECT $4::text AS session_id) this

-- name: view_all
SELECT 0::bigint, {loaded} FROM (SELECT DISTINCT session_id FROM {s}.run WHERE state <> 'complete') this
ORDER BY this.session_id

-- name: save
SELECT alive, at_position, saved, numbers FROM {s}.save($1, $2, $3, $4, $5, $6, $7, $8)

-- name: save_keyed
SELECT alive, at_position, saved, numbers FROM {s}.save_keyed(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13
)

-- Keys.

-- name: key
SELECT {key_columns} FROM {s}.operation_key WHERE key = $1 AND part = $2

-- name: keep_key
INSERT INTO {s}.operation_key ({key_columns}) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT DO NOTHING

-- name: has_old_keys
SELECT 1 FROM {s}.operation_key WHERE at < clock_timestamp() - $1 * interval '1 second' LIMIT 1

-- name: expire_keys
WITH gone AS (
    DELETE FROM {s}.operation_key WHERE (key, part) IN (
        SELECT key, part FROM {s}.operation_key WHERE at < clock_timestamp() - $1 * interval '1 second'
        ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED)
    RETURNING 1
)
SELECT count(*) FROM gone

-- Workers.

-- name: hint
SELECT pg_notify(channel, '') FROM unnest($1::text[]) channel

-- name: say
SELECT pg_notify($1, message) FROM unnest($2::text[]) message

-- name: register
INSERT INTO {s}.worker (expires) VALUES (clock_timestamp() + $1 * interval '1 second') RETURNING worker

-- name: beat
UPDATE {s}.worker SET expires = clock_timestamp() + $2 * interval '1 second'
WHERE worker = $1 AND expires > clock_timestamp() RETURNING worker

-- name: retire
DELETE FROM {s}.worker WHERE worker = $1

-- name: expire_workers
DELETE FROM {s}.worker WHERE expires < clock_timestamp()

-- name: with_turn
session_id IN (SELECT session_id FROM {s}.run WHERE state = 'active' AND state <> 'complete')

-- name: dead
SELECT session_id FROM {s}.session o
WHERE {with_turn} AND owner IS NOT NULL AND NOT EXISTS (
    SELECT FROM {s}.worker w WHERE w.worker = o.owner AND w.expires > clock_timestamp())
ORDER BY random() LIMIT $1

-- name: unowned
SELECT session_id FROM {s}.session WHERE {with_turn} AND owner IS NULL ORDER BY random() LIMIT $1

-- name: unentered
SELECT session_id, run_id FROM {s}.run r
WHERE state = 'accepted' AND (accepted_at < clock_timestamp() - $2 * interval '1 second' OR NOT EXISTS (
    SELECT FROM {s}.worker w WHERE w.worker = r.holder AND w.expires > clock_timestamp()))
ORDER BY accepted_at LIMIT $1

-- name: turns_of
SELECT session_id, fence, covered, version FROM {s}.session WHERE {with_turn} AND owner = $1

-- Reading.

-- name: known
SELECT {run_columns}, {complete_columns}, "position" FROM {s}.run WHERE run_id = ANY($1::text[])

-- name: snapshot
SELECT pg_current_snapshot()::text, shift, settled FROM {s}.meta

-- name: completions_after
-- One row without a completion if there is none.
SELECT m.purged, m.purged_ordinal, {horizon}, page.* FROM {s}.meta m LEFT JOIN LATERAL (
    SELECT "position", ordinal, {complete_columns} FROM {s}.run
    WHERE "position" IS NOT NULL AND ("position", ordinal) > ($1, $2) AND "position" < {horizon}
    ORDER BY "position", ordinal LIMIT $3) page ON true
ORDER BY page."position", page.ordinal

-- name: history_after
SELECT m.forgotten, m.forgotten_ordinal, {horizon}, page.* FROM {s}.meta m LEFT JOIN LATERAL (
    SELECT "position", ordinal, session_id, entries, extract(epoch FROM at)::float8 FROM {s}.history
    WHERE ("position", ordinal) > ($1, $2) AND "position" < {horizon}
    ORDER BY "position", ordinal LIMIT $3) page ON true
ORDER BY page."position", page.ordinal

-- Beside the steps.

-- name: checkpoint
INSERT INTO {s}.checkpoint AS c
SELECT * FROM json_to_recordset($1::json) AS u (session_id text, fence bigint, text text, kept text)
ON CONFLICT (session_id) DO UPDATE SET fence = excluded.fence, text = excluded.text, kept = excluded.kept
WHERE excluded.fence >= c.fence

-- name: messages
SELECT {message_columns} FROM {s}.message WHERE session_id = $1 AND "position" > $2
ORDER BY "position" LIMIT $3

-- name: message_at
SELECT "position" FROM {s}.message WHERE session_id = $1 AND id = $2

-- name: messages_of
SELECT {message_columns} FROM {s}.message
WHERE turn = (SELECT message_id FROM {s}.run WHERE run_id = $1) ORDER BY "position"

-- Purging.

-- name: purge_in_flight
SELECT DISTINCT session_id, accepted_at < to_timestamp($1) FROM {s}.run WHERE state <> 'complete'

-- name: purge_look_at_runs
SELECT r."position", r.ordinal, r.run_id, r.session_id, r.accepted_at < to_timestamp($1),
    r.completed_at < to_timestamp($1)
FROM {s}.meta m, LATERAL (
    SELECT * FROM {s}.run
    WHERE "position" IS NOT NULL AND ("position", ordinal) > ($2, $3) AND "position" < {horizon}
    ORDER BY "position", ordinal LIMIT $4) r
ORDER BY 1, 2

-- name: purge_runs
WITH gone AS (
    DELETE FROM {s}.run WHERE run_id = ANY($1::text[]) AND "position" BETWEEN $4 AND $2 RETURNING message_id
), unsaid AS (
    DELETE FROM {s}.message WHERE turn IN (SELECT message_id FROM gone)
), noted AS (
    UPDATE {s}.meta SET purged = $2, purged_ordinal = $3 WHERE (purged, purged_ordinal) < ($2, $3)
)
SELECT count(*) FROM gone

-- name: purge_look_at_sessions
SELECT session_id, version FROM {s}.session WHERE session_id > $1 AND lead IS NULL
ORDER BY session_id LIMIT $2

-- name: purge_sessions
-- A session that takes a step meanwhile has another version.
DELETE FROM {s}.session o USING unnest($1::text[], $2::bigint[]) u (session_id, version)
WHERE o.session_id = u.session_id AND o.version = u.version AND o.lead IS NULL AND NOT EXISTS (
    SELECT FROM {s}.run r WHERE r.state <> 'complete' AND r.session_id = o.session_id
) AND NOT EXISTS (
    SELECT FROM {s}.run r
    WHERE r."position" IS NOT NULL AND r."position" > $3 AND r.session_id = o.session_id
)

-- name: purge_look_at_history
SELECT h."position", h.ordinal, h.session_id, extract(epoch FROM h.at)::float8
FROM {s}.meta m, LATERAL (
    SELECT * FROM {s}.history WHERE ("position", ordinal) > ($1, $2) AND "position" < {horizon}
    ORDER BY "position", ordinal LIMIT $3) h
ORDER BY 1, 2

-- name: purge_history
WITH noted AS (
    UPDATE {s}.meta SET forgotten = $3, forgotten_ordinal = $4
    WHERE (forgotten, forgotten_ordinal) < ($3, $4)
)
DELETE FROM {s}.history h USING unnest($1::bigint[], $2::int[]) u ("position", ordinal)
WHERE h."position" = u."position" AND h.ordinal = u.ordinal

-- name: purge_checkpoints
DELETE FROM {s}.checkpoint c WHERE NOT EXISTS (
    SELECT FROM {s}.session o WHERE o.session_id = c.session_id AND o.lead IS NOT NULL)

-- name: purge_epochs
-- All cursors of these epochs are before the last purged place. The newest epochs stay in any case.
DELETE FROM {s}.epoch WHERE number < (
    SELECT max(e.number) FROM {s}.epoch e, {s}.meta m WHERE e.first <= m.purged
) AND number < (SELECT max(number) - 1000 FROM {s}.epoch)
