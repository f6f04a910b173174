"""A closed world of clients and a server that is restarted, over a network in memory.

The clients, the protocol of the server, the application and its dispatcher are the real ones. What callers
and runners saw is written down with its interval. Without a ledger, each life of the server has a history.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from math import inf
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, cast
from unittest.mock import patch

import httpcore2
import httpx2
import uvicorn
from uvicorn.server import ServerState

from turngate import (
    Dispatcher,
    OutcomeUnknown,
    RunComplete,
    State,
    Turn,
    TurngateError,
    UnknownRun,
)
from turngate.client import Client, Snapshot, Unreachable, _events
from turngate.durable import DurableDispatcher, LedgerUnavailable
from turngate.server import Limits, asgi_app
from turngate.server._serving import KEEP_ALIVE, HttpProtocol
from turngate_verify.intervals.judge import judge_files
from turngate_verify.world.memory_ledger import MemoryLedger, Tables, without_chance
from turngate_verify.world.network import PROCESS, Network, NetworkBackend, NetworkLoop

PROMPT = "p"
_PATIENCE = 4.0
"""For how many seconds a client repeats a call."""
_RING = 6
"""How many events a reader may lag behind."""
_ROUNDS = 60
"""How many times a few seconds pass at the end before a caller that still waits counts as hanging."""
_LIFE_HEADER = b"turngate-key-life:"
_LIMIT = 20_000
"""The most configurations that the judge of a history visits."""
Restart = Literal["kill", "stop"]


class Process:
    """A process of the server: an application, its dispatcher, and the connections that it accepts."""

    def __init__(self, world: NetworkWorld, number: int) -> None:
        self.process = number
        self.context = copy_context()
        self.context.run(PROCESS.set, number)
        self.began = world.stamp()
        self.ended = inf
        self.ledger: MemoryLedger | None = None
        self.dispatcher: Dispatcher | DurableDispatcher = self.context.run(self._dispatcher, world)
        self.app = self.context.run(
            lambda: asgi_app(self.dispatcher, limits=Limits(ring_events=_RING), finish=0.0)
        )
        self.app._has_lifespan = True  # this world starts and stops it
        self._loop = world.loop
        self._config = uvicorn.Config(
            self.app,
            http=HttpProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE,
        )
        self.state = ServerState()

    def _dispatcher(self, world: NetworkWorld) -> Dispatcher | DurableDispatcher:
        runner = world.runner(self)
        if world.tables is None:
            return Dispatcher(runner)
        self.ledger = MemoryLedger(world.tables, self.process)
        return DurableDispatcher(runner, self.ledger, enter_timeout=5.0)

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that the dispatcher has made without the loop."""
        d = self.dispatcher
        return [] if isinstance(d, Dispatcher) else [*d._stepper.tasks.tasks]

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol for a new connection."""
        return HttpProtocol(self._config, self.state, {}, _loop=self._loop)


@dataclass
class Asked:
    """A request of a caller: what it was, from when to when, and its result."""

    kind: Literal["accept", "cancel", "clear"]
    session: str
    run: str
    call: float
    key: str = ""
    client: int = 0
    interrupts: bool = False
    returned: float | None = None
    """When it is known to have been carried out."""
    refused: bool = False
    """Whether it is known not to have been carried out."""


class Player:
    """A runner that has been called, and waits for orders."""

    def __init__(self, process: Process, turn: Turn, order: asyncio.Future[str]) -> None:
        self.process = process
        self.turn = turn
        self.order = order


class Told(NamedTuple):
    """A RunComplete, and when it became known."""

    at: float
    complete: RunComplete
    unheard: bool = False
    """Whether the process died before a caller received it."""


class Reader:
    """A reader of events: what it has received since its last snapshot."""

    def __init__(self, session: str | None) -> None:
        self.session = session
        self.since = inf
        """When it last received a snapshot, with the notice that it may have missed events before."""
        self.told: list[Told] = []
        self.owed: set[str] = set()
        """The runs that were in flight in that snapshot."""
        self.twice: list[str] = []
        self.refused: TurngateError | None = None


@dataclass
class NetworkWorld:
    """Clients, a network, and a server that runs as one process after another."""

    has_ledger: bool = False
    clients_count: int = 2
    wrong: list[str] = field(default_factory=list)
    reached: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._stack = ExitStack()
        self._stack.enter_context(without_chance())
        self._stack.enter_context(patch.object(_events, "random", random.Random(0)))  # noqa: S311 - not a secret
        self.loop = NetworkLoop()
        self._stack.enter_context(_heard(self._hear))
        self._now = 0
        self.network = Network(self.loop, may_double=self._may_arrive_again)
        self.tables = Tables(now=self.loop.time) if self.has_ledger else None
        self.processes: list[Process] = []
        self.players: dict[tuple[int, str], Player] = {}
        self.failed_folds: set[str] = set()
        """The runs whose runner asked for follow-ups, and got an exception."""
        self.asked: list[Asked] = []
        self.lines: list[tuple[int, dict[str, Any]]] = []
        """What runners saw, with the number of the process."""
        self.completes: dict[tuple[int, str], Told] = {}
        """The first RunComplete of each run, by the life in which its outcome is final."""
        self.readers: list[Reader] = []
        self.calls: list[asyncio.Task[Any]] = []
        self._reading: set[asyncio.Task[Any]] = set()
        """The tasks that read events for as long as their client is open."""
        with self.loop:
            self.clients = [self._client() for _ in range(self.clients_count)]
        self.begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        for task in self.loop.tasks:
            if task.done() and not task.cancelled():
                task.exception()
        self._stack.close()

    def _hear(self, record: logging.LogRecord) -> None:
        """Count an error that the HTTP server logs as a problem, unless its process was killed."""
        process = PROCESS.get()
        if process and self.processes[process - 1].ended == inf:
            self.wrong.append(f"the server logs: {record.getMessage().strip()} {record.exc_info}")

    def stamp(self) -> float:
        """Return a new, unique moment."""
        self._now += 1
        return float(self._now)

    def _client(self) -> Client:
        transport = httpx2.AsyncHTTPTransport(verify=False)
        backend = NetworkBackend(self.network)
        transport._pool = httpcore2.AsyncConnectionPool(network_backend=backend, keepalive_expiry=None)
        return Client("http://server", patience=_PATIENCE, transport=transport)

    # The server.

    @property
    def process(self) -> Process:
        """The process that is running, or ran last."""
        return self.processes[-1]

    def begin(self) -> None:
        """Start a process of the server."""
        if self.tables is not None:
            self.tables.trouble = None
        with self.loop:
            process = Process(self, len(self.processes) + 1)
        self.processes.append(process)
        self.finish_now(process.context.run(self._task, process.app.begin()))
        self.network.server = process

    def restart(self, how: Restart) -> None:
        """Kill the running process, or close it as on a signal, and start another."""
        old = self.process
        if how == "stop":
            self._stop(old)
        else:
            self._note_unheard(old)
            if old.ledger is not None:
                old.ledger.is_dead = True
                assert self.tables is not None
                self.tables.workers.discard(old.dispatcher._stepper.name)  # type: ignore[union-attr]
        self.end_process(old)
        self.reached.add(f"restart: {how}")
        self.begin()

    def _note_unheard(self, process: Process) -> None:
        """Note which runs were complete when a process without a ledger died: callers may not know."""
        if isinstance(process.dispatcher, Dispatcher):
            now = self.stamp()
            for run in sorted({str(each.run) for each in self.asked if each.run}):
                found = process.dispatcher.find(run)
                if found is not None and found.complete is not None:
                    self.completes.setdefault((process.process, run), Told(now, found.complete, unheard=True))

    def _stop(self, process: Process) -> None:
        """Close a process; what its clients have not read after a moment is lost with their connections."""
        began = self.stamp()
        before = self._complete_or_covered()
        closing = process.context.run(self._task, process.app.end())
        for _ in range(_ROUNDS):
            self.loop.settle()
            if closing.done():
                break
            self.loop.advance(1.0)
        else:
            self.wrong.append("EXACTLY_ONE_COMPLETE: the server does not close")
        for session in sorted({each.session for each in self.asked}):
            line: dict[str, Any] = {"event": "cancel", "session": session, "call": began}
            if self.tables is not None:  # what waits goes on in the next process
                line["runs"] = sorted(self._complete_or_covered() - before)
            self.lines.append((process.process, line))
        self._note_unheard(process)

    def _complete_or_covered(self) -> set[str]:
        """Return the runs on record that are complete, or that a cancel covers."""
        if self.tables is None:
            return set()
        sessions = self.tables.sessions
        covered = {
            row.run_id
            for row in self.tables.runs.values()
            if row.covered or (row.state is State.ACTIVE and sessions[row.session_id].covered)
        }
        return {*self.tables.complete, *covered}

    def end_process(self, process: Process) -> None:
        """Remove a process, with everything that it held."""
        for lead, player in [*self.players.items()]:
            if player.process is process:
                self._ended(process, lead[1])
                del self.players[lead]
        process.ended = self.stamp()
        self.network.lose_process(process.process)
        self.loop.settle()
        self.loop.end_process(process.process, process.tasks)
        self.loop.settle()

    # The network.

    def break_lines(self, after: int | None) -> None:
        """Break every connection, at once or after some more bytes of its answer."""
        with self.loop:
            self.network.break_lines(after)

    def let_through(self, nth: int) -> None:
        """Let a late message arrive."""
        with self.loop:
            self.network.let_through(nth)

    def outage(self, seconds: float) -> None:
        """Break every connection, and allow no new ones for a while."""
        self.break_lines(None)
        self.network.is_down = True
        self.pass_time(seconds)
        self.network.is_down = False

    def _may_arrive_again(self, request: bytes, process: int) -> bool:
        """Return whether a request that was sent to a process may arrive at the one that runs now.

        A call that names the life that it is meant for may arrive in any life. A call that does not, because
        its client has never had an answer, would be carried out again in another life, and no server could
        know that.
        """
        return self.has_ledger or process == self.process.process or _LIFE_HEADER in request.lower()

    def trouble_ledger(self, how: Literal["away", "odd"], nth: int) -> None:
        """Make a call to the ledger fail: it cannot be reached, or something else is wrong."""
        assert self.tables is not None
        left = nth

        def fail(ledger: MemoryLedger, kind: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self.reached.add("ledger")
                raise LedgerUnavailable("away") if how == "away" else RuntimeError("odd")

        self.tables.trouble = fail

    def life(self, process: int) -> int:
        """Return the life that a process belongs to. With a ledger, all processes belong to one."""
        return 0 if self.has_ledger else process

    # Runners.

    def runner(self, process: Process) -> Callable[[Turn], Coroutine[Any, Any, None]]:
        """Return the runner of a process, which records what it sees and follows orders."""

        async def run(turn: Turn) -> None:
            lead = turn.run.run_id
            task = asyncio.current_task()
            assert task is not None
            self.loop.process_of[task] = process.process  # taken over, it has no context of its own
            if process.ended < inf:
                return
            self.lines.append((process.process, {"event": "start", "run": lead, "at": self.stamp()}))
            try:
                for piece in range(100):
                    order = asyncio.get_running_loop().create_future()
                    self.players[process.process, lead] = Player(process, turn, order)
                    match await order:
                        case "write":
                            turn.write(f"{lead}.{piece} ")
                        case "fold":
                            await self._fold(process, turn)
                        case "fail":
                            raise RuntimeError("no luck")
                        case _:
                            return
            finally:
                if self.players.pop((process.process, lead), None) is not None:
                    self._ended(process, lead)

        return run

    async def _fold(self, process: Process, turn: Turn) -> None:
        call = self.stamp()
        try:
            taken = await turn.fold()
        except BaseException:  # what it was to take in may be saved all the same
            self.failed_folds.add(turn.run.run_id)
            raise
        for run in taken:
            line = {"event": "fold", "run": run.run_id, "into": turn.run.run_id}
            self.lines.append((process.process, {**line, "call": call, "return": self.stamp()}))
            self.reached.add("fold")

    def _ended(self, process: Process, lead: str) -> None:
        self.lines.append((process.process, {"event": "ended", "run": lead, "at": self.stamp()}))

    def order(self, nth: int, order: str) -> None:
        """Give an order to one of the waiting runners."""
        waiting = [each for each in self.players.values() if not each.order.done()]
        if waiting:
            with self.loop:
                waiting[nth % len(waiting)].order.set_result(order)

    # Callers.

    def _task(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        with self.loop:
            return self.loop.create_task(coroutine)

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Have a caller begin something."""
        self.calls.append(self._task(coroutine))

    def finish_now(self, task: asyncio.Task[Any]) -> None:
        """Run a task to its end without letting time pass."""
        self.loop.settle()
        task.result()

    async def submit(self, client: int, session: str, run: str, when_busy: str) -> None:
        """Send a prompt, and wait for its RunComplete."""
        asked = Asked("accept", session, run, self.stamp(), interrupts=when_busy == "interrupt")
        self.asked.append(asked)
        submitting = self.clients[client].submit(session, PROMPT, run_id=run, when_busy=when_busy)  # type: ignore[arg-type]
        if await self._answer(asked, submitting) is not None:
            await self.wait(client, run)

    async def stream(self, client: int, session: str, run: str) -> None:
        """Send a prompt, and read the text of its turn."""
        asked = Asked("accept", session, _Streamed(run), self.stamp())
        self.asked.append(asked)
        text = self.clients[client].stream(session, PROMPT, run_id=run, when_busy="queue")
        await self._answer(asked, _read(text))
        if (complete := text.complete) is not None:
            self._note_complete(complete)
            self.reached.add("text")
            if complete.text != text.text and complete.outcome != "lost":  # what was not kept is lost, too
                self.wrong.append(f"the text of {run} is {complete.text!r}, and its reader got {text.text!r}")

    async def _answer(self, asked: Asked, call: Coroutine[Any, Any, Any]) -> Any:
        """Note the result of a call, and return it; None if the call is refused."""
        try:
            answer = await call
        except (OutcomeUnknown, UnknownRun) as unknown:
            self.reached.add(f"{asked.kind}: {type(unknown).__name__}")
            return None
        except Unreachable:
            self.reached.add(f"{asked.kind}: Unreachable")
            asked.refused = self._is_refused(asked)
            return None
        except TurngateError as refusal:
            self.reached.add(f"{asked.kind}: {type(refusal).__name__}")
            asked.refused = self._is_refused(asked)
            return None
        asked.returned = self.stamp()
        self.reached.add(f"{asked.kind}: done")
        return answer

    def _is_refused(self, asked: Asked) -> bool:
        """Return whether a refusal says that no run was accepted; of a doubled request, a copy may be."""
        return not isinstance(asked.run, _Streamed) and "request doubled" not in self.network.struck

    async def wait(self, client: int, run: str) -> None:
        """Wait for a RunComplete."""
        for _ in range(_ROUNDS):
            try:
                self._note_complete(await self.clients[client].wait(run))
            except UnknownRun:
                self.reached.add("wait: UnknownRun")
                if self.has_ledger:
                    self.wrong.append(f"DURABLE: {run} was accepted, and the ledger does not know it")
            except Unreachable:
                self.reached.add("wait: Unreachable")
                continue
            return
        self.wrong.append(f"a caller never hears of {run}")

    def _note_complete(self, complete: RunComplete) -> None:
        told = Told(self.stamp(), complete)
        first = self.completes.setdefault((self.life(self.process.process), complete.run_id), told)
        if first.complete != complete:
            changed = f"the outcome of {complete.run_id} was {first.complete}, and is {complete}"
            self.wrong.append(f"TERMINAL_IS_FINAL: {changed}")

    async def cancel(self, client: int, kind: Literal["cancel", "clear"], session: str, key: str) -> None:
        """Cancel a session or clear its queue; with the caller's own key, perhaps for the second time."""
        known = next((each for each in self.asked if key and each.key == key), None)
        asked = known or Asked(kind, session, "", self.stamp(), key, client)
        if known is None:
            self.asked.append(asked)
        elif known.returned is not None:
            asked = Asked(kind, session, "", self.stamp(), key, client)  # not in the history
        caller = self.clients[client]
        named = key or None
        call = (
            caller.cancel(session, key=named) if kind == "cancel" else caller.clear_queue(session, key=named)
        )
        covered = await self._answer(asked, call)
        if asked is known:
            asked.refused = False  # the first call may have been carried out
        for run in covered or ():
            self.lines.append((self.process.process, {"event": "covers", "run": run, "kind": kind}))

    async def look(self, client: int, session: str) -> None:
        """Look at a session."""
        try:
            await self.clients[client].session(session)
        except Unreachable:
            self.reached.add("look: Unreachable")

    async def read(self, client: int, session: str | None) -> None:
        """Read the events of a session, or of all, for as long as the client is open."""
        reader = Reader(session)
        self.readers.append(reader)
        self._reading.add(cast("asyncio.Task[Any]", asyncio.current_task()))
        try:
            async for event in self.clients[client].events(session):
                self._take(reader, event)
        except TurngateError as refusal:
            reader.refused = refusal
            self.wrong.append(f"a reader of events is refused: {refusal!r}")

    def _take(self, reader: Reader, event: Any) -> None:
        if isinstance(event, RunComplete):
            if any(told.complete.run_id == event.run_id for told in reader.told):
                reader.twice.append(event.run_id)
            reader.told.append(Told(self.stamp(), event))
        elif isinstance(event, Snapshot):
            if event.reset:
                self.reached.add("reset")
            if event.reset or reader.since == inf:
                reader.since, reader.told, reader.owed = self.stamp(), [], set()
            for session in event.sessions:
                turn = () if session.active is None else (session.active, *session.folded)
                runs = (*session.accepted, *session.settling, *session.queued, *turn)
                reader.owed |= {run.run_id for run in runs}
        else:
            self.reached.add(f"event: {type(event).__name__}")

    # The end.

    def finish(self) -> None:
        """Inject no more faults, let every run complete, and judge what was seen."""
        with self.loop:
            self.network.heal()
        if self.process.ledger is not None:
            self.process.ledger.is_away = False
        if self.tables is not None:
            self.tables.trouble = None
        calls = [*self.calls]
        self._let_end(calls)
        for task in calls:
            if not task.done() and not self._reads(task):
                self.wrong.append(f"a caller hangs: {task.get_coro()}")
        self._ask_for_outcomes()
        self._let_end([])
        self._judge_readers()
        self._judge_histories()
        if not self.wrong:
            self._judge_covered()
            self._expect_no_residue()
        self._leave()

    def _reads(self, task: asyncio.Task[Any]) -> bool:
        return task in self._reading

    def _let_end(self, calls: list[asyncio.Task[Any]]) -> None:
        """End runners and let time pass until every call has returned and the readers are up to date."""
        for done in range(_ROUNDS):
            self.loop.settle()
            for player in [*self.players.values()]:
                if not player.order.done():
                    with self.loop:
                        player.order.set_result("end")
            self.loop.settle()
            if done > 3 and not self.players and all(task.done() or self._reads(task) for task in calls):
                break
            self.pass_time(2.0)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, in small steps."""
        with self.loop:
            if self.process.ledger is not None:
                self.process.context.copy().run(self.process.ledger.notice)
        while seconds > 0:
            step = min(seconds, 0.5)
            self.loop.advance(step)
            self.loop.settle()
            seconds -= step

    def _ask_for_outcomes(self) -> None:
        """Ask once more for every run, because one whose answer was lost may have been accepted."""
        runs = sorted({each.run for each in self.asked if each.run})

        async def ask() -> None:
            for run in runs:
                with suppress(UnknownRun):
                    self._note_complete(await self.clients[0].wait(run))

        asking = self._task(ask())
        self._let_end([asking])
        if not asking.done():
            self.wrong.append("EXACTLY_ONE_COMPLETE: an accepted run never completes")
        else:
            asking.result()

    def _judge_readers(self) -> None:
        for reader in self.readers:
            told = {each.complete.run_id: each for each in reader.told}
            for run in reader.twice:
                self.wrong.append(f"EXACTLY_ONE_COMPLETE: a reader is told twice that {run} is complete")
            accepted = {str(each.run): each for each in reversed(self.asked) if each.run}
            for (_, run), known in self.completes.items():
                asked = accepted.get(run)
                session = known.complete.session_id
                later = asked is not None and asked.call > reader.since
                if (
                    known.unheard
                    or reader.session not in (None, session)
                    or not (later or run in reader.owed)
                ):
                    continue
                if run not in told:
                    missed = (
                        f"a reader is not told that {run} is complete, and not that it may have missed it"
                    )
                    self.wrong.append(f"EXACTLY_ONE_COMPLETE: {missed}")
                elif told[run].complete != known.complete and self.has_ledger:
                    self.wrong.append(
                        f"TERMINAL_IS_FINAL: {run} is {known.complete} and {told[run].complete}"
                    )

    def _judge_histories(self) -> None:
        lives: dict[int, list[Process]] = {self.life(each.process): [] for each in self.processes}
        for process in self.processes:
            lives[self.life(process.process)].append(process)
        for life, processes in lives.items():
            lines = self._history(life, processes)
            judged = judge_files([("", lines)], limit=_LIMIT, tell=False)
            for breach in judged.breaches:
                self.wrong.append(f"{breach.broken}: {breach.what}")
            if judged.undecided:
                self.reached.add("undecided")

    def _history(self, life: int, processes: list[Process]) -> list[str]:
        """Return the observations of a life as lines of a history with intervals."""
        began, ended = processes[0].began, processes[-1].ended
        numbers = {each.process for each in processes}
        told: list[dict[str, Any]] = []
        for asked in self.asked:
            if asked.refused or asked.call > ended:
                continue
            line: dict[str, Any] = {"event": asked.kind, "session": asked.session}
            if asked.run:
                line["run"] = str(asked.run)
            line["call"] = max(asked.call, began)
            is_within = asked.returned is not None and began <= asked.call and asked.returned <= ended
            told.append({**line, "return": asked.returned} if is_within else line)  # or it may have happened
            if asked.interrupts:
                told.append({"event": "cancel", "session": asked.session, "call": line["call"]})
        accepted = {each.get("run") for each in told}
        for number, line in self.lines:
            if number in numbers and line["event"] != "covers":
                told.append(line)
        for (of_life, run), known in self.completes.items():
            if of_life == life and run in accepted:
                complete = known.complete
                if complete.folded_into in self.failed_folds:
                    line = {"event": "fold", "run": run, "into": complete.folded_into}
                    told.append({**line, "call": began, "return": known.at})
                line = {"event": "complete", "run": run, "cancelled": complete.cancelled}
                if complete.error is not None:
                    line["error"] = complete.error
                told.append({**line, "return": known.at})
        unknown = {line["run"] for line in told if "run" in line} - accepted
        for run in sorted(unknown):
            self.wrong.append(f"DECLARED_MOVE: {run} runs, and its caller was told that it was not accepted")
        lines = [json.dumps(line) for line in told if line.get("run") not in unknown]
        if processes[-1] is self.process:
            lines.append(json.dumps({"event": "end"}))
        return lines

    def _judge_covered(self) -> None:
        """Expect that every run in the answer of a cancel is cancelled."""
        for number, line in self.lines:
            known = self.completes.get((self.life(number), line.get("run", "")))
            covered = line["event"] == "covers" and line["kind"] == "cancel"
            if covered and known is not None and not known.complete.cancelled:
                said = f"a cancel covers {line['run']}, which completes as {known.complete.outcome}"
                self.wrong.append(f"FULL_COVERAGE: {said}")

    def _expect_no_residue(self) -> None:
        """Close the clients, expect the server to hold nothing then, and close it too."""
        process, app = self.process, self.process.app
        closing = [self._task(client.aclose()) for client in self.clients]
        self.loop.settle()
        self.pass_time(30.0)  # for copies of requests, and connections that were kept alive
        self._expect(all(task.done() for task in closing), "a client does not close")
        left = [task.get_name() for task, of in self.loop.process_of.items() if not of and not task.done()]
        self._expect(not left, f"tasks of clients are left: {', '.join(left)}")
        self._expect(not self.network.connections, f"connections are left: {self.network.connections}")
        self._expect(not process.state.connections, "the server holds connections")
        self._expect(not process.state.tasks, "the server holds requests")
        self._expect(not app._handlers._streams.open, "the server holds event streams")
        self._expect(not app._handlers.log._readers, "the event log holds readers")
        if isinstance(process.dispatcher, Dispatcher):
            self._expect(not process.dispatcher._sessions.cores, "the dispatcher holds quiet sessions")
        end = process.context.run(self._task, app.end())
        for _ in range(_ROUNDS):
            self.loop.settle()
            if end.done():
                break
            self.pass_time(1.0)
        self._expect(end.done(), "the server does not close")
        self.pass_time(30.0)
        left = [task.get_name() for task in (*self.loop.tasks, *process.tasks()) if not task.done()]
        self._expect(not left, f"tasks are left: {', '.join(left)}")
        self._expect(self.loop.next_timer() is None, "timers are left")
        for problem in self.loop.problems:
            self._expect(False, f"the loop was told: {problem.get('message')} {problem.get('exception')!r}")

    def _expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.wrong.append(f"NO_RESIDUE: {what}")

    def _leave(self) -> None:
        """End every task of a world that may be broken."""
        self.end_process(self.process)
        self.loop.end_process(0)


@contextmanager
def _heard(hear: Callable[[logging.LogRecord], None]) -> Iterator[None]:
    """Give the errors of uvicorn to a function, and to no other handler."""
    log = logging.getLogger("uvicorn.error")

    def take(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR:
            hear(record)
        return False

    log.addFilter(take)
    try:
        yield
    finally:
        log.removeFilter(take)


class _Streamed(str):
    """The id of the run whose text is read: if reading fails, its prompt may have been accepted."""


async def _read(text: Any) -> bool:
    async for _ in text:
        pass
    return True
