"""What callers call: the names of `Dispatcher`, each a step on the ledger."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from turngate._core import ACCEPTED, ACTIVE, COMPLETE, QUEUED, Edit
from turngate._errors import (
    AlreadyEntered,
    DispatcherClosed,
    NotWaiting,
    QueueFull,
    UnknownRun,
    counted,
)
from turngate._handles import Covered, Run, SessionView
from turngate._keys import answer_from, answer_of, check_key, check_same, request_of
from turngate._log import log
from turngate._prompt import (
    UNCHANGED,
    check_attachments,
    check_edited_when_busy,
    check_finish,
    check_one_position,
    check_prompt,
    check_text,
    encode,
    plain,
    whole_number,
)
from turngate._runner import prepare_runner
from turngate._turn import current_turn
from turngate.durable._ledger import LedgerUnavailable, PurgeCutShort
from turngate.durable._records import ALL, KeyRow, as_attachments, as_json, digest_of
from turngate.durable._step import Touched
from turngate.durable._stepper import Settings
from turngate.durable._turns import PendingAccept
from turngate.durable._worker import Worker
from turngate.durable.feed import LedgerCursor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import Self, TextIO, Unpack

    from turngate._core import RunRecord, State
    from turngate._events import RunComplete, Subscription
    from turngate._handles import Runner
    from turngate._keys import Answer, RunName
    from turngate._messages import ListOfMessages, Message
    from turngate._prompt import Attachment, OnComplete, PromptOptions, Unchanged, WhenBusy
    from turngate.durable._ledger import Ledger
    from turngate.durable._records import Known, Loaded
    from turngate.durable._step import Step
    from turngate.durable._stepper import Stepper
    from turngate.durable.feed import LedgerCompletions, Start

_LONGEST_NAME: Final = 512
"""The most characters of the id of a session or a run; databases cannot index longer ones."""
_AT_ONCE: Final = 500
"""How many runs one query asks for."""
_END: Final = "end"
"""The part of a key that stores the answer of an operation of several steps."""


def _keyed(key: str | None, operation: str, *about: object) -> KeyRow | None:
    """Return the row of an idempotency key for this request, without an answer; None without a key."""
    return None if key is None else KeyRow(check_key(key), "", request_of(operation, *about), "")


_PAUSE: Final = 0.1
"""Seconds between two slices of a purge, at most."""


class _DrawnTwice(Exception):
    """The id that was drawn for a run is already taken."""


class LedgerMessages:
    """The messages on the ledger, which are written with the steps that create them."""

    def __init__(self, stepper: Stepper) -> None:
        self._ledger = stepper.ledger
        self._stepper = stepper

    async def put(self, messages: Sequence[Message]) -> None:
        """Refuse: a message is part of the step that completes its run."""
        raise TypeError("the messages of a ledger are written by its steps only")

    async def list(
        self, session_id: str, *, after: str | None = None, limit: int | None = None
    ) -> ListOfMessages:
        """Return the messages of the session, at most `limit`, starting after `after`.

        Raises ValueError if the session has no message `after`.
        """
        if limit is not None:
            whole_number("limit", limit, at_least=0)
        await self._stepper.ready()
        return await self._ledger.messages(session_id, after, limit)

    async def of_run(self, run_id: str) -> ListOfMessages:
        """Return the messages of the turn that the run was part of."""
        await self._stepper.ready()
        return await self._ledger.messages_of(run_id)


class DurableDispatcher:
    """Runs prompts through the runner, one turn at a time per session, for any number of processes.

    The names are those of `Dispatcher`, but methods that only look are awaited too. An operation returns
    after its commit, and its result outlives the process. Entering the context, or the first operation, opens
    the ledger; leaving it is `aclose()`, which closes the ledger too. If the ledger cannot be reached, an
    operation raises LedgerUnavailable, and nothing is done in part.

    runner          called once per turn; see `Turn`
    ledger          `SqliteLedger(path)` or `PostgresLedger(dsn)`, used by this dispatcher alone
    on_death        what happens to a turn whose process died: "fail", its runs complete with the outcome
                    "lost"; "retry", it runs again from the beginning, three times at most
    lease           seconds without a sign of life after which a process counts as dead
    poll            seconds between two looks at the ledger for changes that no hint has announced
    enter_timeout   seconds after which other processes enter a run that its holder has not entered
    checkpoint      seconds between two checkpoints of the text of running turns, in case the process dies
    queue_limit     accepted and queued runs per session, beyond which accept raises QueueFull
    accepted_limit  accepted runs of this process, beyond which accept raises QueueFull
    delta_limit, delta_bytes, complete_limit, turns_limit
                    as for `Dispatcher`, in this process; a `turns_limit` costs one commit more per turn

    `on_complete` and callbacks live in the process that was given them, and die with it.
    """

    def __init__(
        self,
        runner: Runner,
        ledger: Ledger,
        *,
        on_death: Literal["fail", "retry"] = "fail",
        lease: float = 30.0,
        poll: float = 1.0,
        enter_timeout: float = 30.0,
        checkpoint: float = 5.0,
        queue_limit: int = 16_384,
        accepted_limit: int = 65_536,
        delta_limit: int = 1_024,
        delta_bytes: int = 8_388_608,
        complete_limit: int = 65_536,
        turns_limit: int | None = None,
    ) -> None:
        settings = Settings(
            on_death, lease, poll, enter_timeout, checkpoint, queue_limit, accepted_limit, delta_limit,
            delta_bytes, complete_limit, turns_limit,
        )  # fmt: skip
        self._worker = worker = Worker(prepare_runner(runner), ledger, settings)
        self._ledger, self._settings = ledger, settings
        self._stepper, self._runs, self._turns = worker.stepper, worker.runs, worker.turns
        self._feed, self._close, self._loop = worker.feed, worker.close, worker.stepper.loop
        self.messages = LedgerMessages(self._stepper)
        self._drawn = 0

    # Accepting prompts.

    async def accept(
        self,
        session_id: str,
        prompt: str,
        *,
        run_id: str | None = None,
        attachments: Sequence[Attachment | str] = (),
        when_busy: WhenBusy = "fold",
        on_complete: OnComplete | None = None,
        into: str | None = None,
        data: object = None,
    ) -> Run:
        """Take a prompt in, without starting anything; as `Dispatcher.accept`, on the ledger.

        A known run_id with the same payload returns that run, whichever process has it. A caller that was
        cancelled, or received LedgerUnavailable, may call again under the same run_id; nothing is done twice.
        """
        return await self._accept(
            session_id, prompt, enter=False, run_id=run_id, attachments=attachments, when_busy=when_busy,
            on_complete=on_complete, into=into, data=data,
        )  # fmt: skip

    async def submit(self, session_id: str, prompt: str, **options: Unpack[PromptOptions]) -> Run:
        """Accept and enter in one commit. Takes what accept takes."""
        return await self._accept(session_id, prompt, enter=True, **options)

    async def ask(self, session_id: str, prompt: str, **options: Unpack[PromptOptions]) -> RunComplete:
        """Submit, and wait for the RunComplete. Cancelling the caller does not touch the run.

        Raises WouldDeadlock when a runner asks something in its own session: that would wait for the runner.
        """
        loop = self._loop.check_loop()
        turn = current_turn()
        if turn is None:
            run = await self.submit(session_id, prompt, **options)
            return await run.until_complete(loop)
        submit = partial(self.submit, session_id, prompt, **options)
        return await self._worker.deadlocks.ask(
            turn, session_id, options.get("run_id"), options.get("when_busy", "fold"), submit
        )

    async def _accept(
        self,
        session_id: str,
        prompt: str,
        *,
        enter: bool,
        run_id: str | None = None,
        attachments: Sequence[Attachment | str] = (),
        when_busy: WhenBusy = "fold",
        on_complete: OnComplete | None = None,
        into: str | None = None,
        data: object = None,
    ) -> Run:
        checked = check_prompt(session_id, prompt, run_id, attachments, when_busy, on_complete, into)
        attached, sent = as_json(checked), "" if data is None else encode(data, "data")
        self._loop.check_loop()
        session_id, prompt = plain(session_id), plain(prompt)
        name = self._drawn_run_id() if run_id is None else plain(run_id)
        for each in (session_id, name):
            if len(each) > _LONGEST_NAME:
                raise ValueError(f"an id on a ledger has at most {_LONGEST_NAME} characters, not {len(each)}")
        if self._stepper.is_closing:
            raise DispatcherClosed("the dispatcher is closed")
        if not enter and self._accepted() >= self._settings.accepted_limit:
            raise QueueFull(
                f"{counted(self._settings.accepted_limit, 'run')} accepted and not entered (accepted_limit)"
            )
        pending = PendingAccept(copy_context(), on_complete)

        def take_in(step: Step) -> Known | None:
            known = step.loaded.known
            if known is not None and run_id is None:
                raise _DrawnTwice
            limit = self._settings.queue_limit
            step.accept(name, prompt, attached, when_busy, limit, pending, into=into, data=sent)
            if enter:
                step.enter(name)
            return known

        head = ALL if when_busy == "interrupt" else 0
        while True:
            try:
                known = await self._stepper.step(session_id, take_in, head=head, run_id=name, is_new=True)
                break
            except _DrawnTwice:  # a caller has chosen an id that looks like one of ours
                name = self._drawn_run_id()
        if known is None:
            assert pending.handle is not None
            return pending.handle
        row = known.row
        if known.complete is not None:
            row = row._replace(prompt=prompt, attachments=attached, data=sent)
        return self._runs.handle_of(row, known.complete, known.position)

    def _drawn_run_id(self) -> str:
        self._drawn += 1
        return f"run-{self._stepper.token}{self._drawn:x}"

    def _accepted(self) -> int:
        """Count the runs that were accepted here and, as far as this process knows, have not entered."""
        waited_for = self._runs.waited_for
        if len(waited_for) < self._settings.accepted_limit:
            return 0
        return sum(run.state is ACCEPTED for run in waited_for.values())

    async def enter(self, run: Run) -> State:
        """Decide whether the run is cancelled on entry, queued or active; its turn runs in the background.

        Decides once: raises AlreadyEntered if the run is no longer accepted.
        """
        self._loop.check_loop()
        if run.home is not self._worker:
            raise UnknownRun(f"run {run.run_id} is not one of this dispatcher")
        run_id = run.run_id

        def let_in(step: Step) -> State:
            if (decided := step.enter(run_id)) is not None:
                return decided
            known = step.loaded.known
            if known is None:
                raise UnknownRun(f"run {run_id!r} is unknown, or no longer kept")
            raise AlreadyEntered(f"run {run_id} is {known.row.state}")

        return await self._stepper.step(run.session_id, let_in, run_id=run_id)

    async def wait(self, run_id: str) -> RunComplete:
        """Return the RunComplete of the run, at once if it is complete, whichever process it ends in.

        Raises UnknownRun if the ledger has no such run, or if it was purged before this process read its
        outcome. Cancelling the caller does not touch the run.
        """
        self._loop.check_loop()
        run = self._runs.handles.get(run_id) or await self.find(run_id)
        if run is None:
            raise UnknownRun(f"run {run_id!r} is unknown, or no longer kept")
        return await run.wait()

    # Cancelling.

    async def cancel(self, session_id: str, *, key: str | None = None) -> Covered:
        """Cover every run of the session that is accepted and not complete; nothing when it is idle.

        Queued runs complete with the commit, the others as they settle, in any process. A repetition under
        the same `key`, in any process, changes nothing and returns what the first call returned; raises
        KeyConflict if the key was used for another request. Keys are kept for 24 hours.
        """
        asked = _keyed(key, "cancel", session_id)
        return await self._once(asked, session_id, lambda step: Touched(step.cancel()), head=ALL)

    async def cancel_run(self, run_id: str, *, waiting_only: bool = False, key: str | None = None) -> Covered:
        """Cover this one run or, when it is part of the active turn, the whole turn.

        The queue goes on. With `waiting_only`, the run is covered only while its runner has not been called.
        Nothing is covered if the run is complete or unknown; `Covered.known` tells these apart.
        `key` is an idempotency key, as for `cancel`.
        """
        asked = _keyed(key, "cancel_run", run_id, bool(waiting_only))
        await self._stepper.ready()
        if asked is not None and (kept := await self._ledger.find_key(asked.key)) is not None:
            return await self._answered(asked, kept)
        found = await self._ledger.find([run_id])
        if not found or found[0].complete is not None:
            nothing = Covered([], bool(found))
            if asked is None:
                return nothing
            asked = asked._replace(answer=answer_of([], known=nothing.known).as_json())
            return await self._answered(asked, await self._ledger.keep_key(asked))

        def cover(step: Step) -> Touched:
            return Touched(step.cancel_run(run_id, waiting_only=waiting_only))

        return await self._once(asked, found[0].row.session_id, cover, head=1, run_id=run_id)

    async def cancel_all(self, *, key: str | None = None) -> Covered:
        """Cancel every session that has something in flight, of all processes, one after another.

        `key` is an idempotency key, as for `cancel`. Repeating a call that was interrupted continues with the
        sessions that had something in flight at the first call and that it did not reach.
        """
        asked = _keyed(key, "cancel_all")
        await self._stepper.ready()
        if asked is None:
            covered: list[Run] = []
            for loaded in await self._ledger.view(None):
                covered += (await self.cancel(loaded.session_id)).runs
            return Covered(sorted(covered, key=lambda run: (run.session_id, run.seq)))
        plan = await self._ledger.find_key(asked.key)
        if plan is None:
            sessions = [loaded.session_id for loaded in await self._ledger.view(None)]
            plan = await self._ledger.keep_key(asked._replace(answer=json.dumps(sessions)))
        check_same(asked.key, plan.request, asked.request)
        end = await self._ledger.find_key(asked.key, _END)
        if end is None:
            answer = await self._cancel_in_parts(asked, json.loads(plan.answer))
            end = await self._ledger.keep_key(asked._replace(part=_END, answer=answer.as_json()))
        return await self._answered(asked, end)

    async def _cancel_in_parts(self, asked: KeyRow, sessions: list[str]) -> Answer:
        """Cancel each session under a part of the key; skip those that are already done."""
        covered: list[Run] = []
        for session_id in sessions:
            part = asked._replace(part=digest_of(session_id, "", ""))
            done = await self._once(part, session_id, lambda step: Touched(step.cancel()), head=ALL)
            covered += done.runs
        return answer_of(sorted(covered, key=lambda run: (run.session_id, run.seq)))

    async def clear_queue(self, session_id: str, *, key: str | None = None) -> list[Run]:
        """Drop what is queued in the session, and return it; accepted and active runs go on.

        `key` is an idempotency key, as for `cancel`.
        """
        asked = _keyed(key, "clear_queue", session_id)
        return (await self._once(asked, session_id, lambda step: Touched(step.clear()), head=ALL)).runs

    # Changing waiting runs.

    async def hold(self, session_id: str, *, key: str | None = None) -> list[Run]:
        """Hold every waiting run of the session; as `Dispatcher.hold`, on the ledger."""
        asked = _keyed(key, "hold", session_id, None)
        return (await self._once(asked, session_id, lambda step: step.hold(), head=ALL)).runs

    async def hold_run(self, run_id: str, *, key: str | None = None) -> list[Run]:
        """Hold this run; as `Dispatcher.hold_run`, on the ledger."""
        asked = _keyed(key, "hold", None, run_id)
        return (await self._to_run(asked, run_id, lambda step: step.hold(run_id))).runs

    async def resume(self, session_id: str, *, key: str | None = None) -> list[Run]:
        """Resume every held run of the session; as `Dispatcher.resume`, on the ledger."""
        asked = _keyed(key, "resume", session_id, None)
        return (await self._once(asked, session_id, lambda step: step.resume(), head=ALL)).runs

    async def resume_run(self, run_id: str, *, key: str | None = None) -> list[Run]:
        """Resume this run; as `Dispatcher.resume_run`, on the ledger."""
        asked = _keyed(key, "resume", None, run_id)
        return (await self._to_run(asked, run_id, lambda step: step.resume(run_id))).runs

    async def stop(self, session_id: str, *, turn: str | None = None, key: str | None = None) -> Covered:
        """Cover the active turn alone and hold what waits; as `Dispatcher.stop`, on the ledger."""
        asked = _keyed(key, "stop", session_id, turn)
        return await self._once(asked, session_id, lambda step: step.stop(turn), head=ALL)

    async def move(
        self,
        run_id: str,
        *,
        before: str | None = None,
        to: Literal["first", "last"] | None = None,
        key: str | None = None,
    ) -> Run:
        """Change the position of a waiting run; as `Dispatcher.move`, on the ledger."""
        check_one_position(before, to)
        asked = _keyed(key, "move", run_id, before, to)
        moved = await self._to_run(asked, run_id, lambda step: step.move(run_id, before, to), before)
        return moved.runs[0]

    async def edit(
        self,
        run_id: str,
        *,
        prompt: str | None = None,
        attachments: Sequence[Attachment | str] | Unchanged | None = UNCHANGED,
        when_busy: Literal["fold", "queue"] | None = None,
        data: object = UNCHANGED,
        key: str | None = None,
    ) -> Run:
        """Change what the runner will be given for a waiting run; as `Dispatcher.edit`, on the ledger."""
        if when_busy is not None:
            check_edited_when_busy(when_busy)
        attached = None if attachments is UNCHANGED else check_attachments(attachments or ())
        sent = None if data is None or data is UNCHANGED else encode(data, "data")

        def changes(run: RunRecord, before: str) -> tuple[Edit, str]:
            now = as_attachments(before) if attached is None else attached
            edited = Edit(
                run.prompt if prompt is None else prompt,
                run.data if data is UNCHANGED else sent,
                when_busy,
            )
            check_text(run.session_id, edited.prompt, now)
            return edited._replace(prompt=plain(edited.prompt)), as_json(now)

        about = (prompt, None if attached is None else [*attached], when_busy, data is UNCHANGED, sent)
        asked = _keyed(key, "edit", run_id, *about)
        return (await self._to_run(asked, run_id, lambda step: step.edit(run_id, changes))).runs[0]

    async def send_now(self, run_id: str, *, turn: str | None = None, key: str | None = None) -> Covered:
        """Make a queued run the next one, and cover the active turn; as `Dispatcher.send_now`."""
        asked = _keyed(key, "send_now", run_id, turn)
        return await self._to_run(asked, run_id, lambda step: step.send_now(run_id, turn))

    async def _to_run(
        self, asked: KeyRow | None, run_id: str, fn: Callable[[Step], Touched], other: str | None = None
    ) -> Covered:
        """Take a step in the session of the run, with its whole queue; raise if there is no such run.

        If the step is about another run as well, both must be of the same session.
        """
        await self._stepper.ready()
        if asked is not None and (kept := await self._ledger.find_key(asked.key)) is not None:
            return await self._answered(asked, kept)
        known = await self._find_in_flight(run_id)
        if other is not None:
            beside = await self._find_in_flight(other)
            if beside.row.session_id != known.row.session_id:
                raise ValueError(f"run {other!r} is of another session than run {run_id!r}")
        return await self._once(asked, known.row.session_id, fn, head=ALL, run_id=run_id)

    async def _find_in_flight(self, run_id: str) -> Known:
        for known in await self._ledger.find([run_id]):
            if known.complete is not None:
                raise NotWaiting(f"run {run_id} is complete: it does not wait any more", COMPLETE)
            return known
        raise UnknownRun(f"run {run_id!r} is unknown, or no longer kept")

    async def key_life(self) -> str:
        """Return a name for the period in which keys are remembered: the epoch of the ledger.

        The keys of an epoch are also remembered in all later ones, in every process.
        """
        await self._stepper.ready()
        return await self._ledger.epoch()

    async def continues_life(self, life: str) -> bool:
        """Return whether the keys of that life are remembered here; not if an older copy of the ledger is."""
        await self._stepper.ready()
        return await self._ledger.epoch_end(life) is not None

    async def knows_key(self, key: str) -> bool:
        """Return whether a call under this key is remembered."""
        key = check_key(key)
        await self._stepper.ready()
        return await self._ledger.find_key(key) is not None

    async def _once(
        self,
        asked: KeyRow | None,
        session_id: str,
        fn: Callable[[Step], Touched],
        *,
        head: int,
        run_id: str | None = None,
    ) -> Covered:
        """Take a step, or return what the first one under this key returned.

        The key is written with the step, and by itself if the step changes nothing.
        """

        def decide(step: Step) -> tuple[Step, Touched]:
            if step.loaded.key is not None:
                return step, Touched([])
            touched = fn(step)
            if asked is not None:
                answer = answer_of(touched.runs, held=touched.held, waiting=touched.waiting)
                step.key = asked._replace(answer=answer.as_json())
            return step, touched

        key = None if asked is None else (asked.key, asked.part)
        step, touched = await self._stepper.step(session_id, decide, head=head, run_id=run_id, key=key)
        if asked is not None:
            kept = step.loaded.key
            if kept is None and step.key is not None and step.changes is None:
                kept = await self._ledger.keep_key(step.key)
            if kept is not None and kept != step.key:
                return await self._answered(asked, kept)
        runs, held, waiting = (self._runs.all_seen(step, each) for each in touched)
        return Covered(runs, held=held, waiting=waiting)

    async def _answered(self, asked: KeyRow, kept: KeyRow) -> Covered:
        """Return the kept answer, as the first call returned it."""
        check_same(asked.key, kept.request, asked.request)
        answer = answer_from(kept.answer)
        names = [name.run_id for part in (answer.runs, answer.held, answer.waiting) for name in part]
        known = {
            each.row.run_id: each
            for start in range(0, len(names), _AT_ONCE)
            for each in await self._ledger.find(names[start : start + _AT_ONCE])
        }
        runs, held, waiting = (
            [self._handle_named(name, known.get(name.run_id)) for name in part]
            for part in (answer.runs, answer.held, answer.waiting)
        )
        return Covered(runs, answer.known, held, waiting)

    def _handle_named(self, name: RunName, known: Known | None) -> Run:
        """Return the handle of a run in a repeated answer; the run may have been purged."""
        if known is not None and (known.row.session_id, known.row.seq) == name[1:]:
            return self._runs.handle_of(known.row, known.complete, known.position)
        return self._runs.forgotten(name)

    async def purge(self, *, before: float, progress: Callable[[int], object] | None = None) -> int:
        """Forget the runs that were complete at that time (seconds since the epoch), and their messages.

        Works in slices of a few hundred runs, so that other steps can go on in between. `progress` is called
        after each slice with the number of runs purged so far; what it raises ends the purge. Runs in flight
        are not touched. Returns how many runs were purged. Raises PurgeCutShort if the ledger fails after
        some were purged: they stay purged, and another purge can take the rest.

        A reader that has not yet read a RunComplete that is purged gets an error: completions raise
        CursorExpired, and subscriptions SubscriberCutOff.
        """
        await self._stepper.ready()
        gone, began = 0, time.monotonic()
        try:
            async for purged in self._ledger.purge(float(before)):
                gone += purged
                if purged and progress is not None:
                    progress(gone)
                # Leave other processes that wait for the ledger as much time as the slice took.
                await asyncio.sleep(min(time.monotonic() - began, _PAUSE))
                began = time.monotonic()
        except LedgerUnavailable as exc:
            if gone:
                raise PurgeCutShort(gone, exc) from exc
            raise
        if gone:
            log(logging.INFO, "purged %d %s", gone, "run" if gone == 1 else "runs")
        return gone

    async def write_history(self, out: TextIO, *, after: str | None = None, follow: bool = False) -> int:
        """Write every decision that the ledger keeps, in the order of the commits, for `turngate trace`.

        Returns the number of lines. If nothing more will happen, add an `end` line. `at` in each line is the
        time at which it was saved. The last line of each step has a `cursor`: passed as `after`, it continues
        after that step. With `follow`, also writes what every process decides from now on, until this
        dispatcher is closed, and flushes `out`. Raises CursorExpired if what comes next has been purged, or
        if `after` is of another ledger.
        """
        lines = 0
        async for page in self._feed.history(after, follow=follow):
            lines += len(page)
            out.writelines(json.dumps(line) + "\n" for line in page)
            if follow:
                out.flush()
        return lines

    async def __aenter__(self) -> Self:
        await self._stepper.ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # Looking.

    async def is_busy(self, session_id: str | None = None) -> bool:
        """Return whether a turn is active in the session, or in any."""
        await self._stepper.ready()
        views = await self._ledger.view(session_id)
        return any(each.session is not None and each.session.lead is not None for each in views)

    async def queued(self, session_id: str) -> list[Run]:
        """Return the queued runs of the session, in order."""
        return [*(await self.session(session_id)).queued]

    async def accepted_count(self, session_id: str) -> int:
        """Count the runs of the session that are accepted and have not entered."""
        return len((await self.session(session_id)).accepted)

    async def cancel_mark(self, session_id: str) -> int:
        """Return the highest sequence that a cancel covers; 0 when it covers no accepted run."""
        await self._stepper.ready()
        (loaded,) = await self._ledger.view(session_id)
        return 0 if loaded.session is None else loaded.session.mark

    async def sessions(self) -> list[SessionView]:
        """Return a view of every session that has something in flight, all at one moment."""
        await self._stepper.ready()
        return [self._view(loaded) for loaded in await self._ledger.view(None)]

    async def session(self, session_id: str) -> SessionView:
        """Return a view of a session, which may be quiet.

        For a turn in another process, `text` is that of its last checkpoint.
        """
        await self._stepper.ready()
        (loaded,) = await self._ledger.view(session_id)
        return self._view(loaded)

    def _view(self, loaded: Loaded) -> SessionView:
        runs = sorted(loaded.runs, key=lambda row: row.rank)
        line = [(row.state, self._runs.handle_of(row)) for row in runs if row.state in (ACCEPTED, QUEUED)]
        accepted, queued = (tuple(run for at, run in line if at is state) for state in (ACCEPTED, QUEUED))
        waiting = tuple(run for _, run in line)
        session = loaded.session
        if session is None or session.lead is None:
            return SessionView(loaded.session_id, accepted, (), queued, waiting=waiting)
        members = sorted((row for row in runs if row.state is ACTIVE), key=lambda row: row.place)
        lead, *folded = [self._runs.handle_of(row) for row in members]
        turn = self._turns.turn_of(session.fence)
        text = loaded.text if turn is None else "".join(turn.parts)
        phase = "running" if session.begun else "waiting"
        return SessionView(
            loaded.session_id, accepted, (), queued, lead, tuple(folded), text, session.covered,
            phase if turn is None else turn.record.phase.value, session.since, waiting,
        )  # fmt: skip

    async def find(self, run_id: str) -> Run | None:
        """Return the run, whichever process has it; None if the ledger has no such run.

        For a complete run whose handle is not held in this process, prompt and attachments are not kept.
        """
        if (run := self._runs.handles.get(run_id)) is not None and run.complete is not None:
            return run
        await self._stepper.ready()
        for known in await self._ledger.find([run_id]):
            return self._runs.handle_of(known.row, known.complete, known.position)
        return None

    # What happens.

    def subscribe(self, session_id: str | None = None, *, moves: bool = False) -> Subscription:
        """Receive the events of the session, or of all, from now on; see `Subscription`.

        RunCompletes, and with `moves` every decision, come from all processes, in each session in the order
        of its steps. Deltas and notes of turns in this process come at once. Those of other processes come in
        chunks a little later, and may be lost; losses that are noticed are counted in `dropped`. If a hook of
        this process receives a RunComplete, subscribers in this process do not receive it, except with
        `moves`; those in other processes do.
        """
        return self._feed.subscribe(session_id, moves=moves)

    async def beginning(self, subscription: Subscription) -> Start:
        """Wait until it is known where a subscription begins among the completions, and return that.

        Its `cursor` is one of `completions`, before everything that the subscription delivers;
        `brings(cursor, session_id)` says whether the subscription delivers the RunComplete that came with a
        cursor. Raises DispatcherClosed when the subscription is closed before it has begun.
        """
        return await self._feed.beginning(subscription)

    def completions(self, after: str | None = None, *, until: str | None = None) -> LedgerCompletions:
        """Return `(cursor, RunComplete)` of each complete run of every process, oldest kept first.

        An async iterator. At the end it waits for more, until the dispatcher is closed. `after` is a cursor
        that it gave, here or in another process: continue after it. `until` is one too: end there, at once if
        that is not later than `after`. Nothing appears later before a cursor already given. Raises
        CursorExpired, here or while iterating, if completions after `after` may have been purged, or if a
        cursor is of another ledger.
        """
        return self._feed.completions(after, until)

    async def end_cursor(self) -> str:
        """Return the cursor after which `completions(after=)` gives what completes from now on."""
        return await self._feed.end_cursor()

    async def settled_cursor(self) -> str:
        """Return the newest cursor of `completions` before which nothing can appear any more.

        It may be earlier than `end_cursor`: after it there may be RunCompletes that are already on the
        ledger.
        """
        return str(LedgerCursor.parse(await self.end_cursor())._replace(passed=None))

    def cursor_order(self, cursor: str) -> tuple[int, ...]:
        """Return a key that sorts the cursors of `completions` from the oldest to the newest.

        Raises CursorExpired if the text is not a cursor of a ledger.
        """
        return LedgerCursor.parse(cursor).at

    # Closing.

    async def aclose(self, *, finish: float = 0.0) -> None:
        """Refuse new prompts, end the turns of this process, and close the ledger.

        The turns may end by themselves for `finish` seconds (`math.inf`: as long as it takes); then they are
        cancelled. Accepted and queued runs stay for the other processes, or for the next start; callers that
        still wait for them here get DispatcherClosed. Idempotent: all callers wait for the same end, and the
        first one's `finish` counts. Cancelling the caller does not stop the close. A runner that calls it
        gets ClosedFromRunner.

        A close ends even if the ledger cannot be written. After `finish` it tries for as long as the lease
        lasts, but for 10 seconds at most. Then the turns are given up, which is logged. Other processes, or
        the next start, recover them like those of a process that has died.
        """
        self._loop.check_loop()
        self._worker.deadlocks.check_close(finish)
        self.begin_close(finish=finish)
        await self._close.wait()

    def begin_close(self, *, finish: float = 0.0) -> None:
        """Begin what `aclose` does, without waiting for it: for a signal handler on the loop."""
        self._loop.check_loop()
        self._close.begin(check_finish(finish))

    def call_before_close(self, call: Callable[[], Awaitable[None]]) -> None:
        """Call something when the turns of a closing process have ended and the ledger can still be read.

        Only a dispatcher with a subscription calls it, because the others have nothing left to deliver.
        """
        self._close.before_ledger_closes.append(call)

    def hasten_close(self) -> None:
        """Cancel the turns of this process now, if it is closing or as soon as it does.

        In contrast, `cancel_all` would cancel the runs of other processes too.
        """
        self._close.hasten()

    def __repr__(self) -> str:
        stepper = self._stepper
        life = "closed" if stepper.is_closed else "closing" if stepper.is_closing else "open"
        return f"<DurableDispatcher {life}: {counted(len(self._turns.owned), 'turn')} here, {self._ledger!r}>"
