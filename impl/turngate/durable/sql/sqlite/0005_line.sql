-- Waiting runs are in line by their ranks, and may be held. A run may be for one turn alone (bound to its lead), and
-- has data for the runner. Empty texts stand for nothing.
ALTER TABLE run ADD COLUMN data TEXT NOT NULL DEFAULT '';
ALTER TABLE run ADD COLUMN rank INTEGER NOT NULL DEFAULT 0;
ALTER TABLE run ADD COLUMN held INTEGER NOT NULL DEFAULT 0;
ALTER TABLE run ADD COLUMN bound TEXT NOT NULL DEFAULT '';
UPDATE run SET rank = seq WHERE state <> 'complete';
DROP INDEX run_in_flight;
CREATE INDEX run_in_flight ON run (state, session_id, held, rank) WHERE state <> 'complete';
CREATE INDEX run_bound ON run (session_id) WHERE bound <> '';
