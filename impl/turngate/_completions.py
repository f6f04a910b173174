"""What is kept of complete runs: the RunComplete, and a digest of the payload that tells retry from conflict.

A complete run is kept as one plain tuple of strings and numbers. The garbage collector stops looking at such
a tuple after one pass; it would walk an object, and all that the object holds, in every full collection.
"""

from __future__ import annotations

import weakref
from collections import deque
from sys import getsizeof
from typing import TYPE_CHECKING

from turngate._events import RunComplete

if TYPE_CHECKING:
    from turngate._run import Attachment, Run

_FIELDS = len(RunComplete._fields)
_EACH = 512
"""Roughly the bytes that a kept completion takes beside its text."""


class Completions:
    """The completions that can be asked for by run_id: so many, and of so many bytes; the oldest go first."""

    __slots__ = ("_bytes", "_bytes_limit", "_kept", "_limit", "_order")

    def __init__(self, limit: int, bytes_limit: int) -> None:
        self._limit = limit
        self._bytes_limit = bytes_limit
        self._bytes = 0
        self._kept: dict[str, tuple[object, ...]] = {}
        self._order: deque[str] = deque()

    def keep(self, run: Run, complete: RunComplete, named: bool) -> None:
        """Keep what is to be known of a complete run.

        A run that was `named` by its caller is likely to be asked for by that name again, so its handle is
        found too, as long as somebody holds it.
        """
        payload = hash((run.session_id, run.prompt, run.attachments))
        run_id = run.run_id
        text = complete.text
        # To unpack the completion instead would make a list first.
        self._kept[run_id] = complete + (payload, weakref.ref(run) if named else None)  # noqa: RUF005
        self._order.append(run_id)
        self._bytes += _EACH + getsizeof(text) if text else _EACH
        if self._bytes > self._bytes_limit or len(self._order) > self._limit:
            self._forget()

    def _forget(self) -> None:
        while self._bytes > self._bytes_limit or len(self._order) > self._limit:
            complete = self._complete(self._kept.pop(self._order.popleft()))
            self._bytes -= _EACH + getsizeof(complete.text) if complete.text else _EACH

    def find(self, run_id: str) -> RunComplete | None:
        """Return the completion of the run, None if there is none or it is no longer kept."""
        kept = self._kept.get(run_id)
        return None if kept is None else self._complete(kept)

    def is_same(self, run_id: str, payload: tuple[str, str, tuple[Attachment | str, ...]]) -> bool:
        """Say whether a run whose completion is kept had this payload: by chance, another once in 2**64."""
        return self._kept[run_id][_FIELDS] == hash(payload)

    def handle(self, run_id: str) -> Run | None:
        """Return the handle of a run whose completion is kept, if it was named and is still held."""
        reference: object = self._kept[run_id][_FIELDS + 1]
        return reference() if isinstance(reference, weakref.ref) else None

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    @staticmethod
    def _complete(kept: tuple[object, ...]) -> RunComplete:
        return tuple.__new__(RunComplete, kept[:_FIELDS])
