CREATE FUNCTION {s}.save_plain(
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
    at_position := pg_current_xact_id()::text::bigint;
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
