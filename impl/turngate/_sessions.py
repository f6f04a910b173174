"""The sessions that have something in flight in memory: their cores, and their handles."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from turngate._core import RunRecord, SessionCore, TurnRecord
    from turngate._handles import Run, Turn


class Sessions:
    """The cores by session, and the handles that stand for their records.

    `accepted` counts the runs that are accepted and have not entered, `entering` those of them that enter in
    the background.
    """

    def __init__(self, new_core: Callable[[str], SessionCore]) -> None:
        self.cores: dict[str, SessionCore] = {}
        self.runs: dict[str, Run] = {}
        self.turns: dict[TurnRecord, Turn] = {}
        self.accepted = 0
        self.entering = 0
        self._new_core = new_core

    def core(self, session_id: str) -> SessionCore:
        """Return the core of the session; for a quiet session a new one, which is not kept."""
        return self.cores.get(session_id) or self._new_core(session_id)

    def handles(self, records: Iterable[RunRecord]) -> list[Run]:
        """Return the handles of runs that are in flight."""
        return [self.runs[record.run_id] for record in records]

    def forget_if_quiet(self, core: SessionCore) -> None:
        """Hold no memory for a session that has nothing in flight."""
        if core.is_quiet():
            self.cores.pop(core.session_id, None)
