"""What the tests of moves share: events in a few words, and the order that they must be in."""

from __future__ import annotations

from turngate import Delta, Event, Moved, Note, RunComplete, Subscription


def spelled(event: Event) -> str:
    """An event in a few words."""
    match event:
        case RunComplete():
            return f"complete {event.run_id} {event.outcome}"
        case Delta():
            return f"delta {event.run_id} {event.text}@{event.offset}"
        case Note():
            return f"note {event.run_id} {event.kind}"
        case _:
            more = [event.run_id, event.state and event.state.value, event.into and f"into {event.into}"]
            more += event.runs or ()
            return " ".join([event.event, *filter(None, more)])


def unread(events: Subscription) -> list[Event]:
    return [*events._unread]


async def rest(events: Subscription) -> list[str]:
    return [spelled(event) async for event in events]


def check_order(events: list[Event]) -> None:
    """LAST_WORD on one stream, and one RunComplete a run; the text of a turn without a gap."""
    complete: set[str] = set()
    offsets: dict[str, int] = {}
    for event in events:
        if isinstance(event, Moved) and event.run_id is None:
            assert not complete & {*(event.runs or ())}
            continue
        run_id = event.run_id
        assert run_id not in complete, event
        if isinstance(event, RunComplete):
            complete.add(event.run_id)
        elif isinstance(event, Delta):
            assert event.offset == offsets.get(event.run_id, 0)
            offsets[event.run_id] = event.offset + len(event.text)
