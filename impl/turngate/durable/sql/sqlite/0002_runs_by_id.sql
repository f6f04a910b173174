CREATE TABLE run_by_id (
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
) WITHOUT ROWID;

INSERT INTO run_by_id SELECT * FROM run;
DROP TABLE run;
ALTER TABLE run_by_id RENAME TO run;
CREATE UNIQUE INDEX run_in_flight ON run (state, session_id, seq) WHERE state <> 'complete';
CREATE INDEX run_accepted ON run (accepted_at) WHERE state = 'accepted';
CREATE UNIQUE INDEX run_in_order ON run (position, ordinal) WHERE position IS NOT NULL;

CREATE TABLE message_by_step (
    position INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    session_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    role TEXT NOT NULL,
    text TEXT NOT NULL,
    finish_reason TEXT,
    data TEXT,
    turn TEXT NOT NULL
);

INSERT INTO message_by_step
SELECT run.position * 1048576 + row_number() OVER (PARTITION BY run.position ORDER BY message.position),
    id, message.session_id, run_id, role, message.text, finish_reason, data, turn
FROM message JOIN run USING (run_id);

DROP TABLE message;
ALTER TABLE message_by_step RENAME TO message;
CREATE INDEX message_of_session ON message (session_id, position);
DROP INDEX IF EXISTS session_with_turn;
