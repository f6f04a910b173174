"""A closed world of processes that share a ledger in memory. A driver controls them, and can kill them.

Every message to the ledger and back takes a step of the virtual loop. Nothing happens but the consequences of
what the driver does, until the driver lets time pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Literal

from turngate import Run, State, Turn, TurngateError
from turngate.durable import DurableDispatcher
from turngate_model.history import (
    Accept,
    Cancel,
    Clear,
    Complete,
    Edit,
    Enter,
    Event,
    Fold,
    Handoff,
    Hold,
    Move,
    Resume,
)
from turngate_model.lifecycle import DeclaredState
from turngate_verify.world.followers import MessagesFollower
from turngate_verify.world.ledger_line import LedgerLine
from turngate_verify.world.memory_ledger import MemoryLedger, Tables
from turngate_verify.world.virtual_loop import VirtualLoop

PROMPT = "p"
"""The text of every prompt until it is edited."""
_ROUNDS = 80
"""How many times all processes look again before what is still in flight counts as stranded."""


class Player:
    """A runner that has been called, and waits for orders."""

    def __init__(self, process: int, turn: Turn, order: asyncio.Future[str]) -> None:
        self.process = process
        self.turn = turn
        self.order = order


class LedgerWorld:
    """Some dispatchers on one ledger, their callers and their runners.

    `stubborn` runners go on when they are interrupted, until they are told to end. `wrap` takes the ledger of
    a process, and returns the one that its dispatcher is given.
    """

    def __init__(
        self,
        processes: int = 2,
        *,
        on_death: Literal["fail", "retry"] = "fail",
        remembers: bool = True,
        stubborn: bool = False,
        make: Any = DurableDispatcher,
        wrap: Callable[[MemoryLedger], Any] = lambda ledger: ledger,
    ) -> None:
        self.loop = VirtualLoop()
        self.tables = Tables(remembers=remembers, now=self.loop.time)
        self.ledgers = [MemoryLedger(self.tables, process) for process in range(processes)]
        self.players: dict[str, Player] = {}
        self.acknowledged: set[str] = set()
        self.pages: dict[tuple[int, str], MessagesFollower] = {}
        """The readers that page through the messages of a session, by process and session."""
        self.wrong: list[str] = []
        self._stubborn = stubborn
        with self.loop:
            self.dispatchers: list[DurableDispatcher] = [
                make(self._runner(process), wrap(ledger), on_death=on_death, enter_timeout=5.0)
                for process, ledger in enumerate(self.ledgers)
            ]
        self.line = LedgerLine(self.dispatchers)
        """The callers who manage the waiting prompts."""
        opening = [self.start(d._stepper.ready()) for d in self.dispatchers]
        self.loop.settle()
        for task in opening:
            task.exception()  # the next call opens again

    # Runners.

    def _runner(self, process: int) -> Callable[[Turn], Coroutine[Any, Any, str]]:
        async def runner(turn: Turn) -> str:
            lead = turn.run.run_id
            self._judge_start(process, turn)
            self.line.give(turn.run, starts=True)
            try:
                while True:
                    player = self.players[lead] = Player(process, turn, self.loop.create_future())
                    try:
                        order = await player.order
                    except asyncio.CancelledError:
                        if not self._stubborn:
                            raise
                        continue
                    if order == "fold":
                        for run in await turn.fold():
                            self.line.give(run, starts=False)
                    elif order == "write":
                        turn.write("text ")
                    elif order == "end_turn":
                        return "text"
                    else:
                        raise asyncio.CancelledError if order == "canceled" else RuntimeError("no luck")
            finally:
                if self.players.get(lead) is player:
                    del self.players[lead]

        return runner

    def _judge_start(self, process: int, turn: Turn) -> None:
        session = self.tables.sessions[turn.run.session_id]
        if session.fence == turn.fence and self.tables.runs[turn.run.run_id].state is not State.ACTIVE:
            self.wrong.append(f"ONE_TURN: the runner of {turn.run.run_id} is called before that is on record")
        for lead, player in self.players.items():
            same = player.turn.run.session_id == turn.run.session_id and lead != turn.run.run_id
            if same and self.lives(player.process) and self.lives(process):
                called = f"the runner of {turn.run.run_id} is called while that of {lead} runs"
                self.wrong.append(f"ONE_TURN: {called}")

    def order(self, lead: str, order: str) -> None:
        """Tell the runner of a turn what to do."""
        with self.loop:
            self.players[lead].order.set_result(order)
        self.loop.settle()

    # Callers.

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Make a task of a call."""
        with self.loop:
            return self.loop.create_task(coroutine)

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a call to its end, and return the answer; if it is refused, return the exception."""
        task = self.start(coroutine)
        self.loop.settle()
        if not task.done():
            return None
        refused = task.exception()
        if refused is not None and not isinstance(refused, TurngateError):
            raise refused
        return task.result() if refused is None else refused

    async def accept(self, process: int, session: str, run_id: str, **options: Any) -> None:
        """Accept, and note that it was acknowledged."""
        accepting = self.dispatchers[process].accept(session, PROMPT, run_id=run_id, **options)
        await self.line.send(run_id, session, PROMPT, options.get("data"), accepting)
        self._note(process, run_id)

    async def submit(self, process: int, session: str, run_id: str, **options: Any) -> Run:
        """Submit, and note that it was acknowledged."""
        submitting = self.dispatchers[process].submit(session, PROMPT, run_id=run_id, **options)
        run = await self.line.send(run_id, session, PROMPT, options.get("data"), submitting)
        self._note(process, run_id)
        return run

    def _note(self, process: int, run_id: str) -> None:
        if not self.ledgers[process].is_dead:
            self.acknowledged.add(run_id)

    async def enter(self, process: int, run_id: str) -> None:
        """Enter a run in the process that has accepted it."""
        d = self.dispatchers[process]
        if (run := await d.find(run_id)) is not None:
            await d.enter(run)

    async def release(self, process: int, run_id: str) -> None:
        """Release a run in the process that has accepted it."""
        if (run := await self.dispatchers[process].find(run_id)) is not None:
            await run.close()

    async def page(self, process: int, session: str, limit: int = 1) -> None:
        """Read the next page of the messages of a session in this process."""
        reader = self.pages.get((process, session))
        if reader is None:
            messages = self.dispatchers[process].messages
            reader = self.pages[process, session] = MessagesFollower(messages, session, limit)
        if not reader.waits:
            reader.reading = asyncio.current_task()
            await reader._read(to_end=False)

    async def messages_of(self, process: int, run_id: str) -> None:
        """Ask for the messages of a run; if it was complete before, expect those of its whole turn."""
        before = self.tables.complete.get(run_id)
        turn = await self.dispatchers[process].messages.of_run(run_id)
        right = not turn or (turn[-1].role == "assistant" and run_id in {each.run_id for each in turn})
        if before is not None and before.complete.message_id is not None:
            right = right and [message.id for message in turn][-1:] == [before.complete.message_id]
        if not right:
            self.wrong.append(f"{turn} are not the messages of the turn of {run_id}")

    # Faults.

    def lives(self, process: int) -> bool:
        """Return whether a process runs and is not given up."""
        return (
            not self.ledgers[process].is_dead
            and self.dispatchers[process]._stepper.name in self.tables.workers
        )

    def kill(self, process: int) -> None:
        """Kill a process: nothing that it does counts any more, and its lease has expired."""
        self.ledgers[process].is_dead = True
        self.tables.workers.discard(self.dispatchers[process]._stepper.name)
        self.players = {lead: each for lead, each in self.players.items() if each.process != process}

    def expire(self, process: int) -> None:
        """End the lease of a process; it notices at its next look."""
        self.tables.workers.discard(self.dispatchers[process]._stepper.name)

    # The end.

    def pass_time(self, seconds: float = 1.1) -> None:
        """Let time pass, so that every process polls."""
        with self.loop:
            for ledger in self.ledgers:
                ledger.notice()
        self.loop.advance(seconds)
        self.loop.settle()

    def is_quiet(self) -> bool:
        """Return whether nothing is in flight."""
        return all(row.state is State.COMPLETE for row in self.tables.runs.values())

    def let_end(self) -> None:
        """End every runner, let every process poll, and resume held runs, until all is quiet."""
        for ledger in self.ledgers:
            ledger.is_away = False
        self.loop.settle()
        for _ in range(_ROUNDS):
            for lead, player in [*self.players.items()]:
                if not player.order.done() and not self.ledgers[player.process].is_dead:
                    self.order(lead, "end_turn")
            if self.is_quiet():
                return
            self._resume_what_is_left()
            self.pass_time()

    def _resume_what_is_left(self) -> None:
        """Resume the sessions in which only held runs are left."""
        flying = [row for row in self.tables.runs.values() if row.state is not State.COMPLETE]
        for session in dict.fromkeys(row.session_id for row in flying):
            if all(row.held for row in flying if row.session_id == session):
                process = next(n for n, ledger in enumerate(self.ledgers) if not ledger.is_dead)
                self.call(self.line.resume(process, session))

    def judge_waits(self) -> None:
        """Expect each process to learn by polling which runs are complete, whatever runners do meanwhile."""
        for ledger in self.ledgers:
            ledger.is_away = False
        self.loop.settle()
        complete = {*self.tables.complete}
        for _ in range(2):  # a process that was given up takes a new name first
            self.pass_time()
        for process, d in enumerate(self.dispatchers):
            late = sorted(complete & {*d._runs.waited_for})
            if late and self.lives(process):
                self.wrong.append(
                    f"process {process} has not learned of its complete runs: {', '.join(late)}"
                )

    def judge_pages(self) -> None:
        """Expect a reader of some pages to have read the first messages of the session, in order."""
        for (_, session), reader in self.pages.items():
            of_session = [each for each, _ in self.tables.messages.values() if each.session_id == session]
            if wrong := reader.wrong_about(of_session[: len(reader.read_so_far)]):
                self.wrong.append(wrong)

    def leave(self) -> None:
        """Release everything."""
        self.wrong += map(str, self.loop.problems)
        self._stubborn = False
        for ledger in self.ledgers:
            ledger.is_dead = True
        for task in self.loop.tasks:
            task.cancel()
        for d in self.dispatchers:
            for task in [*d._stepper.tasks.tasks]:
                task.cancel()
        self.loop.settle()

    def events(self, since: int = 0) -> list[tuple[str, Event]]:
        """Return what is on record after this many steps, as the model has it, each with its session."""
        return [
            (told.session_id, _event(entry)) for told in self.tables.history[since:] for entry in told.entries
        ]


def _event(entry: dict[str, Any]) -> Event:
    some = None if entry.get("runs") is None else frozenset(entry["runs"])
    match entry["event"]:
        case "accept":
            return Accept(entry["run"])
        case "enter":
            return Enter(entry["run"], DeclaredState(entry["state"]))
        case "fold":
            return Fold(entry["run"], entry["into"])
        case "handoff":
            return Handoff(entry["run"])
        case "clear":
            return Clear(some)
        case "cancel":
            return Cancel(some)
        case "hold":
            return Hold(some)
        case "resume":
            return Resume(some, unbinds=entry.get("unbinds", False))
        case "move":
            return Move(entry["run"], entry["before"] or "")
        case "edit":
            when_busy = entry.get("when_busy")
            return Edit(entry["run"], None if when_busy is None else when_busy == "fold")
        case _:
            return Complete(entry["run"], entry["cancelled"], entry.get("error"))
