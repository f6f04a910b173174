-- A ledger of schema 6, left behind by the code of that version when its process was killed.
-- Cursor behind the second completion: 4573e27dfc64.738.1
SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE SCHEMA turngate;
CREATE FUNCTION turngate.save(by_worker bigint, wanted integer, sessions text[], accepted text[], moved text[], done text[], said text[], told text[], OUT alive boolean, OUT at_position bigint, OUT saved integer[], OUT numbers bigint[]) RETURNS record
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET plan_cache_mode TO 'force_generic_plan'
    SET jit TO 'off'
    AS $$
DECLARE
    s text[];
    at timestamptz := clock_timestamp();  -- the runs of a turn are complete at the same time
BEGIN
    at_position := pg_current_xact_id()::text::bigint + (SELECT m.shift FROM turngate.meta m WHERE m.one = 1);
    saved := '{}';
    numbers := '{}';
    alive := EXISTS (
        SELECT FROM turngate.worker w WHERE w.worker = by_worker AND w.expires > clock_timestamp());
    IF NOT alive THEN
        RETURN;
    END IF;
    FOREACH s SLICE 1 IN ARRAY sessions LOOP  -- number, whether it is new, run that is new, id, columns
        CONTINUE WHEN s[3] IS NOT NULL AND EXISTS (SELECT FROM turngate.run r WHERE r.run_id = s[3]);
        IF s[2]::boolean THEN
            INSERT INTO turngate.session (session_id, token, version, next_seq, mark, queued, lead,
                owner, fence, covered, begun, attempts, since, recent)
            VALUES (s[4], s[5]::text, s[6]::bigint, s[7]::bigint, s[8]::bigint, s[9]::bigint,
                s[10]::text, s[11]::bigint, s[12]::bigint, s[13]::boolean, s[14]::boolean,
                s[15]::int, s[16]::float8, s[17]::text) ON CONFLICT DO NOTHING;
        ELSE
            UPDATE turngate.session o SET (token, version, next_seq, mark, queued, lead, owner, fence,
                covered, begun, attempts, since, recent) = ROW (s[5]::text, s[6]::bigint,
                s[7]::bigint, s[8]::bigint, s[9]::bigint, s[10]::text, s[11]::bigint, s[12]::bigint,
                s[13]::boolean, s[14]::boolean, s[15]::int, s[16]::float8, s[17]::text)
            WHERE o.session_id = s[4] AND o.token = s[5] AND o.version = s[6]::bigint - 1;
        END IF;
        CONTINUE WHEN NOT FOUND;
        saved := saved || s[1]::int;
    END LOOP;
    IF cardinality(accepted) > 0 THEN
        INSERT INTO turngate.run (run_id, session_id, seq, state, when_busy, covered, holder, place, prompt,
            attachments, digest, data, rank, held, bound)
        SELECT accepted[j][2]::text, accepted[j][3]::text, accepted[j][4]::bigint, accepted[j][5]::text,
            accepted[j][6]::text, accepted[j][7]::boolean, accepted[j][8]::bigint, accepted[j][9]::int,
            accepted[j][10]::text, accepted[j][11]::text, accepted[j][12]::text,
            coalesce(accepted[j][13], ''), coalesce(accepted[j][14]::bigint, accepted[j][4]::bigint),
            coalesce(accepted[j][15]::boolean, false), coalesce(accepted[j][16], '')
        FROM generate_subscripts(accepted, 1) j WHERE accepted[j][1]::int = ANY (saved);
    END IF;
    IF cardinality(moved) > 0 THEN
        UPDATE turngate.run r SET state = u.state, covered = u.covered, place = u.place,
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
        UPDATE turngate.run r SET
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
        INSERT INTO turngate.message (id, session_id, run_id, role, text, finish_reason, data, turn)
        SELECT said[j][2]::text, said[j][3]::text, said[j][4]::text, said[j][5]::text, said[j][6]::text,
            said[j][7]::text, said[j][8]::text, said[j][9]::text FROM generate_subscripts(said, 1) j
            WHERE said[j][1]::int = ANY (saved);
    END IF;
    IF cardinality(told) > 0 THEN
        INSERT INTO turngate.history ("position", ordinal, session_id, entries)
        SELECT at_position, j, told[j][2], told[j][3] FROM generate_subscripts(told, 1) j WHERE
            told[j][1]::int = ANY (saved);
    END IF;
    IF wanted > 0 THEN
        numbers := ARRAY(SELECT nextval('turngate.number') FROM generate_series(1, wanted));
    END IF;
END
$$;
CREATE FUNCTION turngate.save_keyed(by_worker bigint, wanted integer, sessions text[], accepted text[], moved text[], done text[], said text[], told text[], of_key text, its_part text, its_request text, its_answer text, its_step_id text, OUT alive boolean, OUT at_position bigint, OUT saved integer[], OUT numbers bigint[]) RETURNS record
    LANGUAGE plpgsql
    AS $$
BEGIN
    SELECT s.alive, s.at_position, s.saved, s.numbers INTO alive, at_position, saved, numbers
    FROM turngate.save(by_worker, wanted, sessions, accepted, moved, done, said, told) s;
    IF cardinality(saved) > 0 THEN
        INSERT INTO turngate.operation_key (key, part, request, answer, step_id)
        VALUES (of_key, its_part, its_request, its_answer, its_step_id);
    END IF;
END
$$;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE turngate.checkpoint (
    session_id text NOT NULL,
    fence bigint NOT NULL,
    text text NOT NULL,
    kept text
);
CREATE TABLE turngate.epoch (
    number bigint NOT NULL,
    name text NOT NULL,
    first bigint NOT NULL
);
ALTER TABLE turngate.epoch ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME turngate.epoch_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE turngate.history (
    "position" bigint NOT NULL,
    ordinal integer NOT NULL,
    session_id text NOT NULL,
    entries text NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
CREATE TABLE turngate.message (
    "position" bigint NOT NULL,
    id text NOT NULL,
    session_id text NOT NULL,
    run_id text NOT NULL,
    role text NOT NULL,
    text text NOT NULL,
    finish_reason text,
    data text,
    turn text NOT NULL
);
ALTER TABLE turngate.message ALTER COLUMN "position" ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME turngate.message_position_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE turngate.meta (
    one integer NOT NULL,
    name text NOT NULL,
    purged bigint NOT NULL,
    purged_ordinal integer DEFAULT 2147483647 NOT NULL,
    forgotten bigint DEFAULT '-1'::integer NOT NULL,
    forgotten_ordinal integer DEFAULT 2147483647 NOT NULL,
    shift bigint DEFAULT 0 NOT NULL,
    settled bigint DEFAULT 0 NOT NULL,
    home text,
    CONSTRAINT meta_one_check CHECK ((one = 1))
);
CREATE SEQUENCE turngate.number
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE turngate.operation_key (
    key text NOT NULL,
    part text NOT NULL,
    request text NOT NULL,
    answer text NOT NULL,
    step_id text NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
CREATE TABLE turngate.run (
    run_id text NOT NULL,
    session_id text NOT NULL,
    seq bigint NOT NULL,
    state text NOT NULL,
    when_busy text NOT NULL,
    covered boolean NOT NULL,
    holder bigint NOT NULL,
    place integer NOT NULL,
    prompt text NOT NULL,
    attachments text NOT NULL,
    digest text NOT NULL,
    accepted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    completed_at timestamp with time zone,
    text text,
    error text,
    cancelled boolean,
    message_id text,
    folded_into text,
    outcome text,
    "position" bigint,
    ordinal integer,
    data text DEFAULT ''::text NOT NULL,
    rank bigint DEFAULT 0 NOT NULL,
    held boolean DEFAULT false NOT NULL,
    bound text DEFAULT ''::text NOT NULL
)
WITH (fillfactor='80');
CREATE TABLE turngate.schema_version (
    version integer NOT NULL
);
CREATE TABLE turngate.session (
    session_id text NOT NULL,
    token text NOT NULL,
    version bigint NOT NULL,
    next_seq bigint NOT NULL,
    mark bigint NOT NULL,
    queued bigint NOT NULL,
    lead text,
    owner bigint,
    fence bigint NOT NULL,
    covered boolean NOT NULL,
    begun boolean NOT NULL,
    attempts integer NOT NULL,
    since double precision,
    recent text NOT NULL
)
WITH (fillfactor='70');
CREATE TABLE turngate.worker (
    worker bigint NOT NULL,
    expires timestamp with time zone NOT NULL
);
ALTER TABLE turngate.worker ALTER COLUMN worker ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME turngate.worker_worker_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
INSERT INTO turngate.epoch OVERRIDING SYSTEM VALUE VALUES (1, 'b274fac169b7', 0);
INSERT INTO turngate.epoch OVERRIDING SYSTEM VALUE VALUES (2, '4573e27dfc64', 731);
INSERT INTO turngate.history VALUES (734, 1, 'a', '[{"event": "accept", "session": "a", "run": "first", "seq": 1}, {"event": "enter", "session": "a", "run": "first", "seq": 1, "from": "accepted", "to": "active", "state": "active"}]', '2026-11-18 12:41:57.84448+00');
INSERT INTO turngate.history VALUES (735, 1, 'a', '[{"event": "complete", "session": "a", "run": "first", "seq": 1, "from": "active", "to": "complete", "cancelled": false}]', '2026-11-18 12:41:57.853418+00');
INSERT INTO turngate.history VALUES (736, 1, 'b', '[{"event": "accept", "session": "b", "run": "failed", "seq": 1}, {"event": "enter", "session": "b", "run": "failed", "seq": 1, "from": "accepted", "to": "active", "state": "active"}]', '2026-11-18 12:41:57.873825+00');
INSERT INTO turngate.history VALUES (738, 1, 'b', '[{"event": "complete", "session": "b", "run": "failed", "seq": 1, "from": "active", "to": "complete", "cancelled": false, "error": "ValueError: no"}]', '2026-11-18 12:41:57.89016+00');
INSERT INTO turngate.history VALUES (739, 1, 'a', '[{"event": "accept", "session": "a", "run": "lead", "seq": 2}, {"event": "enter", "session": "a", "run": "lead", "seq": 2, "from": "accepted", "to": "active", "state": "active"}]', '2026-11-18 12:41:57.902879+00');
INSERT INTO turngate.history VALUES (740, 1, 'a', '[{"event": "accept", "session": "a", "run": "folded-1", "seq": 3}, {"event": "enter", "session": "a", "run": "folded-1", "seq": 3, "from": "accepted", "to": "queued", "state": "queued"}]', '2026-11-18 12:41:57.90711+00');
INSERT INTO turngate.history VALUES (741, 1, 'a', '[{"event": "accept", "session": "a", "run": "folded-2", "seq": 4}, {"event": "enter", "session": "a", "run": "folded-2", "seq": 4, "from": "accepted", "to": "queued", "state": "queued"}]', '2026-11-18 12:41:57.907959+00');
INSERT INTO turngate.history VALUES (742, 1, 'a', '[{"event": "fold", "session": "a", "run": "folded-1", "seq": 3, "from": "queued", "to": "active", "into": "lead"}, {"event": "fold", "session": "a", "run": "folded-2", "seq": 4, "from": "queued", "to": "active", "into": "lead"}]', '2026-11-18 12:41:57.923121+00');
INSERT INTO turngate.history VALUES (743, 1, 'a', '[{"event": "complete", "session": "a", "run": "lead", "seq": 2, "from": "active", "to": "complete", "cancelled": false}, {"event": "complete", "session": "a", "run": "folded-1", "seq": 3, "from": "active", "to": "complete", "cancelled": false}, {"event": "complete", "session": "a", "run": "folded-2", "seq": 4, "from": "active", "to": "complete", "cancelled": false}]', '2026-11-18 12:41:57.92699+00');
INSERT INTO turngate.history VALUES (744, 1, 'b', '[{"event": "accept", "session": "b", "run": "second", "seq": 2}, {"event": "enter", "session": "b", "run": "second", "seq": 2, "from": "accepted", "to": "active", "state": "active"}]', '2026-11-18 12:41:57.930805+00');
INSERT INTO turngate.history VALUES (745, 1, 'b', '[{"event": "complete", "session": "b", "run": "second", "seq": 2, "from": "active", "to": "complete", "cancelled": false}]', '2026-11-18 12:41:57.94235+00');
INSERT INTO turngate.history VALUES (746, 1, 'c', '[{"event": "accept", "session": "c", "run": "cancelled", "seq": 1}, {"event": "enter", "session": "c", "run": "cancelled", "seq": 1, "from": "accepted", "to": "active", "state": "active"}]', '2026-11-18 12:41:57.947235+00');
INSERT INTO turngate.history VALUES (747, 1, 'c', '[{"event": "cancel", "session": "c"}]', '2026-11-18 12:41:57.962565+00');
INSERT INTO turngate.history VALUES (748, 1, 'c', '[{"event": "complete", "session": "c", "run": "cancelled", "seq": 1, "from": "active", "to": "complete", "cancelled": true}]', '2026-11-18 12:41:57.9658+00');
INSERT INTO turngate.history VALUES (750, 1, 'd', '[{"event": "accept", "session": "d", "run": "hanging", "seq": 1}, {"event": "enter", "session": "d", "run": "hanging", "seq": 1, "from": "accepted", "to": "active", "state": "active"}]', '2026-11-18 12:41:57.977994+00');
INSERT INTO turngate.history VALUES (751, 1, 'd', '[{"event": "accept", "session": "d", "run": "queued", "seq": 2}, {"event": "enter", "session": "d", "run": "queued", "seq": 2, "from": "accepted", "to": "queued", "state": "queued"}]', '2026-11-18 12:41:57.991718+00');
INSERT INTO turngate.history VALUES (752, 1, 'e', '[{"event": "accept", "session": "e", "run": "accepted", "seq": 1}]', '2026-11-18 12:41:57.994286+00');
INSERT INTO turngate.message OVERRIDING SYSTEM VALUE VALUES (1, 'msg-16bda29b31e7g1-1', 'a', 'first', 'user', 'first', NULL, NULL, 'msg-16bda29b31e7g1-1-reply');
INSERT INTO turngate.message OVERRIDING SYSTEM VALUE VALUES (2, 'msg-16bda29b31e7g1-1-reply', 'a', 'first', 'assistant', 'answer to first', 'end_turn', '{"cost": 1}', 'msg-16bda29b31e7g1-1-reply');
INSERT INTO turngate.message OVERRIDING SYSTEM VALUE VALUES (3, 'msg-16bda29b31e7g3-1', 'b', 'failed', 'user', 'fail', NULL, NULL, 'msg-16bda29b31e7g3-1-reply');
INSERT INTO turngate.message OVERRIDING SYSTEM VALUE VALUES (4, 'msg-16bda29b31e7g3-1-reply', 'b', 'failed', 'assistant', '', 'error', NULL, 'msg-16bda29b31e7g3-1-reply');
INSERT INTO turngate.message OVERRIDING SYSTEM VALUE VALUES (5, 'msg-16bda29b31e7g1-2', 'a', 'lead', 'user', 'wait 1', NULL, NULL, 'msg-16bda29b31e7g1-2-reply');
INSERT INTO turngate.message OVERRIDING SYSTEM VALUE VALUES (6, 'msg-16bda29b31e7g1-3', 'a', 'folded-1', 'user', 'also 1', NULL, NULL, 'msg-16bda29b31e7g1-2-reply');
INSERT INTO turngate.message OVERRIDING SYSTEM VALUE VALUES (7, 'msg-16bda29b31e7g1-4', 'a', 'folded-2', 'user', 'also 2', NULL, NULL, 'msg-16bda29b31e7g1-2-reply');
INSERT INTO turngate.message OVERRIDING SYSTEM VALUE VALUES (8, 'msg-16bda29b31e7g1-2-reply', 'a', 'lead', 'assistant', 'answer to wait 1', 'end_turn', '{"cost": 1}', 'msg-16bda29b31e7g1-2-reply');
INSERT INTO turngate.message OVERRIDING SYSTEM VALUE VALUES (9, 'msg-16bda29b31e7g3-2', 'b', 'second', 'user', 'second', NULL, NULL, 'msg-16bda29b31e7g3-2-reply');
INSERT INTO turngate.message OVERRIDING SYSTEM VALUE VALUES (10, 'msg-16bda29b31e7g3-2-reply', 'b', 'second', 'assistant', 'answer to second', 'end_turn', '{"cost": 1}', 'msg-16bda29b31e7g3-2-reply');
INSERT INTO turngate.message OVERRIDING SYSTEM VALUE VALUES (11, 'msg-16bda29b31e7gc-1', 'c', 'cancelled', 'user', 'hang', NULL, NULL, 'msg-16bda29b31e7gc-1-reply');
INSERT INTO turngate.message OVERRIDING SYSTEM VALUE VALUES (12, 'msg-16bda29b31e7gc-1-reply', 'c', 'cancelled', 'assistant', '', 'canceled', NULL, 'msg-16bda29b31e7gc-1-reply');
INSERT INTO turngate.meta VALUES (1, 'b274fac169b7', -1, 2147483647, -1, 2147483647, 0, 0, '7709490827769590465.16384');
INSERT INTO turngate.operation_key VALUES ('left behind', '', 'cancel 1e71917a73416080455fd1968416fa9f', '{"runs": [], "known": true}', '', '2026-11-18 12:41:57.974813+00');
INSERT INTO turngate.run VALUES ('first', 'a', 1, 'complete', 'fold', false, 1, 0, '', '', '981993dd53c6be734d709c072c689417', '2026-11-18 12:41:57.844145+00', '2026-11-18 12:41:57.851918+00', 'answer to first', NULL, false, 'msg-16bda29b31e7g1-1-reply', NULL, 'finished', 735, 1, '', 1, false, '');
INSERT INTO turngate.run VALUES ('failed', 'b', 1, 'complete', 'fold', false, 1, 0, '', '', '916af06aa5e2580c846e19399ed61086', '2026-11-18 12:41:57.873784+00', '2026-11-18 12:41:57.88985+00', '', 'ValueError: no', false, 'msg-16bda29b31e7g3-1-reply', NULL, 'failed', 738, 1, '', 1, false, '');
INSERT INTO turngate.run VALUES ('lead', 'a', 2, 'complete', 'fold', false, 1, 0, '', '', '5c586505346a432ee7233ddb709a4b8a', '2026-11-18 12:41:57.902837+00', '2026-11-18 12:41:57.926695+00', 'answer to wait 1', NULL, false, 'msg-16bda29b31e7g1-2-reply', NULL, 'finished', 743, 1, '', 2, false, '');
INSERT INTO turngate.run VALUES ('folded-1', 'a', 3, 'complete', 'fold', false, 1, 1, '', '', 'b2a2e032cd63fdc7eb5faaf6d05e2f3f', '2026-11-18 12:41:57.907067+00', '2026-11-18 12:41:57.926695+00', 'answer to wait 1', NULL, false, 'msg-16bda29b31e7g1-2-reply', 'lead', 'finished', 743, 2, '', 3, false, '');
INSERT INTO turngate.run VALUES ('folded-2', 'a', 4, 'complete', 'fold', false, 1, 2, '', '', '22b866c298e046b72c1f536871099786', '2026-11-18 12:41:57.907932+00', '2026-11-18 12:41:57.926695+00', 'answer to wait 1', NULL, false, 'msg-16bda29b31e7g1-2-reply', 'lead', 'finished', 743, 3, '', 4, false, '');
INSERT INTO turngate.run VALUES ('second', 'b', 2, 'complete', 'fold', false, 1, 0, '', '', 'd8edd68186ed834c18e4817f2fbfea82', '2026-11-18 12:41:57.93076+00', '2026-11-18 12:41:57.94206+00', 'answer to second', NULL, false, 'msg-16bda29b31e7g3-2-reply', NULL, 'finished', 745, 1, '', 2, false, '');
INSERT INTO turngate.run VALUES ('cancelled', 'c', 1, 'complete', 'fold', false, 1, 0, '', '', '2e2875f381b626f548d81e249fd44ec2', '2026-11-18 12:41:57.947201+00', '2026-11-18 12:41:57.965436+00', '', NULL, true, 'msg-16bda29b31e7gc-1-reply', NULL, 'cancelled', 748, 1, '', 1, false, '');
INSERT INTO turngate.run VALUES ('hanging', 'd', 1, 'active', 'fold', false, 1, 0, 'hang', '', '9de1d62091f3f7ffeee6f968030ace43', '2026-11-18 12:41:57.977952+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '', 1, false, '');
INSERT INTO turngate.run VALUES ('queued', 'd', 2, 'queued', 'fold', false, 1, 0, 'queued', '', 'e0ef7361edd05de4a99729de8efbdbef', '2026-11-18 12:41:57.99167+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '', 2, false, '');
INSERT INTO turngate.run VALUES ('accepted', 'e', 1, 'accepted', 'fold', false, 1, 0, 'accepted', '', 'b2f610356f006395dc4df5c1e4807896', '2026-11-18 12:41:57.994129+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '', 1, false, '');
INSERT INTO turngate.schema_version VALUES (1);
INSERT INTO turngate.schema_version VALUES (2);
INSERT INTO turngate.schema_version VALUES (3);
INSERT INTO turngate.schema_version VALUES (4);
INSERT INTO turngate.schema_version VALUES (5);
INSERT INTO turngate.schema_version VALUES (6);
INSERT INTO turngate.session VALUES ('a', '16bda29b31e7g1', 8, 5, 0, 0, NULL, NULL, 3, false, false, 0, NULL, '16bda29b31e7g1 16bda29b31e7g2 16bda29b31e7g5 16bda29b31e7g6 16bda29b31e7g7 16bda29b31e7g8 16bda29b31e7g9');
INSERT INTO turngate.session VALUES ('b', '16bda29b31e7g3', 70, 3, 0, 0, NULL, NULL, 67, false, false, 0, NULL, '16bda29b31e7g3 16bda29b31e7g4 16bda29b31e7ga 16bda29b31e7gb');
INSERT INTO turngate.session VALUES ('c', '16bda29b31e7gc', 72, 2, 0, 0, NULL, NULL, 69, false, false, 0, NULL, '16bda29b31e7gc 16bda29b31e7gd 16bda29b31e7ge');
INSERT INTO turngate.session VALUES ('d', '16bda29b31e7g10', 74, 3, 0, 1, 'hanging', 1, 72, false, true, 1, 1795005717.975766, '16bda29b31e7g10 16bda29b31e7g11');
INSERT INTO turngate.session VALUES ('e', '16bda29b31e7g12', 75, 2, 0, 0, NULL, NULL, 74, false, false, 0, NULL, '16bda29b31e7g12');
INSERT INTO turngate.worker OVERRIDING SYSTEM VALUE VALUES (1, '2026-11-18 12:42:27.713873+00');
SELECT pg_catalog.setval('turngate.epoch_number_seq', 2, true);
SELECT pg_catalog.setval('turngate.message_position_seq', 12, true);
SELECT pg_catalog.setval('turngate.number', 74, true);
SELECT pg_catalog.setval('turngate.worker_worker_seq', 1, true);
ALTER TABLE ONLY turngate.checkpoint
    ADD CONSTRAINT checkpoint_pkey PRIMARY KEY (session_id);
ALTER TABLE ONLY turngate.epoch
    ADD CONSTRAINT epoch_name_key UNIQUE (name);
ALTER TABLE ONLY turngate.epoch
    ADD CONSTRAINT epoch_pkey PRIMARY KEY (number);
ALTER TABLE ONLY turngate.history
    ADD CONSTRAINT history_pkey PRIMARY KEY ("position", ordinal);
ALTER TABLE ONLY turngate.message
    ADD CONSTRAINT message_id_key UNIQUE (id);
ALTER TABLE ONLY turngate.message
    ADD CONSTRAINT message_pkey PRIMARY KEY ("position");
ALTER TABLE ONLY turngate.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (one);
ALTER TABLE ONLY turngate.operation_key
    ADD CONSTRAINT operation_key_pkey PRIMARY KEY (key, part);
ALTER TABLE ONLY turngate.run
    ADD CONSTRAINT run_pkey PRIMARY KEY (run_id);
ALTER TABLE ONLY turngate.session
    ADD CONSTRAINT session_pkey PRIMARY KEY (session_id);
ALTER TABLE ONLY turngate.worker
    ADD CONSTRAINT worker_pkey PRIMARY KEY (worker);
CREATE INDEX message_of_session ON turngate.message USING btree (session_id, "position");
CREATE INDEX message_of_turn ON turngate.message USING btree (turn, "position");
CREATE INDEX operation_key_by_age ON turngate.operation_key USING btree (at);
CREATE INDEX run_accepted ON turngate.run USING btree (accepted_at) WHERE (state = 'accepted'::text);
CREATE INDEX run_bound ON turngate.run USING btree (session_id) WHERE (bound <> ''::text);
CREATE INDEX run_in_flight ON turngate.run USING btree (state, session_id, held, rank) WHERE (state <> 'complete'::text);
CREATE UNIQUE INDEX run_in_order ON turngate.run USING btree ("position", ordinal) WHERE ("position" IS NOT NULL);
