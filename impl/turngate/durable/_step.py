"""One step of a session: rows, the same core as in memory, rows again. No I/O.

A step begins with the session as it was loaded. It calls the methods of `SessionCore` that the dispatcher in
memory calls, and every decision about a run is made there. The effects that the core returns are performed
here as far as they change records:

1. A run that is cancelled on entry, and a covered turn whose runner was not called, settle in the same step.
2. A turn that starts gets an owner and a new fence. It runs when the step is saved, never before.
3. What an owner does to its turn (fold, begin, finish) counts only under the turn's fence: the number alone
   decides. A turn that was given up has a new fence, or has ended.

Any process may take over what a dead one has left: `reap` ends the turn of a dead owner or runs it again,
`claim` takes a turn that has no owner, and `enter` enters the run of a holder that is gone. Each is a step
like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from turngate._core import (
    ACCEPTED,
    COMPLETE,
    QUEUED,
    RUNNING,
    WAITING,
    Queue,
    RunRecord,
    SessionCore,
    TurnRecord,
)
from turngate._errors import NotWaiting, RunConflict, TurngateError
from turngate.durable._records import (
    REMEMBERED,
    Changes,
    Decision,
    Loaded,
    RunChange,
    RunRow,
    SessionRow,
    digest_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from turngate._core import Decided, Edit, State
    from turngate._messages import Message
    from turngate._prompt import WhenBusy
    from turngate.durable._records import KeyRow
    from turngate.durable._turns import PendingAccept

DIED: Final = "the process that ran the turn died"
ATTEMPTS: Final = 3
"""How many times a turn is begun before it counts as lost, if it may run again at all."""


class Fenced(TurngateError):
    """The turn was given up: what its former owner wants to write is discarded."""


class Recovered(NamedTuple):
    """What happened to a turn whose process died, or that had no owner."""

    what: Literal["lost", "retried", "cancelled", "taken over"]
    runs: tuple[str, ...]
    """The runs of the turn."""
    attempt: int
    successors: tuple[str, ...] = ()
    """The runs of the turn that starts in its place."""
    queued: int = 0
    """How many runs wait behind that."""


class Touched(NamedTuple):
    """The runs that a call has covered or changed, those that it has held, and those that wait after it."""

    runs: list[RunRecord]
    held: list[RunRecord] = []  # noqa: RUF012 - of a tuple
    waiting: list[RunRecord] = []  # noqa: RUF012


class Step:
    """A session between the load and the save.

    worker   takes the step, and will own a turn that it starts places   whether turns wait for places, so
    that a turn that starts has not begun yet closing  whether the worker takes no more turns: one that starts
    has no owner until another worker claims it
    """

    def __init__(
        self,
        loaded: Loaded,
        worker: int,
        token: str,
        *,
        places: bool = False,
        closing: bool = False,
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
        self.published: list[RunRecord] = []
        self.started: TurnRecord | None = None
        self.interrupted = False
        self.key: KeyRow | None = None
        """The idempotency key of the step, with its answer."""
        self.changes: Changes | None = None
        """What has to be written, once it is decided."""
        self.messages: list[Message] = []
        self._places = places
        self._closing = closing
        self._history: list[dict[str, Any]] = []
        self.core = SessionCore(loaded.session_id, f"msg-{self.row.token}-")
        self.runs: dict[str, RunRecord] = {}
        self.rows: dict[str, RunRow] = {}
        self.accepted: dict[str, PendingAccept | None] = {}
        """The runs that this step accepts, with what stays in the accepting process."""
        self.attachments: dict[str, str] = {}
        """The attachments of the runs that this step edits."""
        self._put_into_core()

    def _put_into_core(self) -> None:
        core = self.core
        core.mark = self.row.mark
        active: list[tuple[int, RunRecord]] = []
        core.queue = Queue(self.row.queued)
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
            turn = core.turn = TurnRecord(active[0][1], covered=self.row.covered)
            turn.runs = [run for _, run in active]
            turn.bound = tuple(run for run in self.runs.values() if run.into == self.row.lead)
            turn.phase = RUNNING if self.begun else WAITING

    def _run_of(self, row: RunRow) -> RunRecord:
        run = row.as_record()
        self.runs[row.run_id], self.rows[row.run_id] = run, row
        return run

    # Inputs from callers.

    def accept(
        self,
        run_id: str,
        prompt: str,
        attachments: str,
        when_busy: WhenBusy,
        queue_limit: int,
        pending: PendingAccept | None = None,
        *,
        into: str | None = None,
        data: str = "",
    ) -> None:
        """Accept a run, unless its id is already known. Refuses what `Dispatcher.accept` refuses."""
        session_id = self.loaded.session_id
        digest = digest_of(session_id, prompt, attachments, data)
        if self.loaded.known is not None:
            if self.loaded.known.row.digest != digest:
                raise RunConflict(f"run {run_id!r} is known with another payload")
            return
        row = RunRow(
            run_id, session_id, self.next_seq, ACCEPTED, when_busy, False, self.worker, 0, prompt,
            attachments, digest, data, self.next_seq,
        )  # fmt: skip
        run = row.as_record()
        self._perform(self.core.accept(run, queue_limit, into))
        self.runs[run_id], self.rows[run_id] = run, row
        self.next_seq += 1
        self.accepted[run_id] = pending

    def enter(self, run_id: str) -> State | None:
        """Enter the run, and return what was decided; None if it is not accepted (any more)."""
        run = self.runs.get(run_id)
        if run is None or run.state is not ACCEPTED:
            return None
        decided = self.core.enter(run)
        state = run.state
        self._perform(decided)
        return state

    def release(self, run_id: str) -> None:
        """Complete a run that never enters."""
        if (run := self.runs.get(run_id)) is not None:
            self._perform(self.core.release(run))

    def cancel(self) -> list[RunRecord]:
        """Cover every run of the session. The whole queue must have been asked for."""
        covered, decided = self.core.cancel()
        self._perform(decided)
        return covered

    def cancel_run(self, run_id: str, *, waiting_only: bool = False) -> list[RunRecord]:
        """Cover this run, which must have been asked for, or the turn that it is part of."""
        run = self.runs.get(run_id)
        if run is None:
            return []
        covered, decided = self.core.cancel_run(run, waiting_only=waiting_only)
        self._perform(decided)
        return covered

    def clear(self) -> list[RunRecord]:
        """Drop what is queued; the whole queue must have been asked for."""
        dropped, decided = self.core.clear()
        self._perform(decided)
        return dropped

    # Inputs from callers who change waiting runs. The whole queue must have been asked for.

    def hold(self, run_id: str | None = None) -> Touched:
        """Hold the run, or all waiting runs."""
        return self._touched(self.core.hold(None if run_id is None else self.waiting(run_id)))

    def resume(self, run_id: str | None = None) -> Touched:
        """Resume the run, or all held runs."""
        return self._touched(self.core.resume(None if run_id is None else self.waiting(run_id)))

    def stop(self, turn: str | None) -> Touched:
        """Cover the active turn alone, and hold the waiting runs."""
        covered, held, decided = self.core.stop(turn)
        waiting = self.core.line()
        self._perform(decided)
        return Touched(covered, held, waiting)

    def move(self, run_id: str, before: str | None, to: Literal["first", "last"] | None) -> Touched:
        """Change the position of a waiting run."""
        run = self.waiting(run_id)
        place = to if before is None else self.waiting(before)
        assert place is not None
        return self._touched(([run], self.core.move(run, place)))

    def edit(self, run_id: str, changes: Callable[[RunRecord, str], tuple[Edit, str]]) -> Touched:
        """Edit a waiting run; `changes` takes it and its attachments, and returns the edit and new ones."""
        run = self.waiting(run_id)
        edited, self.attachments[run_id] = changes(run, self.rows[run_id].attachments)
        return self._touched(([run], self.core.edit(run, edited)))

    def send_now(self, run_id: str, turn: str | None) -> Touched:
        """Make a queued run the next one, and cover the active turn alone."""
        covered, decided = self.core.send_now(self.waiting(run_id), turn)
        waiting = self.core.line()
        self._perform(decided)
        return Touched(covered, [], waiting)

    def waiting(self, run_id: str) -> RunRecord:
        """Return a run that was found on the ledger; raise if it is complete now."""
        run = self.runs.get(run_id)
        if run is None:
            raise NotWaiting(f"run {run_id} is complete: it does not wait any more", COMPLETE)
        return run

    def _touched(self, step: tuple[list[RunRecord], Decided]) -> Touched:
        runs, decided = step
        self._perform(decided)
        return Touched(runs)

    # Inputs from the owner of the turn.

    def _turn(self, fence: int) -> TurnRecord:
        """Return the turn with this fence; the number alone says whether it still counts."""
        turn = self.core.turn
        if turn is None or self.fence != fence:
            raise Fenced(f"session {self.loaded.session_id!r}: the turn of fence {fence} was given up")
        return turn

    def begin(self, fence: int) -> bool:
        """Note that the runner is about to be called; False if a cancel came first."""
        turn = self._turn(fence)
        self.begun = self.core.begin(turn)
        return self.begun

    def fold(self, fence: int) -> list[RunRecord]:
        """Take the foldable runs into the turn; the whole queue must have been asked for."""
        taken, decided = self.core.fold(self._turn(fence))
        self._perform(decided)
        return taken

    def finish(
        self, fence: int, text: str, error: str | None, kept: str | None, unwritten: str | None = None
    ) -> None:
        """Complete the turn, write its messages and hand off; `unwritten` says why there are none."""
        self._settle(self._turn(fence), text, error, kept, unwritten)

    def give_up(self, fence: int) -> None:
        """Leave a turn whose runner was not called to the process that claims it first."""
        if not self.begun:
            self._turn(fence)
            self.owner = None

    # Inputs from a process that finds what another has left behind.

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
        taken over. It may run again: it runs again from the beginning. Otherwise its runs are lost.
        """
        turn = self.core.turn
        if turn is None or self.owner is None or self.loaded.owner_lives:
            return None
        if turn.covered:
            self._settle(turn, self.loaded.text, None, self.loaded.kept)
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
        self, what: Literal["lost", "retried", "cancelled", "taken over"], turn: TurnRecord
    ) -> Recovered:
        following = self.core.turn
        successors = () if following is None or following is turn else _names(following)
        return Recovered(what, _names(turn), self.attempts, successors, len(self.core.queue))

    def _lose(self, turn: TurnRecord) -> None:
        turn.is_lost = True
        self._settle(turn, self.loaded.text, DIED, self.loaded.kept)

    # What the core asks for.

    def _perform(self, decided: Decided) -> None:
        effects, entries = decided
        self._history += [entry.line for entry in entries]
        for effect in effects:
            match effect:
                case ("publish", run):
                    self.published.append(run)
                case ("start", turn) if turn.covered:
                    self._settle(turn, "", None, None)
                case ("start", turn):
                    self.attempts = 1
                    self._own(turn)
                case ("interrupt", _):
                    self.interrupted = True

    def _own(self, turn: TurnRecord) -> None:
        """Give the turn to this worker under a new fence; a closing worker takes none."""
        self.fence = self.loaded.fresh
        self.owner = None if self._closing else self.worker
        self.begun = self.owner is not None and not self._places
        self.since = self.loaded.now
        self.started = None if self._closing else turn

    def _settle(
        self,
        turn: TurnRecord,
        text: str,
        error: str | None,
        kept: str | None,
        unwritten: str | None = None,
    ) -> None:
        """Write the turn and complete its runs. In one step, no cancel can come in between."""
        if turn is self.core.turn:
            self.started = None
        self.core.end(turn, text, error, kept)
        messages = self.core.outcome(turn)
        if unwritten is None:
            self.messages += messages
        decided = self.core.written(turn, messages, unwritten)
        assert decided is not None
        self._perform(decided)

    # What has to be written.

    def decision(self, step_id: str, result: Any) -> Decision:
        """Return what the step decided."""
        self.changes = self._changes(step_id)
        return Decision(self.changes, result)

    def _changes(self, step_id: str) -> Changes | None:
        places = {} if self.core.turn is None else {r.run_id: n for n, r in enumerate(self.core.turn.runs)}
        moved: list[RunChange] = []
        new: list[RunRow] = []
        for run_id, run in self.runs.items():
            row, now = self.rows[run_id], self.row_of(run, places.get(run_id))
            if run_id in self.accepted:
                new.append(now)
            elif run.complete is None and now != row:
                moved.append(RunChange.between(row, now))
        done = [run.complete for run in self.published if run.complete is not None]
        if not (new or moved or done) and self._after(self.row.version, self.row.recent) == self.row:
            return None  # a cancel or a clear that found nothing to do
        assert not (new and done) or new[0].run_id not in {complete.run_id for complete in done}
        after = self._after(self.row.version + 1, (*self.row.recent, step_id)[-REMEMBERED:])
        key = None if self.key is None else self.key._replace(step_id=step_id)
        return Changes(
            self.loaded.session_id,
            self.loaded.session,
            after,
            new,
            moved,
            done,
            self.messages,
            self._history,
            key,
        )

    def row_of(self, run: RunRecord, place: int | None = None) -> RunRow:
        """Return the row of a run as the step leaves it, with its place in the turn if that is new."""
        row = self.rows[run.run_id]
        return row.updated(run, row.place if place is None else place, self.attachments.get(run.run_id))

    def _after(self, version: int, recent: tuple[str, ...]) -> SessionRow:
        core, turn, token = self.core, self.core.turn, self.row.token
        if turn is None:
            return SessionRow(
                token, version, self.next_seq, core.mark, len(core.queue), fence=self.fence, recent=recent
            )
        return SessionRow(
            token, version, self.next_seq, core.mark, len(core.queue), turn.lead.run_id, self.owner,
            self.fence, turn.covered, self.begun, self.attempts, self.since, recent,
        )  # fmt: skip


def _names(turn: TurnRecord) -> tuple[str, ...]:
    return tuple(run.run_id for run in turn.runs)
