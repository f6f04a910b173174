"""Sabotage: the known-bad designs, each built into the real dispatcher with a few changed lines.

Each design is a subclass of the dispatcher with another core, or with another one
of its parts. So production code has no switch for them. Some designs take two
steps where the real core takes one. Their core passes the second step to
``later``, and the loop runs it in a callback.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple

from turngate import Dispatcher, Message, Run, Turn, WrongLoop
from turngate._close import Close
from turngate._core import (
    ACCEPTED,
    ACTIVE,
    CANCEL_ON_ENTRY,
    CLEARED,
    QUEUED,
    Decided,
    Effect,
    Queue,
    RunRecord,
    SessionCore,
    TurnRecord,
)
from turngate._effects import Effects, MemoryHome, Sessions
from turngate._events import Outcome
from turngate._loop import HomeLoop
from turngate._messages import Messages
from turngate._turn import TurnRunner
from turngate_model import DESIGNS, Design, Property
from turngate_model.designs import built_in

EXAMPLES = 2000
"""The rules find each design within this many examples of up to forty steps, with each of ten seeds.

The hardest to find, `unlocked-drain`, takes up to a third of them. `make sabotage` measures this.
"""


class Core(SessionCore):
    """A core that can take the second half of a step later."""

    later: Callable[[Callable[[], Decided]], None]

    def end_without_handoff(
        self, turn: TurnRecord, messages: tuple[Message, ...], failure: str | None
    ) -> Decided | None:
        """Complete the runs of the turn, and leave the queue as it is."""
        queue, self.queue = self.queue, Queue()
        decided = SessionCore.written(self, turn, messages, failure)
        self.queue = queue
        return decided

    def is_quiet(self) -> bool:
        """Whether nothing is in flight. Unlike the real core, this one may have a queue and no turn."""
        return super().is_quiet() and not self.queue


class Handles(dict[str, Run]):
    """The handles by run_id. It remembers that of each record, also when the run is complete."""

    def __init__(self) -> None:
        super().__init__()
        self.of: dict[RunRecord, Run] = {}

    def __setitem__(self, run_id: str, run: Run) -> None:
        super().__setitem__(run_id, run)
        self.of[run.record] = run


class HandlesOfRecords(Sessions):
    """Finds the handle of a run by its record, also when another run has taken its run_id."""

    runs: Handles  # pyright: ignore[reportIncompatibleVariableOverride] - put in place by `Sabotaged`

    def handles(self, records: Any) -> list[Run]:
        """Return the handles of runs."""
        return [self.runs.of[record] for record in records]


class PublishesAgain(Effects):
    """Publishes a run also when it has done so before, or when another run has taken its run_id."""

    _sessions: HandlesOfRecords

    def _publish(self, record: RunRecord) -> None:
        self._sessions.runs[record.run_id] = self._sessions.runs.of[record]
        super()._publish(record)


class Turns(dict[TurnRecord, Turn]):
    """The handles of turns by record. It changes the kind of each handle."""

    def __init__(self, kind: type[Turn]) -> None:
        super().__init__()
        self._kind = kind

    def __setitem__(self, record: TurnRecord, turn: Turn) -> None:
        turn.__class__ = self._kind
        super().__setitem__(record, turn)


class Sabotaged(Dispatcher):
    """The dispatcher with a core and with parts that can be changed."""

    core: ClassVar[type[Core]] = Core
    sessions_class: ClassVar[type[Sessions]] = HandlesOfRecords
    effects_class: ClassVar[type[Effects]] = PublishesAgain
    turns_class: ClassVar[type[TurnRunner]] = TurnRunner
    turn_class: ClassVar[type[Turn]] = Turn
    close_class: ClassVar[type[Close]] = Close
    loop_class: ClassVar[type[HomeLoop]] = HomeLoop
    home_class: ClassVar[type[MemoryHome]] = MemoryHome
    claimed: ClassVar[tuple[Property, ...]] = ()
    """The properties that the design is said to break."""
    race: ClassVar[bool] = False
    """Whether it breaks them only if something else happens between two of its steps."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._sessions.__class__ = self.sessions_class
        self._effects.__class__ = self.effects_class
        self._effects.turns.__class__ = self.turns_class
        self._close.__class__ = self.close_class
        self._loop.__class__ = self.loop_class
        self._home.__class__ = self.home_class
        self._sessions.new_core = self._new_core
        self._sessions.runs = Handles()
        self._sessions.turns = Turns(self.turn_class)

    def _new_core(self, session_id: str, message_prefix: str) -> SessionCore:
        core = self.core(session_id, message_prefix)
        core.later = lambda half: self._later(core, half)
        return core

    def _later(self, core: Core, half: Callable[[], Decided]) -> None:
        def second_half() -> None:
            self._effects.perform(half())
            self._sessions.forget_if_quiet(core)

        with suppress(WrongLoop):  # the world is gone, and what is left of a turn is collected
            self._loop.check_loop().call_soon(second_half)


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

        def covers(self, run: RunRecord) -> bool:
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

        def covers(self, run: RunRecord) -> bool:
            unit = min(self.pending, 1)
            self.pending -= unit
            return bool(unit) or run.covered


class HastyClear(Sabotaged):
    """The mark is removed when any covered run has entered, or any turn ends."""

    class core(Core):
        def _leave_accepted(self, run: RunRecord) -> None:
            covered = run.seq <= self.mark
            super()._leave_accepted(run)
            if covered:
                self.mark = 0

        def written(
            self, turn: TurnRecord, messages: tuple[Message, ...], failure: str | None
        ) -> Decided | None:
            self.mark = 0
            return super().written(turn, messages, failure)


class SilentEntry(Sabotaged):
    """Cancel-on-entry returns without a RunComplete."""

    class core(Core):
        def enter(self, run: RunRecord) -> Decided:
            decided = super().enter(run)
            if run.state is CANCEL_ON_ENTRY:
                del self.settling[run.seq]
                return [], decided[1]
            return decided


class UnlockedDrain(Sabotaged):
    """The queue is taken under the lock, the mark is looked at after it is released."""

    race = True

    class home_class(MemoryHome):
        async def fold(self, turn: Turn) -> list[Run]:
            """Take the follow-ups in, in two steps."""
            core = self._sessions.core(turn.run.session_id)
            taken = [*itertools.takewhile(lambda run: run.when_busy == "fold", core.queue.in_order())]
            for run in taken:
                core.queue.take(run)
            await asyncio.sleep(0)
            folded = [run for run in taken if not core.covers(run)]
            for run in folded:
                core._move(run, "fold", ACTIVE, into=turn.run.run_id)
            turn.record.runs += folded
            runs = self._sessions.handles(folded)
            turn.join(runs)
            self._effects.perform(core._decided([]))
            return runs


class SilentDrop(Sabotaged):
    """Queued runs removed by a cancel get no RunComplete."""

    class core(Core):
        def _drop_queue(self, outcome: Outcome, error: str | None = None) -> list[Effect]:
            if outcome != "cancelled":
                return super()._drop_queue(outcome, error)
            self.queue = Queue()
            return []


class SilentFold(Sabotaged):
    """Folded runs get no RunComplete."""

    class core(Core):
        def written(
            self, turn: TurnRecord, messages: tuple[Message, ...], failure: str | None
        ) -> Decided | None:
            del turn.runs[1:]
            return super().written(turn, messages, failure)


class SwallowedOuter(Sabotaged):
    """A finished run that hands off leaves its RunComplete to its successor."""

    class core(Core):
        def written(
            self, turn: TurnRecord, messages: tuple[Message, ...], failure: str | None
        ) -> Decided | None:
            if turn is self.turn and self.queue:
                turn.runs.clear()
            return super().written(turn, messages, failure)


class StrandedQueue(Sabotaged):
    """Only a turn that ends well hands off; after an error or a cancel the queue just stays."""

    class core(Core):
        def written(
            self, turn: TurnRecord, messages: tuple[Message, ...], failure: str | None
        ) -> Decided | None:
            if turn.error is None and not turn.covered:
                return super().written(turn, messages, failure)
            return self.end_without_handoff(turn, messages, failure)


class IdleGap(Sabotaged):
    """The active entry is removed first, the successor chosen later."""

    race = True

    class core(Core):
        def written(
            self, turn: TurnRecord, messages: tuple[Message, ...], failure: str | None
        ) -> Decided | None:
            decided = self.end_without_handoff(turn, messages, failure)
            if self.turn is None and self.queue.free:
                self.later(self.choose_successor)
            return decided

        def choose_successor(self) -> Decided:
            return self._decided(self._start_next())


class UnserializedEntry(Sabotaged):
    """To ask whether the session is busy and to become active are two steps."""

    race = True

    class core(Core):
        def enter(self, run: RunRecord) -> Decided:
            if run.state is not ACCEPTED or self.turn is not None or self.covers(run):
                return super().enter(run)
            self.later(lambda: self.become_active(run))
            return self._decided([])

        def become_active(self, run: RunRecord) -> Decided:
            if run.state is not ACCEPTED:
                return self._decided([])
            self._move(run, "enter", ACTIVE)
            self._leave_accepted(run)
            self.turn = TurnRecord(run)
            return self._decided([("start", self.turn)])


class BlindRelease(Sabotaged):
    """A turn that ends removes whatever active entry it finds, its successor's too."""

    race = True

    class core(Core):
        def written(
            self, turn: TurnRecord, messages: tuple[Message, ...], failure: str | None
        ) -> Decided | None:
            if turn.lead.state is ACTIVE:
                self.turn = turn
            decided = super().written(turn, messages, failure)
            if decided is not None and decided[0][-1][0] == "start":
                self.later(self.remove_entry)
            return decided

        def remove_entry(self) -> Decided:
            self.turn = None
            return self._decided([])

    class sessions_class(HandlesOfRecords):
        def forget_if_quiet(self, core: SessionCore) -> None:
            """Keep the core while a turn goes on whose entry was removed."""
            if all(turn.run.session_id != core.session_id for turn in self.turns.values()):
                super().forget_if_quiet(core)


class UnlockedClear(Sabotaged):
    """Clearing the queue reads it and deletes it in two steps."""

    race = True

    class core(Core):
        def clear(self) -> tuple[list[RunRecord], Decided]:
            self._note("clear")
            read = self.queue.in_order()
            self.later(lambda: self.delete(read))
            return read, self._decided([])

        def delete(self, read: list[RunRecord]) -> Decided:
            self.queue = Queue()
            for run in read:
                run.state = QUEUED  # as it was when it was read; it may have changed since
            return self._decided([self._complete(run, "drop", "cleared", error=CLEARED) for run in read])


class Untracked(Sabotaged):
    """In-process prompts carry sequence 0 and are covered by any mark present."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.in_process: set[RunRecord] = set()

    class core(Core):
        in_process: set[RunRecord]

        def covers(self, run: RunRecord) -> bool:
            return (self.mark > 0 and run in self.in_process) or super().covers(run)

    def _new_core(self, session_id: str, message_prefix: str) -> SessionCore:
        core = super()._new_core(session_id, message_prefix)
        assert isinstance(core, Untracked.core)
        core.in_process = self.in_process
        return core

    async def submit(self, *args: Any, **options: Any) -> Run:
        """Submit a prompt, and remember that its run comes from within the process."""
        run = await super().submit(*args, **options)
        self.in_process.add(run.record)
        return run


class LateMark(Untracked):
    """Cancel reads "something is accepted", the handle closes, cancel then sets the mark."""

    race = True

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

        def set_mark(self, mark: int) -> Decided:
            self.mark, self.setting = max(self.mark, mark), False
            self.covered_accepted = sum(seq <= self.mark for seq in self.accepted)
            return self._decided([])

        def is_quiet(self) -> bool:
            """Whether nothing is in flight, and no mark is set or about to be set."""
            return super().is_quiet() and not self.setting and not self.mark


class LateOwnComplete(Sabotaged):
    """A run's RunComplete is held back until the runs queued behind it are done."""

    class core(Core):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.held: list[tuple[TurnRecord, tuple[Message, ...], str | None]] = []

        def written(
            self, turn: TurnRecord, messages: tuple[Message, ...], failure: str | None
        ) -> Decided | None:
            if turn is not self.turn:
                return super().written(turn, messages, failure)
            if self.queue:
                runs, turn.runs = turn.runs, []
                decided = super().written(turn, messages, failure)
                turn.runs = runs
                if decided is not None:
                    self.held.append((turn, messages, failure))
                return decided
            decided = super().written(turn, messages, failure)
            while decided is not None and self.held:
                self.turn, messages, failure = self.held.pop()
                later = super().written(self.turn, messages, failure)
                assert later is not None
                decided = decided[0] + later[0], [*decided[1], *later[1]]
            return decided


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
            self._sessions.runs.pop(run_id, None)
            self._completions._kept.pop(run_id, None)
        return await super().accept(*args, run_id=run_id, **options)


class LeakySession(Sabotaged):
    """The per-session lock or mark stays when the session is quiet."""

    class sessions_class(HandlesOfRecords):
        def forget_if_quiet(self, core: SessionCore) -> None:
            """Keep the core, also when the session is quiet."""


class Sabotage(NamedTuple):
    """A known-bad design, built into the real dispatcher, and the properties that it is said to break."""

    name: str
    make: type[Dispatcher]
    breaks: tuple[Property, ...]
    race: bool
    """Whether it breaks them only if something else happens between two of its steps."""


def sabotages(designs: Mapping[str, Design[Property]], names: Mapping[str, object]) -> dict[str, Sabotage]:
    """Return the designs that a module builds in, by name; tell each class what it is said to break."""
    made = built_in(designs, Sabotaged, names)
    for name, make in made.items():
        make.claimed = designs[name].breaks
    return {name: Sabotage(name, make, make.claimed, make.race) for name, make in made.items()}


SABOTAGES = sabotages(DESIGNS, globals())
"""The designs of the catalogue's first table, by their names."""
