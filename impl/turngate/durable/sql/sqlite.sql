-- The statements of a ledger in SQLite, whose tables the scripts in `sqlite/` create.
--
-- Every step takes the next number. It serves as fence, as first version of a session and as position, so none of
-- these ever comes again. Steps are saved one after another, so the order of the numbers is the order of the commits,
-- and a reader that goes on behind the highest number it has seen misses nothing. The last number is that of the last
-- step in `history`; a purge writes it into `meta`. (A process of an older turngate may keep no history, and does so
-- with every step.)
--
-- A list is given as JSON. A name may have several statements, which are executed in one transaction.

-- name: now
-- Seconds since 1970.
(julianday('now') - 2440587.5) * 86400.0

-- name: last_number
(SELECT max(number, (SELECT coalesce(max(position), 0) FROM history)) FROM meta)

-- name: number
SELECT {last_number}

-- Steps.

-- name: begin_step
-- The number before that of the step, and whether the worker that takes it counts as alive.
SELECT {last_number}, EXISTS (SELECT 1 FROM worker WHERE worker = $1)

-- name: session
SELECT {session_columns}, owner IN (SELECT worker FROM worker) FROM session WHERE session_id = ?

-- name: runs
SELECT {run_columns} FROM run WHERE session_id = ? AND state = 'accepted' AND state <> 'complete'
UNION ALL
SELECT {run_columns} FROM run WHERE session_id = ? AND state = 'active' AND state <> 'complete'

-- name: queue
-- The first waiting runs that are neither held nor for the active turn alone, all runs if the limit is -1, and those
-- for the active turn alone, which end with it and must not take the place of its successor.
SELECT * FROM (
    SELECT {run_columns} FROM run
    WHERE session_id = $1 AND state = 'queued' AND state <> 'complete' AND held <= ($2 < 0) AND bound = ''
    ORDER BY held, rank LIMIT $2
)
UNION SELECT {run_columns} FROM run WHERE session_id = $1 AND bound <> '' AND state = 'queued'

-- name: text
SELECT text, kept FROM checkpoint WHERE session_id = ? AND fence = ?

-- name: run
SELECT {run_columns}, {complete_columns}, position FROM run WHERE run_id = ?

-- name: in_flight
SELECT DISTINCT session_id FROM run WHERE state <> 'complete' ORDER BY 1

-- name: put_session
INSERT OR REPLACE INTO session (session_id, {session_columns}) VALUES (?, {session_values})

-- name: put_run
INSERT INTO run ({run_columns}, accepted_at) VALUES ({run_values}, ?)

-- name: move_run
UPDATE run SET state = ?, covered = ?, place = ?, when_busy = ?, rank = ?, held = ?, bound = ?,
    prompt = coalesce(?, prompt), attachments = coalesce(?, attachments), data = coalesce(?, data)
WHERE run_id = ?

-- name: complete_run
UPDATE run SET state = 'complete', prompt = '', attachments = '', data = '', bound = '', held = 0, text = ?, error = ?, cancelled = ?,
    message_id = ?, folded_into = ?, outcome = ?, completed_at = ?, position = ?, ordinal = ?
WHERE run_id = ? AND state <> 'complete'

-- name: put_message
-- The position of a message is the number of its step times 2 ^ 20, plus its place in the step.
INSERT INTO message (position, {message_columns}, turn) VALUES (? * 1048576 + ?, {message_values}, ?)

-- name: put_history
INSERT INTO history VALUES (?, ?, ?, ?)

-- name: put_key
INSERT INTO operation_key ({key_columns}, at) VALUES ({key_values}, ?)

-- Workers.

-- name: register
INSERT INTO worker (name) VALUES ($1);
SELECT last_insert_rowid()

-- name: rename_worker
UPDATE worker SET name = $1 WHERE worker = $2

-- name: retire
DELETE FROM worker WHERE worker = $1

-- name: workers
SELECT worker, name FROM worker

-- name: expire_worker
-- A worker that has made a new lock meanwhile has another name.
DELETE FROM worker WHERE worker = $1 AND name = $2

-- name: with_turn
session_id IN (SELECT session_id FROM run WHERE state = 'active' AND state <> 'complete')

-- name: dead
SELECT session_id FROM session
WHERE {with_turn} AND owner IS NOT NULL AND owner NOT IN (SELECT worker FROM worker) LIMIT $1

-- name: unowned
SELECT session_id FROM session WHERE {with_turn} AND owner IS NULL LIMIT $1

-- name: unentered
SELECT session_id, run_id FROM run
WHERE state = 'accepted' AND (accepted_at < {now} - $2 OR holder NOT IN (SELECT worker FROM worker))
ORDER BY accepted_at LIMIT $1

-- name: turns_of
SELECT session_id, fence, covered, version FROM session WHERE {with_turn} AND owner = $1

-- Reading.

-- name: known
SELECT {run_columns}, {complete_columns}, position FROM run WHERE run_id IN (SELECT value FROM json_each($1))

-- name: completions_after
-- One row without a completion if there is none.
SELECT purged, purged_ordinal, {last_number} + 1, page.* FROM meta LEFT JOIN (
    SELECT position, ordinal, {complete_columns} FROM run
    WHERE position IS NOT NULL AND (position, ordinal) > ($1, $2) ORDER BY position, ordinal LIMIT $3) page
ORDER BY position, ordinal

-- name: history_after
SELECT forgotten, 0, {last_number} + 1, page.* FROM meta LEFT JOIN (
    SELECT position, 0, session_id, entries, at FROM history
    WHERE position > $1 ORDER BY position LIMIT $3) page
ORDER BY position

-- name: epoch
SELECT name FROM epoch ORDER BY number DESC LIMIT 1

-- name: epoch_end
SELECT coalesce((SELECT min(later.first) FROM epoch later WHERE later.number > epoch.number), {last_number} + 1)
FROM epoch WHERE name = $1

-- name: put_epoch
INSERT INTO epoch (name, first) VALUES ($1, {last_number} + 1)

-- name: last_epoch
SELECT number, name FROM epoch ORDER BY number DESC LIMIT 1

-- name: goes_on
-- Whether an epoch is still there, or was purged, and none that came later began before a number.
SELECT (EXISTS (SELECT 1 FROM epoch WHERE name = $1) OR (SELECT min(number) FROM epoch) > $2)
    AND NOT EXISTS (SELECT 1 FROM epoch WHERE number > $2 AND first <= $3)

-- name: messages
SELECT {message_columns} FROM message WHERE session_id = $1 AND position > $2
ORDER BY position LIMIT coalesce($3, -1)

-- name: message_at
SELECT position FROM message WHERE session_id = $1 AND id = $2

-- name: messages_of
SELECT {message_columns} FROM message JOIN (
    SELECT position * 1048576 AS first, message_id FROM run WHERE run_id = $1
) ON position BETWEEN first AND first + 1048575 AND turn = message_id ORDER BY position

-- Beside the steps.

-- name: checkpoint
INSERT INTO checkpoint (session_id, fence, text, kept)
SELECT json_extract(value, '$.session_id'), json_extract(value, '$.fence'), json_extract(value, '$.text'),
    json_extract(value, '$.kept')
FROM json_each($1) WHERE true
ON CONFLICT (session_id) DO UPDATE SET fence = excluded.fence, text = excluded.text, kept = excluded.kept
WHERE excluded.fence >= checkpoint.fence

-- name: key
SELECT {key_columns} FROM operation_key WHERE key = $1 AND part = $2

-- name: keep_key
INSERT OR IGNORE INTO operation_key ({key_columns}, at) VALUES ($1, $2, $3, $4, $5, {now})

-- name: has_old_keys
SELECT 1 FROM operation_key WHERE at < {now} - $1 LIMIT 1

-- name: expire_keys
DELETE FROM operation_key
WHERE (key, part) IN (SELECT key, part FROM operation_key WHERE at < {now} - $1 ORDER BY at LIMIT $2);
SELECT changes()

-- Purging.

-- name: purge_in_flight
SELECT DISTINCT session_id, accepted_at < $1 FROM run WHERE state <> 'complete'

-- name: purge_look_at_runs
SELECT position, ordinal, run_id, session_id, accepted_at < $1, completed_at < $1 FROM run
WHERE position IS NOT NULL AND (position, ordinal) > ($2, $3) ORDER BY position, ordinal LIMIT $4

-- name: purge_runs
DELETE FROM message WHERE position BETWEEN $4 * 1048576 AND $2 * 1048576 + 1048575 AND turn IN (
    SELECT message_id FROM run WHERE run_id IN (SELECT value FROM json_each($1)) AND position BETWEEN $4 AND $2);
UPDATE meta SET purged = $2, purged_ordinal = $3 WHERE (purged, purged_ordinal) < ($2, $3);
DELETE FROM run WHERE run_id IN (SELECT value FROM json_each($1)) AND position BETWEEN $4 AND $2;
SELECT changes()

-- name: purge_look_at_sessions
SELECT session_id, version FROM session WHERE session_id > $1 AND lead IS NULL ORDER BY session_id LIMIT $2

-- name: purge_sessions
DELETE FROM session WHERE session_id IN (SELECT value FROM json_each($1)) AND lead IS NULL AND session_id NOT IN (
    SELECT session_id FROM run WHERE state <> 'complete'
    UNION ALL SELECT session_id FROM run WHERE position IS NOT NULL AND position > $3)

-- name: purge_look_at_history
SELECT position, 0, session_id, at FROM history WHERE position > $1 ORDER BY position LIMIT $3

-- name: purge_history
UPDATE meta SET number = {last_number}, forgotten = max(forgotten, $3);
DELETE FROM history WHERE position IN (SELECT value FROM json_each($1))

-- name: purge_checkpoints
DELETE FROM checkpoint WHERE NOT EXISTS (
    SELECT 1 FROM session WHERE session.session_id = checkpoint.session_id AND lead IS NOT NULL)

-- name: purge_epochs
-- All cursors of these epochs are before the last purged place. The newest epochs stay in any case.
DELETE FROM epoch WHERE number < (SELECT max(epoch.number) FROM epoch, meta WHERE first <= purged)
    AND number < (SELECT max(number) - 1000 FROM epoch)
