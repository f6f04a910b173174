CREATE SEQUENCE {s}.number;

CREATE TABLE {s}.meta (
    one int PRIMARY KEY CHECK (one = 1), name text NOT NULL, purged bigint NOT NULL
);

INSERT INTO {s}.meta SELECT 1, substr(md5(random()::text || clock_timestamp()::text), 1, 12), -1;

CREATE TABLE {s}.worker (
    worker bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, expires timestamptz NOT NULL
);

CREATE TABLE {s}.session (
    session_id text PRIMARY KEY,
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
    attempts int NOT NULL,
    since float8,
    recent text NOT NULL
) WITH (fillfactor = 70);

CREATE TABLE {s}.run (
    run_id text PRIMARY KEY,
    session_id text NOT NULL,
    seq bigint NOT NULL,
    state text NOT NULL,
    when_busy text NOT NULL,
    covered boolean NOT NULL,
    holder bigint NOT NULL,
    place int NOT NULL,
    prompt text NOT NULL,
    attachments text NOT NULL,
    digest text NOT NULL,
    accepted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    completed_at timestamptz,
    text text,
    error text,
    cancelled boolean,
    message_id text,
    folded_into text,
    outcome text,
    "position" bigint,
    ordinal int
) WITH (fillfactor = 80);

CREATE UNIQUE INDEX run_in_flight ON {s}.run (state, session_id, seq) WHERE state <> 'complete';
CREATE INDEX run_accepted ON {s}.run (accepted_at) WHERE state = 'accepted';
CREATE UNIQUE INDEX run_in_order ON {s}.run ("position", ordinal) WHERE "position" IS NOT NULL;

CREATE TABLE {s}.message (
    "position" bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text NOT NULL UNIQUE,
    session_id text NOT NULL,
    run_id text NOT NULL,
    role text NOT NULL,
    text text NOT NULL,
    finish_reason text,
    data text,
    turn text NOT NULL
);

CREATE INDEX message_of_session ON {s}.message (session_id, "position");
CREATE INDEX message_of_turn ON {s}.message (turn, "position");

CREATE TABLE {s}.history (
    "position" bigint NOT NULL,
    ordinal int NOT NULL,
    session_id text NOT NULL,
    entries text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY ("position", ordinal)
);

CREATE TABLE {s}.checkpoint (
    session_id text PRIMARY KEY, fence bigint NOT NULL, text text NOT NULL, kept text
);

CREATE FUNCTION {s}.save(
    by_worker bigint, wanted int, sessions text[], accepted text[], moved text[], done text[],
    said text[], told text[],
    OUT alive boolean, OUT at_position bigint, OUT saved int[], OUT numbers bigint[]
) LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan SET jit = off AS $save$
DECLARE
    s text[];
    at timestamptz := clock_timestamp();  -- the runs of a turn are complete at the same time
BEGIN
    at_position := pg_current_xact_id()::text::bigint;
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
