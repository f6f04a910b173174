"""Idempotency keys: remembers what the call under a key returned, so that a repetition changes nothing.

A key belongs to one request: the operation, what it is about, and its options. An answer is kept as the names
of its runs: their handles would keep prompts in memory.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Final, NamedTuple

from turngate._errors import KeyConflict
from turngate._prompt import plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from turngate._core import RunRecord
    from turngate._handles import Run

LONGEST_KEY: Final = 256
"""The most characters of a key."""
KEPT_IN_MEMORY: Final = 10_000
"""Keys that a dispatcher in memory remembers; it forgets the oldest first."""
KEPT_ON_A_LEDGER: Final = 24 * 3600.0
"""Seconds for which a ledger remembers a key."""


class RunName(NamedTuple):
    """A run in an answer; its `seq` distinguishes it from a later run with the same run_id."""

    run_id: str
    session_id: str
    seq: int


class Answer(NamedTuple):
    """What a call returned."""

    runs: tuple[RunName, ...]
    known: bool = True
    held: tuple[RunName, ...] = ()
    waiting: tuple[RunName, ...] = ()

    def as_json(self) -> str:
        """Return the answer as text for a ledger."""
        more = {"held": self.held, "waiting": self.waiting}
        return json.dumps(
            {"runs": self.runs, "known": self.known, **{name: of for name, of in more.items() if of}}
        )


def answer_from(text: str) -> Answer:
    """Parse the text of an answer."""
    said = json.loads(text)
    runs, held, waiting = (
        tuple(RunName(*name) for name in said.get(part, ())) for part in ("runs", "held", "waiting")
    )
    return Answer(runs, said["known"], held, waiting)


def answer_of(
    runs: Iterable[Run | RunRecord],
    *,
    known: bool = True,
    held: Iterable[Run | RunRecord] = (),
    waiting: Iterable[Run | RunRecord] = (),
) -> Answer:
    """Return the answer that names these runs."""
    return Answer(_names(runs), known, _names(held), _names(waiting))


def _names(runs: Iterable[Run | RunRecord]) -> tuple[RunName, ...]:
    return tuple(RunName(run.run_id, run.session_id, run.seq) for run in runs)


def check_key(key: object) -> str:
    """Return the key as a plain string; raise if it is not a valid key."""
    if not isinstance(key, str):
        raise TypeError(f"a key must be a string, not {type(key).__name__}")
    if not key:
        raise ValueError("a key must not be empty")
    if len(key) > LONGEST_KEY:
        raise ValueError(f"a key has at most {LONGEST_KEY} characters, not {len(key)}")
    return plain(key)


def request_of(operation: str, *about: object) -> str:
    """Return what identifies a request: the operation, and a digest of its arguments."""
    said = json.dumps(about, default=repr)
    return f"{operation} {hashlib.sha256(said.encode()).hexdigest()[:32]}"


def check_same(key: str, kept: str, request: str) -> None:
    """Raise KeyConflict if the key was used for another request."""
    if kept != request:
        first, second = kept.partition(" ")[0], request.partition(" ")[0]
        about = "another request of the same kind" if first == second else f"{first}, and this is {second}"
        raise KeyConflict(f"the key {key!r} was used for {about}")


class Keys:
    """The last keys of a dispatcher in memory."""

    def __init__(self, most: int = KEPT_IN_MEMORY) -> None:
        self._most = most
        self._kept: dict[str, tuple[str, Answer]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._kept

    def find(self, key: str, request: str) -> Answer | None:
        """Return the answer that is kept under the key; None if the key is new.

        Raises KeyConflict if the key was used for another request.
        """
        kept = self._kept.get(key)
        if kept is None:
            return None
        check_same(key, kept[0], request)
        return kept[1]

    def keep(self, key: str, request: str, answer: Answer) -> None:
        """Remember the answer; forget the oldest one if there are too many."""
        self._kept[key] = request, answer
        if len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]
