"""Several workers behind one socket: what their parent does when they die and when signals come."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from turngate.cli import workers
from turngate.cli.workers import Workers


class Worker:
    """Stands in for a process."""

    def __init__(self, pid: int, ready: int) -> None:
        self.pid = pid
        self.got: list[int] = []
        self._ready = ready
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def serve(self) -> None:
        os.write(self._ready, b".")

    def end(self, code: int) -> None:
        if not self._code.done():
            os.close(self._ready)  # it has a descriptor of its own, as a process has
            self._code.set_result(code)

    def send_signal(self, number: int) -> None:
        if self._code.done():
            raise ProcessLookupError
        self.got.append(number)
        self.end(0)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    async def wait(self) -> int:
        return await asyncio.shield(self._code)


Begin = Callable[[Worker], None]


@contextmanager
def standing_in(monkeypatch: pytest.MonkeyPatch, *begins: Begin) -> Iterator[list[Worker]]:
    """Have stand-ins start, not processes; each begins in its own way, and further ones in the last."""
    started: list[Worker] = []

    async def start(*_: str, pass_fds: Any, **__: object) -> Worker:
        worker = Worker(len(started) + 1, os.dup(pass_fds.ready))
        started.append(worker)
        begins[min(len(started), len(begins)) - 1](worker)
        await asyncio.sleep(0.01)  # a signal comes while it starts
        return worker

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    monkeypatch.setattr(workers, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(workers, "_LONGEST_PAUSE", 0.002)
    yield started


def served(count: int, then: Callable[[], None]) -> int:
    """Run this many workers; `then` is called when every one of them serves."""
    with socket.socket() as listener:
        return Workers([], count, listener).run(then)


def press(number: int) -> None:
    os.kill(os.getpid(), number)


def serves(worker: Worker) -> None:
    worker.serve()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_is_passed_on_to_every_worker(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    with standing_in(monkeypatch, serves) as started:
        assert served(3, lambda: press(number)) == code
    assert [worker.got for worker in started] == [[number]] * 3


def test_a_first_worker_that_cannot_serve_ends_it_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    with standing_in(monkeypatch, lambda worker: worker.end(2)) as started:
        assert served(3, pytest.fail) == 2
    assert len(started) == 1


def test_a_worker_that_dies_is_started_again_as_often_as_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def again(worker: Worker) -> None:
        worker.serve()
        if worker.pid == 6:
            press(signal.SIGTERM)

    def dies(worker: Worker) -> None:
        worker.end(1)

    with standing_in(monkeypatch, serves, serves, dies, dies, dies, again) as started:
        assert served(2, lambda: started[0].end(9)) == 0
    assert len(started) == 6
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("turngate: worker 1 ended with 9")
    assert [line.partition(";")[0] for line in told[1:]] == [
        f"turngate: worker {pid} ended with 1" for pid in (3, 4, 5)
    ]


def test_a_signal_before_every_worker_serves_ends_those_that_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with standing_in(monkeypatch, serves, lambda _: press(signal.SIGTERM)) as started:
        assert served(2, pytest.fail) == 0
    assert [worker.got for worker in started] == [[signal.SIGTERM]] * 2


def test_a_signal_while_a_dead_worker_is_waited_for_starts_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with standing_in(monkeypatch, serves) as started:
        monkeypatch.setattr(workers, "_FIRST_PAUSE", 3600.0)

        def then() -> None:
            started[0].end(1)
            asyncio.get_running_loop().call_later(0.05, press, signal.SIGTERM)

        assert served(2, then) == 0
    assert len(started) == 2


def test_a_worker_that_ended_wrongly_after_the_signal_gives_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(Worker):
        def send_signal(self, number: int) -> None:
            self.got.append(number)
            self.end(70)

    def wrong(worker: Worker) -> None:
        worker.serve()
        worker.__class__ = Wrong

    with standing_in(monkeypatch, serves, wrong):
        assert served(2, lambda: press(signal.SIGTERM)) == 70
