"""One step of a session: rows, the unchanged core, rows again. No I/O; every ledger and process shares it.

A step is made of the session as it was loaded. It calls the same methods of the same `SessionCore` that the
dispatcher in memory calls, and every line that decides about a run is there. What the core asks for is dealt
with here as far as it is a matter of record:

1. A run that is cancelled on entry, and a covered turn whose runner was not called, settle in the same step.
2. A turn that starts gets an owner and a new fence. It runs when the step is saved, never before.
3. What its owner does to a turn (fold, begin, finish) counts only under the turn's fence: the number alone
   decides. A turn that was given up for dead has been given another one, or is over.

Whoever notices does what nobody else will: `reap` ends the turn of a dead owner or runs it again, `claim`
takes a turn that has none, `enter` lets in the run of a holder that is gone. Each is a step like any other.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

from turngate._core import SessionCore
from turngate._errors import RunConflict, TurngateError
from turngate._journal import JournaledCore
from turngate._lifecycle import ACCEPTED, QUEUED, RUNNING, WAITING
from turngate._queue import Queue
from turngate._run import Run, Turn
from turngate.durable._records import (
    REMEMBERED,
    Changes,
    Decision,
    Loaded,
    RunChange,
    RunRow,
    SessionRow,
    as_attachments,
    as_json,
    digest_of,
)

if TYPE_CHECKING:
    from turngate._core import Effect
    from turngate._dispatcher import Dispatcher
    from turngate._journal import Noted
    from turngate._lifecycle import State
    from turngate._messages import Message
    from turngate._prompt import Attachment, WhenBusy
    from turngate.durable._records import KeyRow

DIED: Final = "the process that ran the turn died"
ATTEMPTS: Final = 3
"""So often a turn is begun before it counts as lost, if it may be run again at all."""
_NOBODY: Final = cast("Dispatcher", None)
"""The dispatcher of the runs in a step, which nobody holds: callers and runners have handles of their own."""


class Fenced(TurngateError):
    """The turn was given up for dead: what its old owner wants to write is thrown away."""


class Recovered(NamedTuple):
    """What became of a turn whose process died, or that belonged to no process."""

    what: Literal["lost", "retried", "cancelled", "taken over"]
    runs: tuple[str, ...]
    """The runs of the turn."""
    attempt: int
    successors: tuple[str, ...] = ()
    """The runs of the turn that starts in its place."""
    queued: int = 0
    """How many runs wait behind that."""


class HeadOfQueue(Queue):
    """As much of a queue as was loaded, which knows how many runs there are behind it."""

    __slots__ = ("beyond",)

    def __init__(self, beyond: int) -> None:
        super().__init__()
        self.beyond = beyond

    def __len__(self) -> int:
        return super().__len__() + self.beyond


class Step:
    """A session between the load and the save.

    worker   who takes the step, and will own the turn that starts by it
    places   whether turns wait for places, so that none has begun when it starts
    closing  whether the worker takes no turn any more: what starts has no owner until another one claims it
    history  whether the decisions are noted
    """

    def __init__(
        self,
        loaded: Loaded,
        worker: int,
        token: str,
        *,
        places: bool = False,
        closing: bool = False,
        history: bool = True,
    ) -> None:
        self.loaded = loaded
        self.worker = worker
        self.row = loaded.session or SessionRow(token, loaded.fresh, fence=loaded.fresh)
        self.fence = self.row.fence
        self.owner = self.row.owner
        self.begun = self.row.begun
        self.attempts = self.row.attempts
        self.since = self.row.since
        self.next_seq = self.row.next_seq
        self.published: list[Run] = []
        self.started: Turn | None = None
        self.interrupted = False
        self.key: KeyRow | None = None
        """The key under which the step is taken, with its answer."""
        self.changes: Changes | None = None
        """What is to be written, once that is decided."""
        self.messages: list[Message] = []
        self._places = places
        self._closing = closing
        self._untold: deque[Noted] = deque()
        kind = JournaledCore if history else SessionCore
        self.core = kind(loaded.session_id, f"msg-{self.row.token}-", self._untold)
        self.runs: dict[str, Run] = {}
        self.rows: dict[str, RunRow] = {}
        self.newcomers: dict[str, object] = {}
        """The runs that this step takes in, with what whoever asked for it has given along."""
        self._put_into_core()

    def _put_into_core(self) -> None:
        core = self.core
        core.mark = self.row.mark
        active: list[tuple[int, Run]] = []
        core.queue = HeadOfQueue(self.row.queued)
        for row in sorted(self.loaded.runs, key=lambda row: row.seq):
            run = self._run_of(row)
            if run.state is ACCEPTED:
                core.accepted[run.seq] = run
                core.covered_accepted += run.seq <= core.mark
            elif run.state is QUEUED:
                core.queue.add(run)
                core.queue.beyond -= 1
            else:
                active.append((row.place, run))
        if self.row.lead is not None:
            active.sort(key=lambda each: each[0])
            assert active[0][1].run_id == self.row.lead, f"{self.row} is not led by {active[0][1]}"
            turn = core.turn = Turn(active[0][1], covered=self.row.covered)
            turn._runs = [run for _, run in active]
            turn.phase = RUNNING if self.begun else WAITING

    def _run_of(self, row: RunRow) -> Run:
        run = Run(
            _NOBODY,
            row.session_id,
            row.run_id,
            row.seq,
            row.prompt,
            as_attachments(row.attachments),
            row.when_busy,
        )
        run.state, run.covered = row.state, row.covered
        self.runs[row.run_id], self.rows[row.run_id] = run, row
        return run

    # Inputs from callers.

    def accept(
        self,
        run_id: str,
        prompt: str,
        attachments: tuple[Attachment | str, ...],
        when_busy: WhenBusy,
        queue_limit: int,
        newcomer: object = None,
    ) -> Run | None:
        """Take a run in; None if it is known by this id already. Refuses what `Dispatcher.accept` refuses."""
        session_id = self.loaded.session_id
        attached = as_json(attachments)
        digest = digest_of(session_id, prompt, attached)
        if self.loaded.known is not None:
            if self.loaded.known.row.digest != digest:
                raise RunConflict(f"run {run_id!r} is known with another payload")
            return None
        if not self.core.is_quiet():
            self.core.check_room(when_busy, queue_limit)
            if when_busy == "interrupt":
                self._perform(self.core.interrupt())
        row = RunRow(
            run_id, session_id, self.next_seq, ACCEPTED, when_busy, False, self.worker, 0, prompt, attached,
            digest,
        )  # fmt: skip
        self.next_seq += 1
        run = self._run_of(row)
        self.newcomers[run_id] = newcomer
        self.core.accept(run)
        return run

    def enter(self, run_id: str) -> State | None:
        """Let the run in, and return what was decided; None if it is not accepted (any more)."""
        run = self.runs.get(run_id)
        if run is None or run.state is not ACCEPTED:
            return None
        effects = self.core.enter(run)
        decided = run.state
        self._perform(effects)
        return decided

    def release(self, run_id: str) -> None:
        """Complete a run that will not enter."""
        if (run := self.runs.get(run_id)) is not None:
            self._perform(self.core.release(run))

    def cancel(self) -> list[Run]:
        """Cover every run of the session; the whole queue must have been asked for."""
        covered, effects = self.core.cancel()
        self._perform(effects)
        return covered

    def cancel_run(self, run_id: str, *, waiting_only: bool = False) -> list[Run]:
        """Cover this run, which must have been asked for, or the turn that it is part of."""
        run = self.runs.get(run_id)
        if run is None:
            return []
        covered, effects = self.core.cancel_run(run, waiting_only=waiting_only)
        self._perform(effects)
        return covered

    def clear(self) -> list[Run]:
        """Drop what is queued; the whole queue must have been asked for."""
        dropped, effects = self.core.clear()
        self._perform(effects)
        return dropped

    # Inputs from the owner of the turn.

    def _turn(self, fence: int) -> Turn:
        """Return the turn that has this fence; the number alone says whether it still counts."""
        turn = self.core.turn
        if turn is None or self.fence != fence:
            raise Fenced(f"session {self.loaded.session_id!r}: the turn of fence {fence} was given up")
        return turn

    def begin(self, fence: int) -> bool:
        """Note that the runner is about to be called; False if a cancel was first."""
        turn = self._turn(fence)
        self.begun = self.core.begin(turn)
        return self.begun

    def fold(self, fence: int) -> list[Run]:
        """Take the foldable runs into the turn; the whole queue must have been asked for."""
        return self.core.fold(self._turn(fence))

    def finish(
        self, fence: int, text: str, error: str | None, kept: str | None, unwritten: str | None = None
    ) -> None:
        """Complete the turn, write its messages and hand off; `unwritten` says why there are no messages."""
        turn = self._turn(fence)
        turn.kept = kept
        self._settle(turn, text, error, unwritten)

    def give_up(self, fence: int) -> None:
        """Leave a turn whose runner was not called to whoever claims it."""
        if not self.begun:
            self._turn(fence)
            self.owner = None

    # Inputs from whoever notices.

    def claim(self) -> Recovered | None:
        """Take a turn that has no owner; None if there is none."""
        turn = self.core.turn
        if turn is None or self.owner is not None:
            return None
        self._own(turn)
        return self._recovered("taken over", turn)

    def reap(self, *, retry: bool) -> Recovered | None:
        """End the turn of an owner that is dead, or take it over; None if there is none.

        There are four cases. A cancel covers it: it completes as cancelled. Its runner was not called: it is
        taken over. It may be run again: it is, from the beginning. Otherwise its runs are lost.
        """
        turn = self.core.turn
        if turn is None or self.owner is None or self.loaded.owner_lives:
            return None
        if turn.covered:
            turn.kept = self.loaded.kept
            self._settle(turn, self.loaded.text, None)
            return self._recovered("cancelled", turn)
        if not self.begun:
            self._own(turn)
            return self._recovered("taken over", turn)
        if retry and self.attempts < ATTEMPTS:
            self.attempts += 1
            self._own(turn)
            return self._recovered("retried", turn)
        self._lose(turn)
        return self._recovered("lost", turn)

    def _recovered(
        self, what: Literal["lost", "retried", "cancelled", "taken over"], turn: Turn
    ) -> Recovered:
        following = self.core.turn
        successors = () if following is None or following is turn else _names(following)
        return Recovered(what, _names(turn), self.attempts, successors, len(self.core.queue))

    def _lose(self, turn: Turn) -> None:
        turn.kept = self.loaded.kept
        lost = [*turn._runs]
        self._settle(turn, self.loaded.text, DIED)
        for run in lost:
            assert run.complete is not None
            run.complete = run.complete._replace(outcome="lost")

    # What the core asks for.

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case ("publish", run):
                    self.published.append(run)
                case ("start", turn) if turn.covered:
                    self._settle(turn, "", None)
                case ("start", turn):
                    self.attempts = 1
                    self._own(turn)
                case ("interrupt", _):
                    self.interrupted = True

    def _own(self, turn: Turn) -> None:
        """Give the turn to this worker under a new fence; a worker that closes takes none."""
        self.fence = self.loaded.fresh
        self.owner = None if self._closing else self.worker
        self.begun = self.owner is not None and not self._places
        self.since = self.loaded.now
        self.started = None if self._closing else turn

    def _settle(self, turn: Turn, text: str, error: str | None, unwritten: str | None = None) -> None:
        """Write the turn and complete its runs: in one step there is no time for a cancel in between."""
        if turn is self.core.turn:
            self.started = None
        self.core.end(turn, text, error)
        messages = self.core.outcome(turn)
        if unwritten is None:
            self.messages += messages
        self._perform(self.core.written(turn, messages, unwritten))

    # What is to be written.

    def decision(self, step_id: str, came_of: Any) -> Decision:
        """Return what the step has come to."""
        self.changes = self._changes(step_id)
        return Decision(self.changes, came_of)

    def _changes(self, step_id: str) -> Changes | None:
        places = {} if self.core.turn is None else {r.run_id: n for n, r in enumerate(self.core.turn._runs)}
        moved: list[RunChange] = []
        new: list[RunRow] = []
        for run_id, run in self.runs.items():
            row = self.rows[run_id]
            state, covered, place = run.state, run.covered, places.get(run_id, row.place)
            if run_id in self.newcomers:
                new.append(row._replace(state=state, covered=covered, place=place))
            elif run.complete is None and (state, covered, place) != (row.state, row.covered, row.place):
                moved.append(RunChange(run_id, state, covered, place))
        done = [run.complete for run in self.published if run.complete is not None]
        entries = [entry for entry, _ in self._untold]
        if not (new or moved or done) and self._after(self.row.version, self.row.recent) == self.row:
            return None  # a cancel or a clear that found nothing to do
        assert not (new and done) or new[0].run_id not in {complete.run_id for complete in done}
        after = self._after(self.row.version + 1, (*self.row.recent, step_id)[-REMEMBERED:])
        key = None if self.key is None else self.key._replace(step_id=step_id)
        return Changes(
            self.loaded.session_id, self.loaded.session, after, new, moved, done, self.messages, entries, key
        )

    def _after(self, version: int, recent: tuple[str, ...]) -> SessionRow:
        core, turn, token = self.core, self.core.turn, self.row.token
        if turn is None:
            return SessionRow(
                token, version, self.next_seq, core.mark, len(core.queue), fence=self.fence, recent=recent
            )
        return SessionRow(
            token, version, self.next_seq, core.mark, len(core.queue), turn.run.run_id, self.owner,
            self.fence, turn.covered, self.begun, self.attempts, self.since, recent,
        )  # fmt: skip


def _names(turn: Turn) -> tuple[str, ...]:
    return tuple(run.run_id for run in turn._runs)
