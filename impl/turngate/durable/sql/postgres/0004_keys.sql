CREATE TABLE {s}.operation_key (
    key text NOT NULL,
    part text NOT NULL,
    request text NOT NULL,
    answer text NOT NULL,
    step_id text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (key, part)
);

CREATE INDEX operation_key_by_age ON {s}.operation_key (at);

-- Saves one step, and the key under which it was asked for; a key that is taken violates its constraint, and
-- nothing is saved.
CREATE FUNCTION {s}.save_keyed(
    by_worker bigint, wanted int, sessions text[], accepted text[], moved text[], done text[],
    said text[], told text[],
    of_key text, its_part text, its_request text, its_answer text, its_step_id text,
    OUT alive boolean, OUT at_position bigint, OUT saved int[], OUT numbers bigint[]
) LANGUAGE plpgsql AS $save$
BEGIN
    SELECT s.alive, s.at_position, s.saved, s.numbers INTO alive, at_position, saved, numbers
    FROM {s}.save(by_worker, wanted, sessions, accepted, moved, done, said, told) s;
    IF cardinality(saved) > 0 THEN
        INSERT INTO {s}.operation_key (key, part, request, answer, step_id)
        VALUES (of_key, its_part, its_request, its_answer, its_step_id);
    END IF;
END
$save$;
