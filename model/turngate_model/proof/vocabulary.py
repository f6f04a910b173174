"""The vocabulary of the proof: every symbol in which a state of the world is told.

A state is not a list of runs but a table of answers: for every run whether it
is accepted, for every session what its mark is. There is no bound on the
number of runs and sessions. Lists of the mechanism become a set and, where a
step looks at it, an order; a turn is told by the run that leads it.

The symbols of the mechanism say what ``ModelSession`` says, those of the
abstract session what ``AbstractSession`` says. The last ones are kept by
known-bad designs only, and are no part of the proof.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from turngate_model.proof.terms import Constant, Phase, Record, Sort, State

_R, _S = Sort.RUN, Sort.SESSION


class Symbol(NamedTuple):
    """One question about a state: of what it is asked, what kind of answer it has, and what it means."""

    arguments: tuple[Sort, ...]
    result: Sort
    meaning: str


MECHANISM = {
    "accepted": Symbol((_R,), Sort.BOOL, "the run is accepted and has not entered"),
    "foldable": Symbol((_R,), Sort.BOOL, "the run, accepted or queued, may join an active turn"),
    "singled_out": Symbol((_R,), Sort.BOOL, "the accepted run was cancelled alone"),
    "entering": Symbol((_R,), Sort.BOOL, "the canceled turn of the run is being written"),
    "queue": Symbol((_R,), Sort.BOOL, "the run is in the queue of its session"),
    "ahead": Symbol((_R, _R), Sort.BOOL, "the first run comes before the second in their queue"),
    "active": Symbol((_R,), Sort.BOOL, "the session holds the run to be the lead of its active turn"),
    "busy": Symbol((_S,), Sort.BOOL, "the session holds a turn to be active"),
    "phase": Symbol((_R,), Sort.PHASE, "what the turn that the run leads is doing"),
    "interrupted": Symbol((_R,), Sort.BOOL, "the turn that the run leads is cancelled"),
    "folded": Symbol((_R, _R), Sort.BOOL, "the first run is folded into the turn that the second leads"),
    "seq": Symbol((_R,), Sort.INT, "the sequence stamped at accept"),
    "mark": Symbol((_S,), Sort.INT, "the cancel mark"),
    "next": Symbol((_S,), Sort.INT, "a number above every sequence that the session has stamped"),
}
ABSTRACT = {
    "state": Symbol((_R,), Sort.STATE, "where the run is in its life"),
    "covered": Symbol((_R,), Sort.BOOL, "a cancel applies to the run"),
    "cleared": Symbol((_R,), Sort.BOOL, "the queue was cleared while the run was in it"),
    "may_fold": Symbol((_R,), Sort.BOOL, "the run may join an active turn"),
    "record": Symbol((_R,), Sort.RECORD, "what the messages of the run say"),
    "in_turn": Symbol((_R,), Sort.BOOL, "the run is part of the turn that is active and not complete"),
    "lead": Symbol((_R,), Sort.BOOL, "the active turn was started for the run"),
    "running": Symbol((_S,), Sort.BOOL, "the runner's call for the active turn is going on"),
    "older": Symbol((_R, _R), Sort.BOOL, "of two runs of a session, the first was accepted earlier"),
    "completes": Symbol((_R,), Sort.INT, "how many RunCompletes the run has had"),
    "outcome": Symbol((_R,), Sort.BOOL, "the last RunComplete of the run said cancelled"),
}
OF_DESIGNS = {
    "pending": Symbol((_S,), Sort.INT, "the flag or count that some designs keep instead of a mark"),
    "halves": Symbol((_S,), Sort.INT, "how many second halves are still to come that are about no run"),
    "half": Symbol((_R, _R), Sort.BOOL, "the first run is in the second half named after the second"),
    "half_says": Symbol((_R,), Sort.BOOL, "the second half named after the run says cancelled"),
}
SIGNATURE = MECHANISM | ABSTRACT
"""What the proof is about."""
EVERYTHING = SIGNATURE | OF_DESIGNS

NOTHING: dict[Sort, bool | int | Constant] = {
    Sort.BOOL: False,
    Sort.INT: 0,
    Sort.STATE: State.UNBORN,
    Sort.PHASE: Phase.NONE,
    Sort.RECORD: Record.NOTHING,
}
"""For every kind of answer, the one that is given where nothing has happened yet."""

World: TypeAlias = dict[str, Callable[..., Any]]
"""A state of the world: for every symbol, the function that answers it."""
