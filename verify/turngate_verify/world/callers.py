"""The callers in a closed world: they send prompts, enter, release and cancel runs, wait, and close."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from turngate import Covered, CursorExpired, Dispatcher, Message, Run, RunComplete, State, WhenBusy
from turngate_model import AbstractSession, Property
from turngate_model.history import Cancel
from turngate_verify.world.actors import accepted_as
from turngate_verify.world.followers import (
    CompletionsFollower,
    Follower,
    MessagesFollower,
    TextFollower,
    is_expired,
)
from turngate_verify.world.monitor import Monitor
from turngate_verify.world.virtual_loop import VirtualLoop

T = TypeVar("T")


class Callers:
    """The callers of one dispatcher. What they do happens at once, unless it runs in a task."""

    completions_kept = 100_000
    """How many completions the dispatcher keeps."""

    def __init__(self, loop: VirtualLoop, dispatcher: Dispatcher, monitor: Monitor) -> None:
        self.loop = loop
        self.dispatcher = dispatcher
        self.monitor = monitor
        self.waits: dict[asyncio.Task[RunComplete], str] = {}
        """The tasks of callers who wait for a run, each with the run_id."""
        self.followers: list[Follower] = []
        """The followers of the text of a run, of the completions, or of the messages of a session."""

    @property
    def runs(self) -> dict[str, Run]:
        """Every run accepted, by id, in the order of acceptance."""
        return self.monitor.runs

    def call(self, coroutine: Coroutine[Any, Any, T], what: str) -> T:
        """Run a caller's coroutine, which must not wait; ``what`` describes the call."""
        return self.loop.call(coroutine)

    def _within(self, session: str | None, what: str, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a caller's coroutine, and expect it to change nothing in other sessions."""
        seen = len(self.monitor.history)
        result = self.call(coroutine, what)
        for other, event in self.monitor.history[seen:]:
            if other != session:
                apart = f"what was done in {session} made {event} happen in {other}: it should not"
                self.monitor.violate(Property.ISOLATION, apart)
        return result

    # Prompts.

    def accept(
        self,
        session: str,
        run_id: str,
        *,
        when_busy: WhenBusy = "fold",
        prompt: str = "",
        hook: bool = False,
        into: str | None = None,
    ) -> Run:
        """Accept a prompt under a run_id."""
        self.monitor.announce(run_id, when_busy, hook=hook)
        accepting = self.dispatcher.accept(
            session,
            prompt or f"prompt of {run_id}",
            run_id=run_id,
            when_busy=when_busy,
            on_complete=self.hook if hook else None,
            into=into,
        )
        with accepted_as(run_id):
            run = self._within(session, f"accept {run_id}", self._called_back(accepting))
        self.runs[run_id] = run
        return run

    async def _called_back(self, accepting: Coroutine[Any, Any, Run]) -> Run:
        """Accept, and add a done callback to a new run, whether it has a hook or not."""
        run = await accepting
        if run.seq not in self.monitor.called_back:
            self.monitor.called_back[run.seq] = []
            run.add_done_callback(self.monitor.called_back[run.seq].append)
        return run

    def hook(self, complete: RunComplete) -> None:
        """Act as the ``on_complete`` of a run."""
        self.monitor.hooked.append(complete)

    def submit(self, session: str, run_id: str, *, when_busy: WhenBusy = "fold") -> Run:
        """Submit a prompt, which enters on a later step of the loop."""
        self.monitor.announce(run_id, when_busy)
        submitting = self.dispatcher.submit(
            session, f"prompt of {run_id}", run_id=run_id, when_busy=when_busy
        )
        with accepted_as(run_id):
            run = self._within(session, f"submit {run_id}", self._called_back(submitting))
        self.runs[run_id] = run
        return run

    def ask(self, session: str, run_id: str, *, when_busy: WhenBusy = "fold") -> asyncio.Task[RunComplete]:
        """Ask in a task, which may be cancelled. The task submits the prompt when it runs."""
        self.monitor.announce(run_id, when_busy)
        asking = self.dispatcher.ask(session, f"prompt of {run_id}", run_id=run_id, when_busy=when_busy)
        with accepted_as(run_id):
            task = self.loop.create_task(asking, name=f"asks {run_id}")
        self.waits[task] = run_id
        return task

    def enter(self, run_id: str) -> State:
        """Enter an accepted run."""
        run = self.runs[run_id]
        return self._within(run.session_id, f"enter {run_id}", self.dispatcher.enter(run))

    def release(self, run_id: str) -> None:
        """Close the handle of a run."""
        run = self.runs[run_id]
        self._within(run.session_id, f"release {run_id}", run.close())

    def wait(self, run_id: str) -> asyncio.Task[RunComplete]:
        """Wait for a run in a task, which may be cancelled."""
        task = self.loop.create_task(self.dispatcher.wait(run_id), name=f"waits for {run_id}")
        self.waits[task] = run_id
        return task

    # Cancels.

    def cancel(self, session: str) -> Covered:
        """Cancel a session."""
        return self._cancel(session, None, "cancel", self.dispatcher.cancel(session))

    def cancel_run(self, run_id: str, *, waiting_only: bool = False) -> Covered:
        """Cancel one run; with ``waiting_only``, only while its runner has not been called."""
        session = self.runs[run_id].session_id if run_id in self.runs else None
        what = f"{'take back' if waiting_only else 'cancel run'} {run_id}"
        known = self.knows(run_id)
        cancelling = self.dispatcher.cancel_run(run_id, waiting_only=waiting_only)
        covered = self._cancel(session, run_id, what, cancelling, waiting_only=waiting_only)
        if covered.known != known:
            wrong = f"{what} says known={covered.known}: it should be {known}"
            self.monitor.errors.append(AssertionError(wrong))
        return covered

    def knows(self, run_id: str) -> bool:
        """Return whether the dispatcher must know the run."""
        return run_id in self.runs

    def _cancel(
        self,
        session: str | None,
        run_id: str | None,
        what: str,
        cancelling: Coroutine[Any, Any, Covered],
        *,
        waiting_only: bool = False,
    ) -> Covered:
        """Cancel a session or one run; expect the cancel to cover what it should, and nothing else."""
        abstract = self.monitor.sessions.get(session or "")
        should = abstract.covered_by_cancel(run_id) if abstract else []
        if waiting_only and abstract and run_id in abstract.turn and self._was_called(abstract.lead):
            should = []
        seen = len(self.monitor.history)
        covered = self._within(session, what, cancelling)
        followed = [event for _, event in self.monitor.history[seen:] if not isinstance(event, Cancel)]
        about = session if run_id is None else run_id
        if not should and (covered or followed):
            idle = (
                f"a cancel of {about}, where nothing is in flight, does something: it should change nothing"
            )
            self.monitor.violate(Property.IDLE_CANCEL, idle)
        if (said := [run.run_id for run in covered.runs]) != should:
            wrong = f"a cancel of {about} says that it covers {said}: it should cover {should}"
            self.monitor.violate(Property.FULL_COVERAGE, wrong)
        return covered

    def _was_called(self, lead: str) -> bool:
        """Return whether the runner was called for a turn, or never will be, as the turn is being written."""
        return self.runs[lead].seq in self.monitor.called | self.monitor.settling

    def cancel_all(self) -> None:
        """Cancel every session."""
        self.call(self.dispatcher.cancel_all(), "cancel all")

    def clear(self, session: str) -> list[Run]:
        """Clear the queue of a session."""
        return self._within(session, "clear the queue", self.dispatcher.clear_queue(session))

    # The line.

    def hold(self, session: str) -> list[Run]:
        """Hold the waiting runs of a session."""
        abstract = self._abstract(session)
        should = [run for run in abstract.line if run not in abstract.held]
        return self._expect_runs(should, "hold", session, self.dispatcher.hold(session))

    def resume(self, session: str) -> list[Run]:
        """Resume the held runs of a session."""
        abstract = self._abstract(session)
        should = [run for run in abstract.line if run in abstract.held]
        return self._expect_runs(should, "resume", session, self.dispatcher.resume(session))

    def hold_run(self, run_id: str) -> list[Run]:
        """Hold one run."""
        session = self._session_of(run_id)
        should = [] if run_id in self._abstract(session).held else [run_id]
        return self._expect_runs(should, f"hold {run_id}", session, self.dispatcher.hold_run(run_id))

    def resume_run(self, run_id: str) -> list[Run]:
        """Resume one run."""
        session = self._session_of(run_id)
        should = [run_id] if run_id in self._abstract(session).held else []
        return self._expect_runs(should, f"resume {run_id}", session, self.dispatcher.resume_run(run_id))

    def _expect_runs(
        self, should: list[str], what: str, session: str | None, calling: Coroutine[Any, Any, list[Run]]
    ) -> list[Run]:
        runs = self._within(session, what, calling)
        if (said := [run.run_id for run in runs]) != should:
            self.monitor.violate(Property.REFINES, f"{what} says that it changes {said}: should be {should}")
        return runs

    def stop(self, session: str, turn: str | None = None) -> Covered:
        """Stop a session: cover its turn, and hold the waiting runs."""
        abstract = self._abstract(session)
        meant = turn is None or turn in abstract.turn
        covers = abstract.covered_by_cancel(abstract.lead) if meant and abstract.turn else []
        holds = [run for run in abstract.line if run not in abstract.held] if meant else []
        stopped = self._within(session, "stop", self.dispatcher.stop(session, turn=turn))
        self._expect_receipt("stop", session, stopped, covers, holds)
        return stopped

    def send_now(self, run_id: str, turn: str | None = None) -> Covered:
        """Send a queued run now."""
        session = self._session_of(run_id)
        abstract = self._abstract(session)
        meant = turn is None or turn in abstract.turn
        covers = abstract.covered_by_cancel(abstract.lead) if meant and abstract.turn else []
        sent = self._within(session, f"send {run_id} now", self.dispatcher.send_now(run_id, turn=turn))
        self._expect_receipt(f"send {run_id} now", session, sent, covers, [])
        return sent

    def _expect_receipt(
        self, what: str, session: str | None, receipt: Covered, covers: list[str], holds: list[str]
    ) -> None:
        said = [[run.run_id for run in runs] for runs in (receipt.runs, receipt.held, receipt.waiting)]
        should = [covers, holds, self._abstract(session).line]
        if said != should:
            wrong = f"{what} says covered, held, waiting {said}: it should say {should}"
            self.monitor.violate(Property.REFINES, wrong)

    def move(self, run_id: str, *, before: str | None = None, to: Any = None) -> Run:
        """Move a waiting run."""
        moving = self.dispatcher.move(run_id, before=before, to=to)
        return self._within(self._session_of(run_id), f"move {run_id}", moving)

    def edit(self, run_id: str, prompt: str | None = None, when_busy: Any = None) -> Run:
        """Edit a waiting run; from then on its runner must be given the new prompt."""
        editing = self.dispatcher.edit(run_id, prompt=prompt, when_busy=when_busy)
        run = self._within(self._session_of(run_id), f"edit {run_id}", editing)
        if prompt is not None:
            self.monitor.prompts[run_id] = prompt
        return run

    def _session_of(self, run_id: str) -> str | None:
        return self.runs[run_id].session_id if run_id in self.runs else None

    def _abstract(self, session: str | None) -> AbstractSession:
        return self.monitor.sessions.get(session or "") or AbstractSession()

    def close(self, finish: float = 0.0) -> asyncio.Task[None]:
        """Close the dispatcher in a task, which may be cancelled."""
        return self.loop.create_task(self.dispatcher.aclose(finish=finish), name="closes")

    def begin_close(self, finish: float = 0.0) -> None:
        """Begin to close the dispatcher, as a signal handler does, without waiting for the end."""
        with self.loop:
            self.dispatcher.begin_close(finish=finish)

    # Followers.

    def follow_text(self, run_id: str, start: int = 0) -> TextFollower:
        """Follow the text of a run from an offset on, in whatever state the run is."""
        run = self.runs[run_id]
        follower = TextFollower(run, start, run.stream(start))
        self.followers.append(follower)
        return follower

    def follow_completions(self, behind: CompletionsFollower | None = None) -> CompletionsFollower | None:
        """Follow the completions from the oldest kept one on, or from the place of another follower.

        None if some completions after that are no longer kept: then the dispatcher must say so.
        """
        completed, kept = self.monitor.completed, self.completions_kept
        number, after = max(len(completed) - kept, 0), None
        if behind is not None and behind.cursors:
            number, after = behind.number, behind.cursors[-1]
        expired = is_expired(number, completed, kept)
        try:
            stream = self.dispatcher.completions(after)
        except CursorExpired:
            if not expired:
                raise
            return None
        if expired:
            forgotten = f"the cursor behind number {number} is taken, and should be refused"
            self.monitor.errors.append(AssertionError(forgotten))
        follower = CompletionsFollower(stream, number, completed, kept)
        self.followers.append(follower)
        return follower

    def follow_messages(self, session: str, limit: int) -> MessagesFollower:
        """Read the messages of a session, a few at a time."""
        follower = MessagesFollower(self.dispatcher.messages, session, limit)
        self.followers.append(follower)
        return follower

    def messages_of(self, run_id: str) -> None:
        """Ask for the messages of the turn that a run was part of, and expect exactly those.

        A store need not have this method.
        """
        of_run = getattr(self.dispatcher.messages, "of_run", None)
        if of_run is None:
            return
        turn: list[Message] = self.call(of_run(run_id), f"ask for the messages of {run_id}")
        published = self.monitor.published
        complete = published.get(run_id)
        prompts = {message.run_id for message in turn if message.role == "user"}
        if complete is not None and complete.message_id is not None:
            together = {run for run, each in published.items() if each.message_id == complete.message_id}
            right = prompts == together and [message.id for message in turn][-1:] == [complete.message_id]
        else:  # nothing is written, or the RunComplete is not published yet
            right = not turn or (run_id in prompts and run_id in self.monitor.active)
        if not right or [message.role for message in turn].count("assistant") != bool(turn):
            wrong = f"{turn} are not the messages of the turn of {run_id}, which has {complete}"
            self.monitor.errors.append(AssertionError(wrong))
