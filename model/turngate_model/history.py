"""What can be seen of a session from outside: the events of its history.

A mechanism, a real dispatcher or a recording is judged by these events alone.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from turngate_model.lifecycle import DeclaredState

FinishReason: TypeAlias = Literal["end_turn", "error", "canceled", "unwritten"]
"""What the record of a run says; ``unwritten`` when the store has failed."""


class Accept(NamedTuple):
    """A prompt was taken in."""

    run: str
    foldable: bool = True


class Enter(NamedTuple):
    """An accepted run was decided."""

    run: str
    state: DeclaredState


class Fold(NamedTuple):
    """A queued run joined the active turn of ``into``."""

    run: str
    into: str


class Handoff(NamedTuple):
    """A queued run became the next turn."""

    run: str


class Cancel(NamedTuple):
    """Somebody cancelled: the whole session, or only the runs named."""

    runs: frozenset[str] | None = None


class Clear(NamedTuple):
    """The queue was cleared."""


class Ended(NamedTuple):
    """The runner's call for this lead run is over."""

    run: str


class Wrote(NamedTuple):
    """The messages of a run were written, or writing them has failed."""

    run: str
    reason: FinishReason


class Complete(NamedTuple):
    """The RunComplete of a run was published."""

    run: str
    cancelled: bool
    error: str | None = None


Event: TypeAlias = Accept | Enter | Fold | Handoff | Cancel | Clear | Ended | Wrote | Complete
