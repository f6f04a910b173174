-- An epoch begins whenever the ledger is opened. Cursors name the epoch that they were given in, and an epoch that
-- was lost (an older copy of the database was restored) is not here.
CREATE TABLE {s}.epoch (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    first bigint NOT NULL
);

INSERT INTO {s}.epoch (name, first) SELECT name, 0 FROM {s}.meta;

-- The last completion that was purged is at (purged, purged_ordinal), the last step of the history that was purged
-- at (forgotten, forgotten_ordinal).
--
-- A position is the id of a transaction plus the shift. Where the ledger was restored in a database with lower
-- ids, the shift makes new positions higher than all that are stored; everything below settled is there to be
-- read, whichever transactions are still running. The home is the database that the shift is right for.
ALTER TABLE {s}.meta
    ADD COLUMN purged_ordinal int NOT NULL DEFAULT 2147483647,
    ADD COLUMN forgotten bigint NOT NULL DEFAULT -1,
    ADD COLUMN forgotten_ordinal int NOT NULL DEFAULT 2147483647,
    ADD COLUMN shift bigint NOT NULL DEFAULT 0,
    ADD COLUMN settled bigint NOT NULL DEFAULT 0,
    ADD COLUMN home text;

CREATE OR REPLACE FUNCTION {s}.save(
    by_worker bigint, wanted int, sessions text[], accepted text[], moved text[], done text[],
    said text[], told text[],
    OUT alive boolean, OUT at_position bigint, OUT saved int[], OUT numbers bigint[]
) LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $save$
DECLARE
    s text[];
    at timestamptz := clock_timestamp();  -- the runs of a turn are complete at the same time
BEGIN
    at_position := pg_current_xact_id()::text::bigint + (SELECT m.shift FROM {s}.meta m WHERE m.one = 1);
    saved := '{}';
    numbers := '{}';
    alive := EXISTS (
        SELECT FROM {s}.worker w WHERE w.worker = by_worker AND w.expires > clock_timestamp());
    IF NOT alive THEN
        RETURN;
    END IF;
    FOREACH s SLICE 1 IN ARRAY sessions LOOP  -- number, whether it is new, run that is new, id, columns
        CONTINUE WHEN s[3] IS NOT NULL AND EXISTS (SELECT FROM {s}.run r WHERE r.run_id = s[3]);
        IF s[2]::boolean THEN
            INSERT INTO {s}.session (session_id, token, version, next_seq, mark, queued, lead,
                owner, fence, covered, begun, attempts, since, recent)
            VALUES (s[4], s[5]::text, s[6]::bigint, s[7]::bigint, s[8]::bigint, s[9]::bigint,
                s[10]::text, s[11]::bigint, s[12]::bigint, s[13]::boolean, s[14]::boolean,
                s[15]::int, s[16]::float8, s[17]::text) ON CONFLICT DO NOTHING;
        ELSE
            UPDATE {s}.session o SET (token, version, next_seq, mark, queued, lead, owner, fence,
                covered, begun, attempts, since, recent) = ROW (s[5]::text, s[6]::bigint,
                s[7]::bigint, s[8]::bigint, s[9]::bigint, s[10]::text, s[11]::bigint, s[12]::bigint,
                s[13]::boolean, s[14]::boolean, s[15]::int, s[16]::float8, s[17]::text)
            WHERE o.session_id = s[4] AND o.token = s[5] AND o.version = s[6]::bigint - 1;
        END IF;
        CONTINUE WHEN NOT FOUND;
        saved := saved || s[1]::int;
    END LOOP;
    IF cardinality(accepted) > 0 THEN
        INSERT INTO {s}.run (run_id, session_id, seq, state, when_busy, covered, holder, place, prompt,
            attachments, digest)
        SELECT accepted[j][2]::text, accepted[j][3]::text, accepted[j][4]::bigint, accepted[j][5]::text,
            accepted[j][6]::text, accepted[j][7]::boolean, accepted[j][8]::bigint, accepted[j][9]::int,
            accepted[j][10]::text, accepted[j][11]::text, accepted[j][12]::text FROM
            generate_subscripts(accepted, 1) j WHERE accepted[j][1]::int = ANY (saved);
    END IF;
    IF cardinality(moved) > 0 THEN
        UPDATE {s}.run r SET (state, covered, place) = ROW (u.state, u.covered, u.place)
        FROM (
            SELECT moved[j][2] AS run_id, moved[j][3] AS state, moved[j][4]::boolean AS covered,
                moved[j][5]::int AS place
            FROM generate_subscripts(moved, 1) j WHERE moved[j][1]::int = ANY (saved)
        ) u WHERE r.run_id = u.run_id;
    END IF;
    IF cardinality(done) > 0 THEN
        UPDATE {s}.run r SET
            state = 'complete', prompt = '', attachments = '', text = u.text, error = u.error,
            cancelled = u.cancelled, message_id = u.message_id, folded_into = u.folded_into,
            outcome = u.outcome, completed_at = at, "position" = at_position,
            ordinal = u.ordinal
        FROM (
            SELECT done[j][2] AS run_id, done[j][3] AS text, done[j][4] AS error,
                done[j][5]::boolean AS cancelled, done[j][6] AS message_id, done[j][7] AS folded_into,
                done[j][8] AS outcome, j AS ordinal
            FROM generate_subscripts(done, 1) j WHERE done[j][1]::int = ANY (saved)
        ) u WHERE r.run_id = u.run_id;
    END IF;
    IF cardinality(said) > 0 THEN
        INSERT INTO {s}.message (id, session_id, run_id, role, text, finish_reason, data, turn)
        SELECT said[j][2]::text, said[j][3]::text, said[j][4]::text, said[j][5]::text, said[j][6]::text,
            said[j][7]::text, said[j][8]::text, said[j][9]::text FROM generate_subscripts(said, 1) j
            WHERE said[j][1]::int = ANY (saved);
    END IF;
    IF cardinality(told) > 0 THEN
        INSERT INTO {s}.history ("position", ordinal, session_id, entries)
        SELECT at_position, j, told[j][2], told[j][3] FROM generate_subscripts(told, 1) j WHERE
            told[j][1]::int = ANY (saved);
    END IF;
    IF wanted > 0 THEN
        numbers := ARRAY(SELECT nextval('{s}.number') FROM generate_series(1, wanted));
    END IF;
END
$save$;

CREATE OR REPLACE FUNCTION {s}.save_plain(
    by_worker bigint, wanted int, of_session text, its_token text, its_version bigint, its_next_seq bigint,
        its_mark bigint, its_queued bigint, its_lead text, its_owner bigint, its_fence bigint, its_covered
        boolean, its_begun boolean, its_attempts int, its_since float8, its_recent text,
    new_run_id text, new_session_id text, new_seq bigint, new_state text, new_when_busy text, new_covered
        boolean, new_holder bigint, new_place int, new_prompt text, new_attachments text, new_digest text,
        done_run text, done_text text, done_error text, done_cancelled boolean, done_message_id text,
        done_folded_into text, done_outcome text,
    said text[], told text,
    OUT alive boolean, OUT at_position bigint, OUT saved int[], OUT numbers bigint[]
) LANGUAGE plpgsql SET enable_seqscan = off AS $save$
BEGIN
    at_position := pg_current_xact_id()::text::bigint + (SELECT m.shift FROM {s}.meta m WHERE m.one = 1);
    alive := true;
    saved := '{}';
    numbers := '{}';
    UPDATE {s}.session o SET (token, version, next_seq, mark, queued, lead, owner, fence, covered, begun,
        attempts, since, recent) = ROW (its_token, its_version, its_next_seq, its_mark, its_queued,
        its_lead, its_owner, its_fence, its_covered, its_begun, its_attempts, its_since, its_recent)
    WHERE o.session_id = of_session AND o.token = its_token AND o.version = its_version - 1 AND EXISTS (
        SELECT FROM {s}.worker w WHERE w.worker = by_worker AND w.expires > clock_timestamp());
    IF NOT FOUND THEN
        alive := EXISTS (
            SELECT FROM {s}.worker w WHERE w.worker = by_worker AND w.expires > clock_timestamp());
        RETURN;
    END IF;
    saved := '{0}';
    IF new_run_id IS NOT NULL THEN
        INSERT INTO {s}.run (run_id, session_id, seq, state, when_busy, covered, holder, place, prompt,
            attachments, digest) VALUES (new_run_id, new_session_id, new_seq, new_state, new_when_busy,
            new_covered, new_holder, new_place, new_prompt, new_attachments, new_digest);
    END IF;
    IF done_run IS NOT NULL THEN
        UPDATE {s}.run r SET
            (text, error, cancelled, message_id, folded_into, outcome) = ROW (done_text, done_error,
                done_cancelled, done_message_id, done_folded_into, done_outcome), state =
                'complete', prompt = '',
            attachments = '', completed_at = clock_timestamp(), "position" = at_position, ordinal = 1
        WHERE r.run_id = done_run;
    END IF;
    IF said IS NOT NULL THEN
        INSERT INTO {s}.message (id, session_id, run_id, role, text, finish_reason, data, turn)
        SELECT said[j][1]::text, said[j][2]::text, said[j][3]::text, said[j][4]::text, said[j][5]::text,
            said[j][6]::text, said[j][7]::text, said[j][8]::text FROM generate_subscripts(said, 1) j;
    END IF;
    IF told IS NOT NULL THEN
        INSERT INTO {s}.history ("position", ordinal, session_id, entries)
        VALUES (at_position, 1, of_session, told);
    END IF;
    IF wanted > 0 THEN
        numbers := ARRAY(SELECT nextval('{s}.number') FROM generate_series(1, wanted));
    END IF;
END
$save$;
