CREATE TABLE meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    purged INTEGER NOT NULL
);

CREATE TABLE worker (worker INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL);

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
) WITHOUT ROWID;

CREATE TABLE run (
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
);

CREATE UNIQUE INDEX run_in_flight ON run (state, session_id, seq) WHERE state <> 'complete';
CREATE INDEX run_accepted ON run (accepted_at) WHERE state = 'accepted';
CREATE UNIQUE INDEX run_in_order ON run (position, ordinal) WHERE position IS NOT NULL;

CREATE TABLE message (
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

CREATE INDEX message_of_session ON message (session_id, position);
CREATE INDEX message_of_turn ON message (turn, position);

CREATE TABLE history (
    position INTEGER PRIMARY KEY, session_id TEXT NOT NULL, entries TEXT NOT NULL, at REAL NOT NULL
);

CREATE TABLE checkpoint (
    session_id TEXT PRIMARY KEY, fence INTEGER NOT NULL, text TEXT NOT NULL, kept TEXT
) WITHOUT ROWID;

INSERT INTO meta VALUES (1, lower(hex(randomblob(6))), 0, 0);
