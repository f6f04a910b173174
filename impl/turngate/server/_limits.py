"""The limits of the server: one name, one default and one answer for each."""

from __future__ import annotations

from dataclasses import dataclass, fields

from turngate._prompt import seconds, whole_number


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the server allows, and what it answers beyond that.

    body_limit         bytes of a request's body; 413 too-large
    body_timeout       seconds until a body must have arrived; 400 malformed
    header_limit       bytes of a request's headers; 413 too-large
    id_limit           characters of a session id or run id; 422 invalid
    attachments_limit  attachments of a prompt; 422 invalid
    sessions_limit     sessions with something in flight, beyond which no other begins; 429 queue-full
    streams_limit      event streams at once; 503 too-many-streams
    wait_limit         seconds that `?wait=` waits; longer is answered after this time, as it then is
    page_limit         messages in one answer; 422 invalid
    ring_events        events that a reader can be behind; then it gets `gap` and the RunCompletes it missed
    ring_bytes         bytes of these, by the same rule
    heartbeat          seconds after which a stream with nothing to say says so
    write_timeout      seconds that a reader may block its stream; then its connection is dropped
    """

    body_limit: int = 1_048_576
    body_timeout: float = 30.0
    header_limit: int = 16_384
    id_limit: int = 256
    attachments_limit: int = 64
    sessions_limit: int = 10_000
    streams_limit: int = 1_000
    wait_limit: float = 60.0
    page_limit: int = 1_000
    ring_events: int = 8_192
    ring_bytes: int = 8_388_608
    heartbeat: float = 15.0
    write_timeout: float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, int):
                whole_number(field.name, value, at_least=1)
            else:
                seconds(field.name, value)
