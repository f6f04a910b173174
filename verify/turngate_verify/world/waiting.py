"""Judges the turns that wait for a place in a closed world, by the abstract places.

A turn gets its place in one step of the loop, and its task calls the runner in a later one. Anything may
happen between the two, and of two turns that have a place either may be called first. So a call is right if
there is a place for it and for every turn that waits ahead of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from turngate import Dispatcher
from turngate_model import AbstractSession, Property, Violation
from turngate_model.abstract_places import AbstractPlaces
from turngate_model.history import Event


class WaitingTurns:
    """Judges the runner calls of a world whose dispatcher limits them."""

    def __init__(self, limit: int) -> None:
        self._places = AbstractPlaces(limit)

    def observe(self, session: str, event: Event, abstract: AbstractSession) -> list[Violation]:
        """Process an event after the abstract session has, and return what it breaks."""
        broken = list(self._places.broken_by(session, event))
        self._places = self._places.after(session, event, abstract)
        return broken

    def at_rest(self, dispatcher: Dispatcher) -> Iterator[Violation]:
        """Yield what is wrong if the loop has nothing to do: a turn waits although a place is free.

        A turn that should have started when the loop seemed to end keeps its place until a timer is due, even
        if a cancel has covered it meanwhile. Until then nothing can be said.
        """
        if any(view.phase == "starting" for view in dispatcher.sessions()):
            return
        for session in self._places.due:
            view = dispatcher.session(str(session))
            if view.phase == "waiting" and view.active is not None:
                idle = f"{view.active.run_id} waits for a place although one is free: it should be called"
                yield Violation(Property.REFINES, idle)

    def waits(self, session: str) -> bool:
        """Return whether the turn of a session has not been called, and is not covered."""
        return session in self._places.waiting

    def key(self) -> Hashable:
        """Return a value that is equal for two moments exactly if both judge every later event alike."""
        return self._places
