CREATE TABLE operation_key (
    key TEXT NOT NULL,
    part TEXT NOT NULL,
    request TEXT NOT NULL,
    answer TEXT NOT NULL,
    step_id TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (key, part)
) WITHOUT ROWID;

CREATE INDEX operation_key_by_age ON operation_key (at);
