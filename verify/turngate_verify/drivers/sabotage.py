"""Sabotage: the known-bad designs, each built into the real dispatcher with a few changed lines.

Each design is a subclass of the dispatcher, and most have a changed core. So
production code has no switch for them. Some designs take two steps where the real
core takes one. Their core passes the second step to ``later``, and the loop runs
it in a callback.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, cast

from turngate import Dispatcher, Message, Run, Turn
from turngate._core import CLEARED, Effect, SessionCore
from turngate._journal import JournaledCore
from turngate._lifecycle import ACCEPTED, ACTIVE, CANCEL_ON_ENTRY, QUEUED
from turngate._messages import Messages
from turngate._queue import Queue
from turngate_model import DESIGNS, Property

EXAMPLES = 2000
"""The rules find each design within so many examples of up to forty steps, with each of ten seeds.

The hardest to find, `unlocked-drain`, takes up to a third of them. `make sabotage` measures this.
"""


class Core(JournaledCore):
    """A core that can take the second half of a step later."""

    later: Callable[[Callable[[], list[Effect]]], None]

    def end_without_handoff(
        self, turn: Turn, messages: tuple[Message, ...], error: str | None
    ) -> list[Effect]:
        """Complete the runs of the turn, and leave the queue as it is."""
        queue, self.queue = self.queue, Queue()
        effects = JournaledCore.written(self, turn, messages, error)
        self.queue = queue
        return effects

    def is_quiet(self) -> bool:
        """Whether nothing is in flight. Unlike the real core, this one may have a queue and no turn."""
        return super().is_quiet() and not self.queue


class Sabotaged(Dispatcher):
    """The dispatcher with a core that can be changed."""

    core: ClassVar[type[Core]] = Core
    claimed: ClassVar[tuple[Property, ...]] = ()
    """The properties that the design is said to break."""

    def _new_core(self, session_id: str) -> SessionCore:
        core = self.core(session_id, self._message_prefix, self._journal.untold)
        core.later = lambda half: self._later(core, half)
        return core

    def _later(self, core: Core, half: Callable[[], list[Effect]]) -> None:
        def second_half() -> None:
            self._perform(half())
            self._forget_if_quiet(core)

        self._here().call_soon(second_half)


class NoAcceptTracking(Sabotaged):
    """Cancel looks at the active run only; a prompt accepted but not yet active escapes."""

    class core(Core):
        def _cover(self, newest: int) -> list[Effect]:
            effects = super()._cover(newest)
            self.mark = 0
            return effects


class PendingFlag(Sabotaged):
    """One boolean "pending cancel" per session, consumed by the first run that enters."""

    class core(Core):
        pending = False

        def _cover(self, newest: int) -> list[Effect]:
            effects = super()._cover(newest)
            self.mark, self.pending = 0, bool(self.accepted)
            return effects

        def _covers(self, run: Run) -> bool:
            flag, self.pending = self.pending, False
            return flag or run.covered


class PendingCount(Sabotaged):
    """Cancel reserves one unit per accepted run, each entry consumes one."""

    class core(Core):
        pending = 0

        def _cover(self, newest: int) -> list[Effect]:
            effects = super()._cover(newest)
            self.mark, self.pending = 0, len(self.accepted)
            return effects

        def _covers(self, run: Run) -> bool:
            unit = min(self.pending, 1)
            self.pending -= unit
            return bool(unit) or run.covered


class HastyClear(Sabotaged):
    """The mark is removed when any covered run has entered, or any turn ends."""

    class core(Core):
        def _leave_accepted(self, run: Run) -> None:
            covered = run.seq <= self.mark
            super()._leave_accepted(run)
            if covered:
                self.mark = 0

        def written(self, turn: Turn, messages: tuple[Message, ...], error: str | None) -> list[Effect]:
            self.mark = 0
            return super().written(turn, messages, error)


class SilentEntry(Sabotaged):
    """Cancel-on-entry returns without a RunComplete."""

    class core(Core):
        def enter(self, run: Run) -> list[Effect]:
            effects = super().enter(run)
            if run.state is CANCEL_ON_ENTRY:
                del self.settling[run.seq]
                return []
            return effects


class UnlockedDrain(Sabotaged):
    """The queue is taken under the lock, the mark is looked at after it is released."""

    class DrainingTurn(Turn):
        __slots__ = ()

        async def fold(self) -> list[Run]:
            dispatcher = self.run._dispatcher
            core = dispatcher._session(self.run.session_id)
            taken = [*itertools.takewhile(lambda run: run.when_busy == "fold", core.queue.in_order())]
            for run in taken:
                core.queue.take(run)
            await asyncio.sleep(0)
            folded = [run for run in taken if not core._covers(run)]
            for run in folded:
                core._move(run, "fold", ACTIVE)
            self._runs += folded
            dispatcher._perform([])
            return folded

    def _start(self, turn: Turn) -> None:
        turn.__class__ = self.DrainingTurn
        super()._start(turn)


class SilentDrop(Sabotaged):
    """Queued runs removed by a cancel get no RunComplete."""

    class core(Core):
        def _drop_queue(self, *, error: str | None = None, cancelled: bool = False) -> list[Effect]:
            if not cancelled:
                return super()._drop_queue(error=error)
            self.queue = Queue()
            return []


class SilentFold(Sabotaged):
    """Folded runs get no RunComplete."""

    class core(Core):
        def written(self, turn: Turn, messages: tuple[Message, ...], error: str | None) -> list[Effect]:
            del turn._runs[1:]
            return super().written(turn, messages, error)


class SwallowedOuter(Sabotaged):
    """A finished run that hands off leaves its RunComplete to its successor."""

    class core(Core):
        def written(self, turn: Turn, messages: tuple[Message, ...], error: str | None) -> list[Effect]:
            if turn is self.turn and self.queue:
                turn._runs.clear()
            return super().written(turn, messages, error)


class StrandedQueue(Sabotaged):
    """Only a turn that ends well hands off; after an error or a cancel the queue just stays."""

    class core(Core):
        def written(self, turn: Turn, messages: tuple[Message, ...], error: str | None) -> list[Effect]:
            if turn.error is None and not turn.covered:
                return super().written(turn, messages, error)
            return self.end_without_handoff(turn, messages, error)


class IdleGap(Sabotaged):
    """The active entry is removed first, the successor chosen later."""

    class core(Core):
        def written(self, turn: Turn, messages: tuple[Message, ...], error: str | None) -> list[Effect]:
            effects = self.end_without_handoff(turn, messages, error)
            if self.turn is None and self.queue:
                self.later(self.choose_successor)
            return effects

        def choose_successor(self) -> list[Effect]:
            if not self.queue:
                return []
            successor = self.queue.take_first()
            self._move(successor, "handoff", ACTIVE)
            self.turn = Turn(successor)
            return [("start", self.turn)]


class UnserializedEntry(Sabotaged):
    """To ask whether the session is busy and to become active are two steps."""

    class core(Core):
        def enter(self, run: Run) -> list[Effect]:
            if run.state is not ACCEPTED or self.turn is not None or self._covers(run):
                return super().enter(run)
            self.later(lambda: self.become_active(run))
            return []

        def become_active(self, run: Run) -> list[Effect]:
            if run.state is not ACCEPTED:
                return []
            self._move(run, "enter", ACTIVE)
            self._leave_accepted(run)
            self.turn = Turn(run)
            return [("start", self.turn)]


class BlindRelease(Sabotaged):
    """A turn that ends removes whatever active entry it finds, its successor's too."""

    class core(Core):
        def written(self, turn: Turn, messages: tuple[Message, ...], error: str | None) -> list[Effect]:
            if turn.run.state is ACTIVE:
                self.turn = turn
            effects = super().written(turn, messages, error)
            if effects and effects[-1][0] == "start":
                self.later(self.remove_entry)
            return effects

        def remove_entry(self) -> list[Effect]:
            self.turn = None
            return []


class UnlockedClear(Sabotaged):
    """Clearing the queue reads it and deletes it in two steps."""

    class core(Core):
        def clear(self) -> tuple[list[Run], list[Effect]]:
            self._note("clear")
            read = [*self.queue.in_order()]
            self.later(lambda: self.delete(read))
            return read, []

        def delete(self, read: list[Run]) -> list[Effect]:
            self.queue = Queue()
            for run in read:
                run.state = QUEUED  # as it was when it was read; it may have changed since
            return [self._complete(run, "drop", "cleared", "", CLEARED, cancelled=False) for run in read]


class Untracked(Sabotaged):
    """In-process prompts carry sequence 0 and are covered by any mark present."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.in_process: set[Run] = set()

    class core(Core):
        def _covers(self, run: Run) -> bool:
            in_process = cast("Untracked", run._dispatcher).in_process
            return (self.mark > 0 and run in in_process) or super()._covers(run)

    async def submit(self, *args: Any, **options: Any) -> Run:
        """Submit a prompt, and remember that its run comes from within the process."""
        run = await super().submit(*args, **options)
        self.in_process.add(run)
        return run


class LateMark(Untracked):
    """Cancel reads "something is accepted", the handle closes, cancel then sets the mark."""

    class core(Untracked.core):
        setting = False

        def _cover(self, newest: int) -> list[Effect]:
            before = self.mark
            effects = super()._cover(newest)
            mark, self.mark = self.mark, before
            if mark > before:
                self.setting = True
                self.later(lambda: self.set_mark(mark))
            return effects

        def set_mark(self, mark: int) -> list[Effect]:
            self.mark, self.setting = max(self.mark, mark), False
            self.covered_accepted = sum(seq <= self.mark for seq in self.accepted)
            return []

        def is_quiet(self) -> bool:
            """Whether nothing is in flight, and no mark is set or about to be set."""
            return super().is_quiet() and not self.setting and not self.mark


class LateOwnComplete(Sabotaged):
    """A run's RunComplete is held back until the runs queued behind it are done."""

    class core(Core):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.held: list[tuple[Turn, tuple[Message, ...], str | None]] = []

        def written(self, turn: Turn, messages: tuple[Message, ...], error: str | None) -> list[Effect]:
            if turn is not self.turn:
                return super().written(turn, messages, error)
            if self.queue:
                runs, turn._runs = turn._runs, []
                effects = super().written(turn, messages, error)
                turn._runs = runs
                if effects:
                    self.held.append((turn, messages, error))
                return effects
            effects = super().written(turn, messages, error)
            while effects and self.held:
                self.turn, messages, error = self.held.pop()
                effects += super().written(self.turn, messages, error)
            return effects


class PublishFirst(Sabotaged):
    """RunComplete is published before the messages are written."""

    class WriteBehind:
        def __init__(self, inner: Messages) -> None:
            self._inner = inner
            self.list = inner.list

        async def put(self, messages: Sequence[Message]) -> None:
            asyncio.get_running_loop().create_task(self._inner.put(messages))

    def __init__(self, *args: Any, messages: Messages, **options: Any) -> None:
        super().__init__(*args, messages=self.WriteBehind(messages), **options)


class ReusedId(Sabotaged):
    """A second prompt under a known run_id runs as well."""

    async def accept(self, *args: Any, run_id: str | None = None, **options: Any) -> Run:
        """Forget the run_id if it is known, and accept."""
        if run_id is not None:
            self._runs.pop(run_id, None)
            self._completions._kept.pop(run_id, None)
        return await super().accept(*args, run_id=run_id, **options)


class LeakySession(Sabotaged):
    """The per-session lock or mark stays when the session is quiet."""

    def _forget_if_quiet(self, core: SessionCore) -> None:
        """Keep the core, also when the session is quiet."""


class Sabotage(NamedTuple):
    """A known-bad design, built into the real dispatcher, and the properties that it is said to break."""

    name: str
    make: type[Dispatcher]
    breaks: tuple[Property, ...]
    race: bool
    """Whether it breaks them only if something else happens between two of its steps."""


_RACES = {UnlockedDrain, IdleGap, UnserializedEntry, BlindRelease, UnlockedClear, LateMark}


def _sabotage(name: str, make: type[Sabotaged]) -> Sabotage:
    """Tell the class what its design is said to break, according to the model."""
    make.claimed = DESIGNS[name].breaks
    return Sabotage(name, make, make.claimed, make in _RACES)


SABOTAGES = {
    name: _sabotage(name, make)
    for name, make in (
        ("no-accept-tracking", NoAcceptTracking),
        ("pending-flag", PendingFlag),
        ("pending-count", PendingCount),
        ("hasty-clear", HastyClear),
        ("silent-entry", SilentEntry),
        ("unlocked-drain", UnlockedDrain),
        ("silent-drop", SilentDrop),
        ("silent-fold", SilentFold),
        ("swallowed-outer", SwallowedOuter),
        ("stranded-queue", StrandedQueue),
        ("idle-gap", IdleGap),
        ("unserialized-entry", UnserializedEntry),
        ("blind-release", BlindRelease),
        ("unlocked-clear", UnlockedClear),
        ("late-mark", LateMark),
        ("untracked", Untracked),
        ("late-own-complete", LateOwnComplete),
        ("publish-first", PublishFirst),
        ("reused-id", ReusedId),
        ("leaky-session", LeakySession),
    )
}
