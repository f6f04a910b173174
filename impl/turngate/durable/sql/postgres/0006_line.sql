-- Waiting runs are in line by their ranks, and may be held. A run may be for one turn alone (bound to its lead), and
-- has data for the runner. Empty texts stand for nothing. Processes of an earlier version go on: what they leave out
-- of the arrays is null.
ALTER TABLE {s}.run
    ADD COLUMN data text NOT NULL DEFAULT '',
    ADD COLUMN rank bigint NOT NULL DEFAULT 0,
    ADD COLUMN held boolean NOT NULL DEFAULT false,
    ADD COLUMN bound text NOT NULL DEFAULT '';
UPDATE {s}.run SET rank = seq WHERE state <> 'complete';
DROP INDEX {s}.run_in_flight;
CREATE INDEX run_in_flight ON {s}.run (state, session_id, held, rank) WHERE state <> 'complete';
CREATE INDEX run_bound ON {s}.run (session_id) WHERE bound <> '';

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
            attachments, digest, data, rank, held, bound)
        SELECT accepted[j][2]::text, accepted[j][3]::text, accepted[j][4]::bigint, accepted[j][5]::text,
            accepted[j][6]::text, accepted[j][7]::boolean, accepted[j][8]::bigint, accepted[j][9]::int,
            accepted[j][10]::text, accepted[j][11]::text, accepted[j][12]::text,
            coalesce(accepted[j][13], ''), coalesce(accepted[j][14]::bigint, accepted[j][4]::bigint),
            coalesce(accepted[j][15]::boolean, false), coalesce(accepted[j][16], '')
        FROM generate_subscripts(accepted, 1) j WHERE accepted[j][1]::int = ANY (saved);
    END IF;
    IF cardinality(moved) > 0 THEN
        UPDATE {s}.run r SET state = u.state, covered = u.covered, place = u.place,
            when_busy = coalesce(u.when_busy, r.when_busy), rank = coalesce(u.rank, r.rank),
            held = coalesce(u.held, r.held), bound = coalesce(u.bound, r.bound),
            prompt = coalesce(u.prompt, r.prompt), attachments = coalesce(u.attachments, r.attachments),
            data = coalesce(u.data, r.data)
        FROM (
            SELECT moved[j][2] AS run_id, moved[j][3] AS state, moved[j][4]::boolean AS covered,
                moved[j][5]::int AS place, moved[j][6] AS when_busy, moved[j][7]::bigint AS rank,
                moved[j][8]::boolean AS held, moved[j][9] AS bound, moved[j][10] AS prompt,
                moved[j][11] AS attachments, moved[j][12] AS data
            FROM generate_subscripts(moved, 1) j WHERE moved[j][1]::int = ANY (saved)
        ) u WHERE r.run_id = u.run_id;
    END IF;
    IF cardinality(done) > 0 THEN
        UPDATE {s}.run r SET
            state = 'complete', prompt = '', attachments = '', data = '', bound = '', held = false, text = u.text, error = u.error,
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
