"""The stacks: what other people put around the tasks and the log of an application."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import importlib
import io
import logging
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.asyncio import AsyncioIntegration, enable_asyncio_integration
from sentry_sdk.transport import Transport

from stacking import Sees, Stack

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id")

# Factories first: our own, for shapes that are common or that no package has.

Factory = Callable[..., Any]


@contextlib.contextmanager
def factory(make: Factory) -> Iterator[None]:
    """Have the running loop make its tasks so."""
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    loop.set_task_factory(make)
    try:
        yield
    finally:
        loop.set_task_factory(before)


def made_of(name: str) -> Sees:
    """Recognise a task by the coroutine function that wraps what it was given."""

    def sees(task: asyncio.Task[Any]) -> bool:
        coro = task.get_coro()
        return isinstance(coro, types.CoroutineType) and coro.cr_code.co_name == name

    return sees


def made_by(make: Factory) -> AbstractContextManager[Sees]:
    """Install a factory of our own, and recognise tasks by having made them."""
    made: list[asyncio.Task[Any]] = []

    @contextlib.contextmanager
    def install() -> Iterator[Sees]:
        with factory(make(made)):
            yield lambda task: task in made
        made.clear()

    return install()


def plain(made: list[asyncio.Task[Any]]) -> Factory:
    def make(loop: Any, coro: Any, **options: Any) -> Any:
        made.append(task := asyncio.Task(coro, loop=loop, **options))
        return task

    return make


def wrapping(made: list[asyncio.Task[Any]]) -> Factory:
    def make(loop: Any, coro: Any, **options: Any) -> Any:
        async def traced() -> Any:
            return await coro

        made.append(task := asyncio.Task(traced(), loop=loop, **options))
        return task

    return make


def wrapping_lazily(made: list[asyncio.Task[Any]]) -> Factory:
    def make(loop: Any, coro: Any, **options: Any) -> Any:
        async def traced() -> Any:
            for _ in range(3):
                await asyncio.sleep(0)
            return await coro

        made.append(task := asyncio.Task(traced(), loop=loop, **options))
        return task

    return make


def reactivating(made: list[asyncio.Task[Any]]) -> Factory:
    """Carry what is current where the task is made into the task, as ddtrace does with the active trace."""

    def make(loop: Any, coro: Any, **options: Any) -> Any:
        current = request_id.get(None)

        async def traced() -> Any:
            if current is not None:
                request_id.set(current)
            return await coro

        made.append(task := asyncio.Task(traced(), loop=loop, **options))
        return task

    return make


def without_keywords(made: list[asyncio.Task[Any]]) -> Factory:
    def make(loop: Any, coro: Any) -> Any:
        made.append(task := asyncio.Task(coro, loop=loop))
        return task

    return make


class Handle(asyncio.Future[Any]):
    """A future for a task: no coroutine, no count of cancels, and a cancel goes on to the task."""

    def __init__(self, task: asyncio.Task[Any], *, at_once: bool) -> None:
        super().__init__(loop=task.get_loop())
        self.task = task
        self.at_once = at_once
        task.add_done_callback(self._over)

    def cancel(self, msg: Any | None = None) -> bool:
        return self.task.cancel() and (not self.at_once or super().cancel())

    def set_name(self, name: object) -> None:
        """Asyncio asks for it since Python 3.13."""

    def _over(self, task: asyncio.Task[Any]) -> None:
        if self.done():
            return
        if task.cancelled():
            super().cancel()
        elif (exc := task.exception()) is not None:
            self.set_exception(exc)
        else:
            self.set_result(task.result())


def future(*, at_once: bool) -> Callable[[list[asyncio.Task[Any]]], Factory]:
    """Give out a future that is no task; cancelled at once, it is done while its task still cleans up."""

    def with_future(made: list[asyncio.Task[Any]]) -> Factory:
        def make(loop: Any, coro: Any, **options: Any) -> Any:
            made.append(task := asyncio.Task(coro, loop=loop, **options))
            return Handle(task, at_once=at_once)

        return make

    return with_future


@contextlib.contextmanager
def nothing() -> Iterator[Sees]:
    yield lambda task: task.get_loop().get_task_factory() is None


@contextlib.contextmanager
def debug() -> Iterator[Sees]:
    asyncio.get_running_loop().set_debug(True)
    yield lambda task: task.get_loop().get_debug()


@contextlib.contextmanager
def eager() -> Iterator[Sees]:
    make: Factory = vars(asyncio)["eager_task_factory"]
    with factory(make):
        yield lambda task: task.get_loop().get_task_factory() is make


# And the packages.


NO_UVLOOP = "uvloop does not run on Windows" if sys.platform == "win32" else ""


def uvloop_loop() -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
    return loop


@contextlib.contextmanager
def uvloop() -> Iterator[Sees]:
    yield lambda task: type(task.get_loop()).__module__.startswith("uvloop")


class Sent(Transport):
    """What would have been sent to Sentry."""

    events: ClassVar[list[dict[str, Any]]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.events.extend(item.payload.json for item in envelope.items if item.payload.json is not None)


@contextlib.contextmanager
def sentry(*, defaults: bool = False) -> Iterator[Sees]:
    """Sentry with its AsyncioIntegration; with `defaults` also all that it does to a process."""
    Sent.events.clear()
    sentry_sdk.init(
        dsn="https://key@sentry.invalid/1",
        transport=Sent,
        traces_sample_rate=1.0,
        default_integrations=defaults,
        auto_enabling_integrations=False,
        integrations=[AsyncioIntegration()],
    )
    enable_asyncio_integration()  # init does so for the first loop of a process only
    try:
        yield made_of("_task_with_sentry_span_creation")
    finally:
        sentry_sdk.get_global_scope().set_client(None)


class Traced:
    """A trace filter of ddtrace: takes what would have been sent to Datadog."""

    spans: ClassVar[list[Any]] = []

    def process_trace(self, trace: list[Any]) -> None:
        self.spans.extend(trace)


@contextlib.contextmanager
def ddtrace() -> Iterator[Sees]:
    """Datadog's tracer, which wraps a coroutine when a trace is active where its task is made."""
    package = importlib.import_module("ddtrace")
    tracer = importlib.import_module("ddtrace.trace").tracer
    package.patch(asyncio=True)
    tracer.configure(trace_processors=[Traced()])
    with tracer.trace("life"):
        yield made_of("traced_coro")


@contextlib.contextmanager
def aiomonitor() -> Iterator[Sees]:
    with warnings.catch_warnings():  # those that it gives itself; one in its thread would hang it for ever
        warnings.simplefilter("ignore")
        package = importlib.import_module("aiomonitor")
        traced: type[Any] = importlib.import_module("aiomonitor.task").TracedTask
        monitor = package.start_monitor(
            asyncio.get_running_loop(), port=0, webui_port=0, console_enabled=False, hook_task_factory=True
        )
    with monitor:
        yield lambda task: isinstance(task, traced)


# Logs that raise: an application's filter that asks for the id of a request where there is none.


class Asks(logging.Filter):
    """A filter that raises, and keeps what it was to let through: the exception, if one was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        self.asked.append(repr(record.exc_info[1]) if record.exc_info else "")
        record.request_id = request_id.get()
        return True


class AskingHandler(logging.Handler):
    """A handler that raises where it should write."""

    def __init__(self, asks: Asks) -> None:
        super().__init__()
        self.asks = asks

    def emit(self, record: logging.LogRecord) -> None:
        self.asks.filter(record)


@contextlib.contextmanager
def raising_log(where: str, level: int) -> Iterator[Asks]:
    """Have logging raise, in one of the places where an application can put a `request_id.get()`."""
    ours, root, asks = logging.getLogger("turngate"), logging.getLogger(), Asks()
    handler: logging.Handler = AskingHandler(asks)
    make_record = logging.getLogRecordFactory()

    def asking(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make_record(*args, **kwargs)
        if record.name == "turngate":
            asks.filter(record)
        return record

    filtered = logging.StreamHandler(io.StringIO())
    filtered.addFilter(asks)
    with contextlib.ExitStack() as undo:
        undo.callback(ours.setLevel, ours.level)
        ours.setLevel(level)
        match where:
            case "filter":
                ours.addFilter(asks)
                undo.callback(ours.removeFilter, asks)
            case "handler":
                ours.addHandler(handler)
                undo.callback(ours.removeHandler, handler)
            case "root handler":
                root.addHandler(handler)
                undo.callback(root.removeHandler, handler)
            case "root filter":
                root.addHandler(filtered)
                undo.callback(root.removeHandler, filtered)
            case "record factory":
                logging.setLogRecordFactory(asking)
                undo.callback(logging.setLogRecordFactory, make_record)
            case _:
                raise ValueError(where)
        yield asks


RAISING_LOGS = ("filter", "handler", "root handler", "root filter", "record factory")


@contextlib.contextmanager
def debug_log(where: str) -> Iterator[Sees]:
    with raising_log(where, logging.DEBUG) as asks:
        yield lambda task: True
    assert asks.asked, "nothing was logged"


def of_our_own(
    make: Callable[[list[asyncio.Task[Any]]], Factory],
) -> Callable[[], AbstractContextManager[Sees]]:
    return lambda: made_by(make)


STACKS = (
    Stack("plain", nothing),
    Stack("debug", debug),
    Stack("factory", of_our_own(plain)),
    Stack("wrapping", of_our_own(wrapping)),
    Stack("wrapping-lazily", of_our_own(wrapping_lazily)),
    Stack("reactivating", of_our_own(reactivating)),
    Stack("without-keywords", of_our_own(without_keywords)),
    Stack("future", of_our_own(future(at_once=False))),
    Stack("future-done-at-once", of_our_own(future(at_once=True))),
    Stack("eager", eager, missing="" if sys.version_info >= (3, 12) else "eager tasks came with Python 3.12"),
    Stack("uvloop", uvloop, uvloop_loop, missing=NO_UVLOOP),
    Stack("sentry", sentry),
    Stack("sentry-on-uvloop", sentry, uvloop_loop, missing=NO_UVLOOP),
    Stack("aiomonitor", aiomonitor),
    *(
        Stack(f"raising-{where.replace(' ', '-')}", functools.partial(debug_log, where))
        for where in RAISING_LOGS
    ),
)
# These change the whole process, and are entered in one of their own.
APART = (Stack("ddtrace", ddtrace), Stack("sentry-defaults", functools.partial(sentry, defaults=True)))
