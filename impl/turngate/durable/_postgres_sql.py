"""The tables of a ledger in PostgreSQL, and what is asked of them. `{s}` stands for their schema.

Positions. Transactions commit in another order than they take numbers from a sequence, so a reader who goes
by the highest number that it has seen misses what commits late. A step's position is the id of its
transaction (xid8: it does not wrap), and a reader goes no further than the oldest transaction that is still
running (`pg_snapshot_xmin`): everything below that has committed, and is visible, or never will be. Steps of
one session follow each other, so their positions grow. The price: a transaction that is left open anywhere in
the cluster holds back what readers see, though nothing else.

A step that reads the worker's row does not thereby wait for its burial (READ COMMITTED): it may be saved
after the worker was given up. That does not matter, for what the worker owned has another fence by then, or
will have: the version and the fence carry the promises, the lease only keeps the useless from being tried.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Final

_SESSION: Final = """
    token, version, next_seq, mark, queued, lead, owner, fence, covered, begun, attempts, since, recent
"""
_RUN: Final = """
    run_id, session_id, seq, state, when_busy, covered, holder, place, prompt, attachments, digest
"""
_MESSAGE: Final = "id, session_id, run_id, role, text, finish_reason, data"

_SESSION_TYPES: Final = "text bigint bigint bigint bigint text bigint bigint boolean boolean int float8 text"
_RUN_TYPES: Final = "text text bigint text text boolean bigint int text text text"
_DONE: Final = "text, error, cancelled, message_id, folded_into, outcome"
_DONE_TYPES: Final = "text text boolean text text text"
_SAID: Final = f"{_MESSAGE}, turn"
_SAID_TYPES: Final = "text text text text text text text text"


def _columns(array: str, first: int, types: str) -> str:
    """Return the elements of an array of texts, from the first one on, as columns of these types."""
    return ", ".join(f"{array}[{n}]::{each}" for n, each in enumerate(types.split(), first))


def _prefixed(prefix: str, columns: str, types: str = "") -> str:
    """Return names for these columns in a function, behind each its type."""
    names = [f"{prefix}_{each.strip()}" for each in columns.split(",")]
    typed = zip_longest(names, types.split(), fillvalue="")
    return ", ".join(" ".join(each).rstrip() for each in typed)


def _saved(array: str) -> str:
    """Return from where those rows of an array come whose steps were saved."""
    return f"generate_subscripts({array}, 1) j WHERE {array}[j][1]::int = ANY (saved)"


_SAVE: Final = f"""
    CREATE FUNCTION {{s}}.save(
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
        saved := '{{}}';
        numbers := '{{}}';
        alive := EXISTS (
            SELECT FROM {{s}}.worker w WHERE w.worker = by_worker AND w.expires > clock_timestamp());
        IF NOT alive THEN
            RETURN;
        END IF;
        FOREACH s SLICE 1 IN ARRAY sessions LOOP  -- number, whether it is new, run that is new, id, columns
            CONTINUE WHEN s[3] IS NOT NULL AND EXISTS (SELECT FROM {{s}}.run r WHERE r.run_id = s[3]);
            IF s[2]::boolean THEN
                INSERT INTO {{s}}.session (session_id, {_SESSION})
                VALUES (s[4], {_columns("s", 5, _SESSION_TYPES)}) ON CONFLICT DO NOTHING;
            ELSE
                UPDATE {{s}}.session o SET ({_SESSION}) = ROW ({_columns("s", 5, _SESSION_TYPES)})
                WHERE o.session_id = s[4] AND o.token = s[5] AND o.version = s[6]::bigint - 1;
            END IF;
            CONTINUE WHEN NOT FOUND;
            saved := saved || s[1]::int;
        END LOOP;
        IF cardinality(accepted) > 0 THEN
            INSERT INTO {{s}}.run ({_RUN})
            SELECT {_columns("accepted[j]", 2, _RUN_TYPES)} FROM {_saved("accepted")};
        END IF;
        IF cardinality(moved) > 0 THEN
            UPDATE {{s}}.run r SET (state, covered, place) = ROW (u.state, u.covered, u.place)
            FROM (
                SELECT moved[j][2] AS run_id, moved[j][3] AS state, moved[j][4]::boolean AS covered,
                    moved[j][5]::int AS place
                FROM {_saved("moved")}
            ) u WHERE r.run_id = u.run_id;
        END IF;
        IF cardinality(done) > 0 THEN
            UPDATE {{s}}.run r SET
                state = 'complete', prompt = '', attachments = '', text = u.text, error = u.error,
                cancelled = u.cancelled, message_id = u.message_id, folded_into = u.folded_into,
                outcome = u.outcome, completed_at = at, "position" = at_position,
                ordinal = u.ordinal
            FROM (
                SELECT done[j][2] AS run_id, done[j][3] AS text, done[j][4] AS error,
                    done[j][5]::boolean AS cancelled, done[j][6] AS message_id, done[j][7] AS folded_into,
                    done[j][8] AS outcome, j AS ordinal
                FROM {_saved("done")}
            ) u WHERE r.run_id = u.run_id;
        END IF;
        IF cardinality(said) > 0 THEN
            INSERT INTO {{s}}.message ({_SAID})
            SELECT {_columns("said[j]", 2, _SAID_TYPES)} FROM {_saved("said")};
        END IF;
        IF cardinality(told) > 0 THEN
            INSERT INTO {{s}}.history ("position", ordinal, session_id, entries)
            SELECT at_position, j, told[j][2], told[j][3] FROM {_saved("told")};
        END IF;
        IF wanted > 0 THEN
            numbers := ARRAY(SELECT nextval('{{s}}.number') FROM generate_series(1, wanted));
        END IF;
    END
    $save$
"""
"""Saves those of the steps whose sessions are still at their versions, if the worker is alive.

What is to be written comes as arrays of texts, a row each, which begins with the number of its step; that is
cheaper on both sides than JSON. The sessions are given in their order, so that two who save do not wait for
each other. The tables are large and what is asked of them is little, whatever the statistics say: so no plan
but by the indexes.
"""

_SAVE_PLAIN: Final = f"""
    CREATE FUNCTION {{s}}.save_plain(
        by_worker bigint, wanted int, of_session text, {_prefixed("its", _SESSION, _SESSION_TYPES)},
        {_prefixed("new", _RUN, _RUN_TYPES)}, done_run text, {_prefixed("done", _DONE, _DONE_TYPES)},
        said text[], told text,
        OUT alive boolean, OUT at_position bigint, OUT saved int[], OUT numbers bigint[]
    ) LANGUAGE plpgsql SET enable_seqscan = off AS $save$
    BEGIN
        at_position := pg_current_xact_id()::text::bigint;
        alive := true;
        saved := '{{}}';
        numbers := '{{}}';
        UPDATE {{s}}.session o SET ({_SESSION}) = ROW ({_prefixed("its", _SESSION)})
        WHERE o.session_id = of_session AND o.token = its_token AND o.version = its_version - 1 AND EXISTS (
            SELECT FROM {{s}}.worker w WHERE w.worker = by_worker AND w.expires > clock_timestamp());
        IF NOT FOUND THEN
            alive := EXISTS (
                SELECT FROM {{s}}.worker w WHERE w.worker = by_worker AND w.expires > clock_timestamp());
            RETURN;
        END IF;
        saved := '{{0}}';
        IF new_run_id IS NOT NULL THEN
            INSERT INTO {{s}}.run ({_RUN}) VALUES ({_prefixed("new", _RUN)});
        END IF;
        IF done_run IS NOT NULL THEN
            UPDATE {{s}}.run r SET
                ({_DONE}) = ROW ({_prefixed("done", _DONE)}), state = 'complete', prompt = '',
                attachments = '', completed_at = clock_timestamp(), "position" = at_position, ordinal = 1
            WHERE r.run_id = done_run;
        END IF;
        IF said IS NOT NULL THEN
            INSERT INTO {{s}}.message ({_SAID})
            SELECT {_columns("said[j]", 1, _SAID_TYPES)} FROM generate_subscripts(said, 1) j;
        END IF;
        IF told IS NOT NULL THEN
            INSERT INTO {{s}}.history ("position", ordinal, session_id, entries)
            VALUES (at_position, 1, of_session, told);
        END IF;
        IF wanted > 0 THEN
            numbers := ARRAY(SELECT nextval('{{s}}.number') FROM generate_series(1, wanted));
        END IF;
    END
    $save$
"""
"""Saves one plain step as `save` would: one that moves no run and completes one at most.

That is most steps when there is little to do. To unpack rows is a third of what `save` costs the server.
A run that is known already violates a constraint here, and nothing is saved.
"""

#: The statements that lead from each version of the schema to the next.
MIGRATIONS: Final = (
    (
        "CREATE SEQUENCE {s}.number",
        """
        CREATE TABLE {s}.meta (
            one int PRIMARY KEY CHECK (one = 1), name text NOT NULL, purged bigint NOT NULL
        )
        """,
        "INSERT INTO {s}.meta SELECT 1, substr(md5(random()::text || clock_timestamp()::text), 1, 12), -1",
        """
        CREATE TABLE {s}.worker (
            worker bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, expires timestamptz NOT NULL
        )
        """,
        """
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
        ) WITH (fillfactor = 70)
        """,
        """
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
        ) WITH (fillfactor = 80)
        """,
        "CREATE UNIQUE INDEX run_in_flight ON {s}.run (state, session_id, seq) WHERE state <> 'complete'",
        "CREATE INDEX run_accepted ON {s}.run (accepted_at) WHERE state = 'accepted'",
        """CREATE UNIQUE INDEX run_in_order ON {s}.run ("position", ordinal) WHERE "position" IS NOT NULL""",
        """
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
        )
        """,
        'CREATE INDEX message_of_session ON {s}.message (session_id, "position")',
        'CREATE INDEX message_of_turn ON {s}.message (turn, "position")',
        """
        CREATE TABLE {s}.history (
            "position" bigint NOT NULL,
            ordinal int NOT NULL,
            session_id text NOT NULL,
            entries text NOT NULL,
            at timestamptz NOT NULL DEFAULT clock_timestamp(),
            PRIMARY KEY ("position", ordinal)
        )
        """,
        """
        CREATE TABLE {s}.checkpoint (
            session_id text PRIMARY KEY, fence bigint NOT NULL, text text NOT NULL, kept text
        )
        """,
        _SAVE,
    ),
    (_SAVE_PLAIN,),
)

_COMPLETE: Final = "session_id, run_id, seq, text, error, cancelled, message_id, folded_into, outcome"
_HORIZON: Final = "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
_NOW: Final = "extract(epoch FROM clock_timestamp())::float8"

_LOADED: Final = f"""
    {_NOW},
    (SELECT json_build_array({_SESSION}) FROM {{s}}.session WHERE session_id = $1),
    (SELECT json_agg(json_build_array({_RUN})) FROM {{s}}.run
     WHERE session_id = $1 AND state IN ('accepted', 'active') AND state <> 'complete'),
    (SELECT json_agg(json_build_array({_RUN})) FROM (
        SELECT * FROM {{s}}.run WHERE session_id = $1 AND state = 'queued' AND state <> 'complete'
        ORDER BY seq LIMIT $2) head),
    (SELECT json_build_array({_RUN}, {_COMPLETE}) FROM {{s}}.run WHERE run_id = $3),
    EXISTS (SELECT 1 FROM {{s}}.worker w JOIN {{s}}.session o ON o.owner = w.worker
            WHERE o.session_id = $1 AND w.expires > clock_timestamp()),
    (SELECT json_build_array(c.text, c.kept)
     FROM {{s}}.checkpoint c JOIN {{s}}.session o USING (session_id, fence)
     WHERE $4 AND o.session_id = $1)
"""
LOAD: Final = f"SELECT nextval('{{s}}.number'), {_LOADED}"
VIEW: Final = f"SELECT 0::bigint, {_LOADED}"
_OF_EACH: Final = (
    _LOADED.replace("$1", "flight.session_id")
    .replace("$2", "NULL")
    .replace("$3", "NULL")
    .replace("$4", "true")
)
VIEW_ALL: Final = f"""
    SELECT flight.session_id, 0::bigint, {_OF_EACH}
    FROM (SELECT DISTINCT session_id FROM {{s}}.run WHERE state <> 'complete') flight ORDER BY 1
"""

SAVE: Final = """
    SELECT alive, at_position, saved, numbers FROM {s}.save(
        $1, $2, $3::text::text[], $4::text::text[], $5::text::text[], $6::text::text[], $7::text::text[],
        $8::text::text[]
    )
"""

_SCALARS: Final = len(f"{_SESSION_TYPES} {_RUN_TYPES} {_DONE_TYPES}".split()) + 4
SAVE_PLAIN: Final = f"""
    SELECT alive, at_position, saved, numbers FROM {{s}}.save_plain(
        {", ".join(f"${n + 1}" for n in range(_SCALARS))}, ${_SCALARS + 1}::text::text[], ${_SCALARS + 2}
    )
"""

HINT: Final = "SELECT pg_notify(channel, '') FROM unnest($1::text[]) channel"
SAY: Final = "SELECT pg_notify($1, message) FROM unnest($2::text[]) message"

REGISTER: Final = """
    INSERT INTO {s}.worker (expires) VALUES (clock_timestamp() + $1 * interval '1 second') RETURNING worker
"""
BEAT: Final = """
    UPDATE {s}.worker SET expires = clock_timestamp() + $2 * interval '1 second'
    WHERE worker = $1 AND expires > clock_timestamp() RETURNING worker
"""
RETIRE: Final = "DELETE FROM {s}.worker WHERE worker = $1"
BURY: Final = "DELETE FROM {s}.worker WHERE expires < clock_timestamp()"
_WITH_TURN: Final = """
    session_id IN (SELECT session_id FROM {s}.run WHERE state = 'active' AND state <> 'complete')
"""
DEAD: Final = f"""
    SELECT session_id FROM {{s}}.session o
    WHERE {_WITH_TURN} AND owner IS NOT NULL AND NOT EXISTS (
        SELECT FROM {{s}}.worker w WHERE w.worker = o.owner AND w.expires > clock_timestamp())
    ORDER BY random() LIMIT $1
"""
UNOWNED: Final = f"""
    SELECT session_id FROM {{s}}.session WHERE {_WITH_TURN} AND owner IS NULL ORDER BY random() LIMIT $1
"""
UNENTERED: Final = """
    SELECT session_id, run_id FROM {s}.run r
    WHERE state = 'accepted' AND (accepted_at < clock_timestamp() - $2 * interval '1 second' OR NOT EXISTS (
        SELECT FROM {s}.worker w WHERE w.worker = r.holder AND w.expires > clock_timestamp()))
    ORDER BY accepted_at LIMIT $1
"""
MINE: Final = f"""
    SELECT session_id, fence, covered, version FROM {{s}}.session WHERE {_WITH_TURN} AND owner = $1
"""
KNOWN: Final = f"SELECT {_RUN}, {_COMPLETE} FROM {{s}}.run WHERE run_id = ANY($1::text[])"
SNAPSHOT: Final = "SELECT pg_current_snapshot()::text"
FINISHED: Final = f"""
    SELECT purged, {_HORIZON}, (
        SELECT json_agg(json_build_array("position", ordinal, {_COMPLETE})) FROM (
            SELECT * FROM {{s}}.run
            WHERE "position" IS NOT NULL AND ("position", ordinal) > ($1, $2) AND "position" < {_HORIZON}
            ORDER BY "position", ordinal LIMIT $3) page)
    FROM {{s}}.meta
"""
TOLD: Final = f"""
    SELECT {_HORIZON}, (
        SELECT json_agg(json_build_array("position", ordinal, session_id, entries)) FROM (
            SELECT * FROM {{s}}.history WHERE ("position", ordinal) > ($1, $2) AND "position" < {_HORIZON}
            ORDER BY "position", ordinal LIMIT $3) page)
"""
CHECKPOINT: Final = """
    INSERT INTO {s}.checkpoint AS c
    SELECT * FROM json_to_recordset($1::json) AS u (session_id text, fence bigint, text text, kept text)
    ON CONFLICT (session_id) DO UPDATE SET fence = excluded.fence, text = excluded.text, kept = excluded.kept
    WHERE excluded.fence >= c.fence
"""
MESSAGES: Final = f"""
    SELECT {_MESSAGE} FROM {{s}}.message WHERE session_id = $1 AND "position" > $2
    ORDER BY "position" LIMIT $3
"""
MESSAGE_AT: Final = 'SELECT "position" FROM {s}.message WHERE session_id = $1 AND id = $2'
MESSAGES_OF: Final = f"""
    SELECT {_MESSAGE} FROM {{s}}.message
    WHERE turn = (SELECT message_id FROM {{s}}.run WHERE run_id = $1) ORDER BY "position"
"""
PURGE: Final = """
    WITH gone AS (
        DELETE FROM {s}.run WHERE completed_at < to_timestamp($1) RETURNING message_id, "position"
    ), unsaid AS (
        DELETE FROM {s}.message WHERE turn IN (SELECT message_id FROM gone)
    ), noted AS (
        UPDATE {s}.meta SET purged = greatest(purged, (SELECT max("position") FROM gone))
        WHERE EXISTS (SELECT FROM gone)
    )
    SELECT count(*) FROM gone
"""
SWEEP: Final = (
    # A session that takes a step meanwhile has another version, at which the row is looked at again.
    """
    DELETE FROM {s}.session o USING (
        SELECT session_id, version FROM {s}.session q WHERE lead IS NULL AND NOT EXISTS (
            SELECT FROM {s}.run r WHERE r.session_id = q.session_id)
    ) quiet WHERE o.session_id = quiet.session_id AND o.version = quiet.version
    """,
    """
    DELETE FROM {s}.history h WHERE at < to_timestamp($1) AND NOT EXISTS (
        SELECT FROM {s}.run r WHERE r.session_id = h.session_id AND r.accepted_at < to_timestamp($1))
    """,
    """
    DELETE FROM {s}.checkpoint c WHERE NOT EXISTS (
        SELECT FROM {s}.session o WHERE o.session_id = c.session_id AND o.lead IS NOT NULL)
    """,
)
