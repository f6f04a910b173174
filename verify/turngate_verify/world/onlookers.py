"""Onlookers: a subscriber to every move, a look at each session, and a reader of each run's text.

They are there in every closed world. What they see must agree with the recording
and with the abstract session at every moment, and with the runner at the end.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

from turngate import Delta, Dispatcher, Moved, Note, RunComplete, State
from turngate._events import Event
from turngate_model import AbstractSession
from turngate_model.lifecycle import DeclaredState
from turngate_verify.world.virtual_loop import VirtualLoop


class MovesSubscriber:
    """Subscribes to every move, and compares what it receives with what is recorded."""

    def __init__(self, loop: VirtualLoop, dispatcher: Dispatcher) -> None:
        with loop:
            self._events = dispatcher.subscribe(moves=True)
        self._events._delta_limit = self._events._delta_bytes = self._events._complete_limit = sys.maxsize
        self._recorded: deque[tuple[Any, ...]] = deque()
        """Recorded entries that have not been compared yet."""
        self._leads: set[str] = set()
        """The runs that lead a turn, according to the moves."""

    def recorded(self, entry: dict[str, Any]) -> None:
        """Note an entry of the recording, which should be among the moves too."""
        if "session" in entry:
            about = (entry["session"], entry["event"], entry.get("run"), entry.get("seq"))
            if entry["event"] == "complete":
                self._recorded.append((*about, entry["cancelled"], entry.get("error")))
            else:
                runs = entry.get("runs")
                of_runs = None if runs is None else tuple(runs)
                more = entry.get("state"), entry.get("into"), of_runs, entry.get("before")
                self._recorded.append((*about, *more))

    def compare(self) -> Iterator[str]:
        """Yield what is wrong with the moves received since the last call."""
        while self._events._unread:
            event = self._events._take()
            if isinstance(event, Delta | Note):
                if event.run_id not in self._leads:
                    yield f"among the moves, {event} comes while {event.run_id} leads no turn"
                continue
            if self._recorded and (should := self._recorded.popleft()) != (seen := _as_recorded(event)):
                yield f"among the moves is {seen}: it should be {should}, as recorded"
            self._follow(event)

    def _follow(self, event: Event) -> None:
        """Keep track of which runs lead a turn."""
        if isinstance(event, RunComplete):
            self._leads.discard(event.run_id)
        elif isinstance(event, Moved) and (event.event == "handoff" or event.state is State.ACTIVE):
            self._leads.add(str(event.run_id))


def _as_recorded(event: Event) -> tuple[Any, ...]:
    if isinstance(event, RunComplete):
        about = (event.session_id, "complete", event.run_id, event.seq)
        return (*about, event.cancelled, event.error)
    assert isinstance(event, Moved)
    return tuple(event)


def compare_view(dispatcher: Dispatcher, session: str, abstract: AbstractSession) -> Iterator[str]:
    """Yield where a look at a session differs from the abstract session."""
    view = dispatcher.session(session)
    lead = view.active.run_id if view.active else ""
    turn = [run.run_id for run in (view.active, *view.folded) if run is not None]
    for name, runs, should in (
        ("accepted", [run.run_id for run in view.accepted], abstract.in_state(DeclaredState.ACCEPTED)),
        ("settling", [run.run_id for run in view.settling], abstract.in_state(DeclaredState.CANCEL_ON_ENTRY)),
        ("queued", [run.run_id for run in view.queued], abstract.queue),
        ("active and folded", turn, abstract.turn),
    ):
        if sorted(runs) != sorted(should) or (name == "queued" and runs != should):
            yield f"a look at {session} shows {runs} {name}: it should show {should}"
    held = {run.run_id for run in (*view.accepted, *view.queued) if run.held}
    if held != abstract.held:
        yield f"a look at {session} shows {sorted(held)} held: it should show {sorted(abstract.held)}"
    for leads, runs_so_led in ((view.active, view.folded), (None, (*view.accepted, *view.queued))):
        for run in runs_so_led:
            if run.lead is not leads:
                yield f"{run.run_id} of {session} says that {run.lead} leads its turn"
    if lead != abstract.lead or view.covered != (lead in abstract.covered):
        yield f"a look at {session} shows {lead!r} active, covered {view.covered}"


def read_text(loop: VirtualLoop, dispatcher: Dispatcher, run_id: str, start: int) -> str | None:
    """Return what a stream of a complete run gives from an offset on; None if the run is not kept."""
    run = dispatcher.find(run_id)
    if run is None:
        return None

    async def read() -> str:
        return "".join([piece async for piece in run.stream(start)])

    return loop.call(read())
