-- An epoch begins whenever the ledger is opened. Cursors name the epoch that they were given in, and an epoch that
-- was lost (an older copy of the file was put in place) is not here.
CREATE TABLE epoch (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    first INTEGER NOT NULL
);

INSERT INTO epoch (number, name, first) SELECT 1, name, 0 FROM meta;

-- The last completion that was purged is at (purged, purged_ordinal), the last step of the history that was
-- purged at forgotten.
ALTER TABLE meta ADD COLUMN purged_ordinal INTEGER NOT NULL DEFAULT 2147483647;
ALTER TABLE meta ADD COLUMN forgotten INTEGER NOT NULL DEFAULT 0;
