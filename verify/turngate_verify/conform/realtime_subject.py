"""A base for subjects that take real time: servers, pollers, workers in threads and in other processes.

One loop, in a thread of its own, serves every subject of the process. An
operation returns when the subject has taken it in. Then the kit looks until
nothing is owed, and waits long only for what should happen and does not.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import queue
import threading
import time
from collections.abc import Awaitable, Collection, Coroutine, Sequence
from typing import Any, ClassVar, TypeVar

from turngate_model.history import Complete, Enter, Fold
from turngate_model.lifecycle import DeclaredState
from turngate_verify.conform.operations import Operations
from turngate_verify.conform.port import Features, Given, Observed, Refused, SubjectFailed, SubjectHangs
from turngate_verify.conform.programs import Op, run_of
from turngate_verify.conform.timing import Timing
from turngate_verify.world.failures import RunnerFailed

T = TypeVar("T")
_numbers = itertools.count(1)


class RealtimeSubject(Operations):
    """A subject that runs on a real loop, and may have sockets, threads and processes.

    An adapter overrides the ``do_`` operations that its dispatcher has. Each
    returns when the dispatcher has taken the call in, not when the run has ended:
    ``self.watch`` waits for that. ``self.runner`` is the work of a run, for a
    runner on any loop; ``self.work_in_thread`` is the same for a thread. Sessions
    and runs of several subjects meet in one server, so name them by
    ``self.named``. ``set_up`` is called once per class, ``start`` and ``end`` for
    every subject. What can only be asked for is asked for in ``look``.
    """

    features: Features = Features()
    timing: Timing = Timing()
    _loop: ClassVar[asyncio.AbstractEventLoop | None] = None
    _starting: ClassVar[threading.Lock] = threading.Lock()
    _is_set_up: ClassVar[bool]  # each class that is has its own

    def __init__(self) -> None:
        self.features = type(self).features._replace(real_time=True)
        self.number = next(_numbers)
        self._lock = threading.Lock()
        self._seen: list[Observed] = []
        self._told: dict[str, queue.SimpleQueue[str]] = {}
        self._watching: list[concurrent.futures.Future[None]] = []
        self._has_worked = False
        self._is_closed = False
        self._set_up_once()
        self.call(self.start(), self.timing.starts)

    @classmethod
    def loop(cls) -> asyncio.AbstractEventLoop:
        """Return the loop of all real-time subjects, which runs in a thread of its own."""
        if RealtimeSubject._loop is None:
            RealtimeSubject._loop = asyncio.new_event_loop()
            threading.Thread(target=RealtimeSubject._loop.run_forever, daemon=True).start()
        return RealtimeSubject._loop

    def _set_up_once(self) -> None:
        with RealtimeSubject._starting:
            self.loop()
            if "_is_set_up" not in type(self).__dict__:
                self.call(self.set_up(), self.timing.starts)
                type(self)._is_set_up = True

    # What an adapter overrides.

    async def set_up(self) -> None:
        """Start what all subjects of the class share, such as a server."""

    async def start(self) -> None:
        """Make what this subject has of its own."""

    async def end(self) -> None:
        """Release it. Runs may still be in flight."""

    async def look(self) -> None:
        """Ask for what the dispatcher does not report by itself, and show it."""

    async def do_crash(self) -> None:
        """Kill the process of the dispatcher, and open what it held again."""
        raise NotImplementedError

    # What an adapter calls.

    def named(self, name: str) -> str:
        """Return a name for a session or a run that no other subject uses."""
        return f"{name}-{self.number}"

    def saw(self, event: Observed) -> None:
        """Show an event; from any thread."""
        with self._lock:
            self._seen.append(event)

    def started(self, run: str) -> None:
        """Show that the runner is called for a run, whether it was queued or not."""
        self.saw(Enter(run, DeclaredState.ACTIVE))

    def completed(self, run: str, *, cancelled: bool = False, error: str | None = None) -> None:
        """Show the RunComplete of a run."""
        self.saw(Complete(run, cancelled, error))

    def refused(self, run: str, operation: str = "") -> None:
        """Show that a prompt was not taken in, or that another operation was refused."""
        self.saw(Refused(run, operation))

    def given(self, run: str, prompt: str) -> None:
        """Show the prompt that the runner was given for a run."""
        self.saw(Given(run, prompt))

    def watch(self, run: str, done: Awaitable[Any]) -> None:
        """Show the RunComplete of a run once this is done, which a caller would wait for."""

        async def watching() -> None:
            try:
                await done
            except asyncio.CancelledError:
                self.completed(run, cancelled=True)
            except Exception as error:  # anything that the caller would see
                self.completed(run, error=str(error) or repr(error))
            else:
                self.completed(run)

        self._watching.append(asyncio.run_coroutine_threadsafe(watching(), self.loop()))

    async def runner(self, prompt: str) -> str:
        """Do the work of one turn, on the loop of the caller."""
        await self._looked()
        run = run_of(prompt)
        self._listen(run)
        self.started(run)
        if self.features.edit:
            self.given(run, prompt)
        return await self.work(run)

    async def work(self, run: str) -> str:
        """Do the work of one turn. For an adapter that shows by itself when the turn starts."""
        told = self._listen(run)
        try:
            while True:
                while told.empty():  # noqa: ASYNC110 - an event would belong to one loop, and this is told by any thread
                    await asyncio.sleep(self.timing.poll)
                if self._obeyed(what := told.get()):
                    return "text"
                assert what == "fold"
                for folded in await self.do_fold(run):
                    self.saw(Fold(folded, run))
        finally:
            self._told.pop(run, None)

    def work_in_thread(self, run: str) -> str:
        """Do the work of one turn in a thread, which cannot be interrupted."""
        self.call(self.look())
        told = self._listen(run)
        self.started(run)
        try:
            self._obeyed(told.get())
            return "text"
        finally:
            self._told.pop(run, None)

    def _listen(self, run: str) -> queue.SimpleQueue[str]:
        self._has_worked = True
        told = self._told.setdefault(run, queue.SimpleQueue())
        if self._is_closed:
            told.put("finish")  # nothing else will tell this runner, and its thread must end
        return told

    @staticmethod
    def _obeyed(what: str) -> bool:
        if what == "fail":
            raise RunnerFailed("no luck")
        return what == "finish"

    # Driving it.

    def call(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """Run a call on the loop, and return what it returns, within this many seconds."""
        seconds = self.timing.answers if seconds is None else seconds
        calling = asyncio.run_coroutine_threadsafe(work, self.loop())
        try:
            return calling.result(seconds)
        except concurrent.futures.TimeoutError:
            calling.cancel()
            raise SubjectHangs(f"it hangs: a call does not return within {seconds:g} s") from None
        except SubjectFailed:
            raise
        except Exception as error:
            raise SubjectFailed(f"it raised {error!r}") from error

    async def _looked(self) -> None:
        """Look on the loop of all subjects, whichever loop this is called on."""
        looking = asyncio.run_coroutine_threadsafe(self.look(), self.loop())
        await asyncio.wrap_future(looking)

    # The port.

    def accept(self, session: str, run: str) -> None:
        """Take a prompt in."""
        self.call(self.do_accept(session, run))

    def interrupt(self, session: str, run: str) -> None:
        """Take a prompt in that cancels all that came before it."""
        self.call(self.do_interrupt(session, run))

    def reject(self, session: str, run: str) -> None:
        """Take a prompt in unless its session is busy."""
        self.call(self.do_reject(session, run))

    def enter(self, run: str) -> None:
        """Enter an accepted run."""
        self.call(self.do_enter(run))

    def cancel(self, session: str) -> None:
        """Cancel a session."""
        self.call(self.do_cancel(session))

    def cancel_run(self, run: str) -> None:
        """Cancel one run."""
        self.call(self.do_cancel_run(run))

    def clear(self, session: str) -> None:
        """Clear the queue of a session."""
        self.call(self.do_clear(session))

    def hold(self, session: str) -> None:
        """Hold the waiting runs of a session."""
        self.call(self.do_hold(session))

    def resume(self, session: str) -> None:
        """Resume the held runs of a session."""
        self.call(self.do_resume(session))

    def hold_run(self, run: str) -> None:
        """Hold one run."""
        self.call(self.do_hold_run(run))

    def resume_run(self, run: str) -> None:
        """Resume one run."""
        self.call(self.do_resume_run(run))

    def stop(self, session: str) -> None:
        """Cover the active turn alone, and hold the waiting runs."""
        self.call(self.do_stop(session))

    def move(self, run: str, before: str | None) -> None:
        """Change the position of a waiting run."""
        self.call(self.do_move(run, before))

    def edit(self, run: str, prompt: str) -> None:
        """Give a run another prompt."""
        self.call(self.do_edit(run, prompt))

    def send_now(self, run: str) -> None:
        """Make a queued run the next one now."""
        self.call(self.do_send_now(run))

    def into(self, session: str, run: str, into: str) -> None:
        """Take a prompt in for one turn alone."""
        self.call(self.do_into(session, run, into))

    def crash(self) -> None:
        """Kill the process of the dispatcher, and open what it held again."""
        self.call(self.do_crash(), self.timing.starts)

    def wait(self) -> None:
        """Let real time pass."""
        time.sleep(self.timing.passes)

    def burst(self, operations: Sequence[Op]) -> None:
        """Call several operations. The gap of each is the number of milliseconds before the next one."""

        async def one(op: Op) -> None:
            if op.name in ("fold", "finish", "fail"):
                self.tell(op.run, op.name)
            else:
                await getattr(self, f"do_{op.name}")(*op.arguments.values())

        async def together() -> None:
            # Without gaps the tasks begin in order, before anything that one of them sets off.
            calls = []
            for op in operations:
                calls.append(asyncio.ensure_future(one(op)))
                if op.gap > 0:
                    await asyncio.sleep(op.gap / 1000)
            await asyncio.gather(*calls)

        self.call(together())

    def fold(self, run: str) -> None:
        """Have the runner ask for follow-ups."""
        self.tell(run, "fold")

    def finish(self, run: str) -> None:
        """Have the runner return."""
        self.tell(run, "finish")

    def fail(self, run: str) -> None:
        """Have the runner fail."""
        self.tell(run, "fail")

    def tell(self, run: str, what: str) -> None:
        """Tell a runner to fold, finish or fail. An adapter whose runner is elsewhere overrides this."""
        if told := self._told.get(run):
            told.put(what)

    def working(self) -> Collection[str] | None:
        """Return the runs whose runner is at work; None if this adapter does not use ``work``."""
        return list(self._told) if self._has_worked else None

    def observe(self) -> Sequence[Observed]:
        """Return what happened since the last call, as far as it is known yet."""
        self.call(self.look())
        with self._lock:
            seen, self._seen = self._seen, []
        return seen

    def close(self) -> None:
        """End, release the runners that are left, and stop waiting."""
        try:
            self.call(self.end())
        finally:
            self._is_closed = True
            for told in list(self._told.values()):
                told.put("finish")
            for watching in self._watching:
                watching.cancel()
