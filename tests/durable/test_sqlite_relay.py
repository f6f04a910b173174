"""Messages between the processes that share a file: who is spoken to, who listens, what cannot be sent."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from dispatching import HANG, in_loop
from turngate.durable import _sqlite_relay
from turngate.durable._sqlite_relay import LONGEST, Relay


def test_all_others_are_spoken_to_whatever_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @in_loop
    async def check() -> None:
        relays = {}
        for digit in "082":
            with monkeypatch.context() as patch:
                patch.setattr(secrets, "token_hex", lambda size, digit=digit: digit * 2 * size)
                relay = relays[digit] = Relay(tmp_path / "ledger.db")
                relay.listen(lambda message: None)
        names = {digit: f"ledger.db-relay-{digit * 16}" for digit in relays}
        for digit, relay in relays.items():
            assert sorted(relay.others()) == [names[each] for each in "028" if each != digit]
        for relay in relays.values():
            relay.stop()
            relay.stop()
        assert os.listdir(tmp_path) == []

    check()


def test_a_message_may_be_as_long_as_is_said(tmp_path: Path) -> None:
    @in_loop
    async def check() -> None:
        heard: asyncio.Queue[str] = asyncio.Queue()
        listener, sender = (Relay(tmp_path / "ledger.db") for _ in range(2))
        listener.listen(heard.put_nowait)
        sender.send(["x" * LONGEST, "short"])
        assert (await heard.get(), await heard.get()) == ("x" * LONGEST, "short")
        assert heard.empty()  # each is heard once
        listener.stop()

    check()


def test_a_listener_that_is_full_holds_nobody_up(tmp_path: Path) -> None:
    @in_loop
    async def check() -> None:
        listener, sender = (Relay(tmp_path / "ledger.db") for _ in range(2))
        listener.listen(lambda message: None)  # and the loop does not read
        sending = threading.Thread(target=sender.send, args=(["x" * LONGEST] * 500,), daemon=True)
        sending.start()
        sending.join(HANG / 10)
        assert not sending.is_alive()
        listener.stop()

    check()


def test_where_there_are_no_sockets_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*about: Any) -> Any:
        raise OSError("no sockets here")

    @in_loop
    async def check() -> None:
        relay = Relay(tmp_path / "ledger.db")
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", none)
            relay.listen(lambda message: None)
        assert os.listdir(tmp_path) == []
        relay.stop()

    check()


def test_a_folder_that_cannot_be_read_has_no_other_processes(tmp_path: Path) -> None:
    assert Relay(tmp_path / "gone" / "ledger.db").others() == []


def test_a_socket_without_a_listener_is_removed_and_the_next_process_hears_all(tmp_path: Path) -> None:
    @in_loop
    async def check() -> None:
        heard: asyncio.Queue[str] = asyncio.Queue()
        dead = tmp_path / f"ledger.db-relay-{'0' * 16}"  # left open by a process that was killed
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
            receiver.bind(str(dead))
        no_socket = tmp_path / f"ledger.db-relay-{'1' * 16}"
        no_socket.write_text("another program's")
        listener, sender = (Relay(tmp_path / "ledger.db") for _ in range(2))
        listener.listen(heard.put_nowait)
        sender.send(["first", "second"])
        assert (await heard.get(), await heard.get()) == ("first", "second")
        assert not dead.exists()
        assert no_socket.read_text() == "another program's"
        listener.stop()

    check()


def test_listening_twice_is_listening_once(tmp_path: Path) -> None:
    @in_loop
    async def check() -> None:
        heard: asyncio.Queue[str] = asyncio.Queue()
        listener, sender = (Relay(tmp_path / "ledger.db") for _ in range(2))
        listener.listen(heard.put_nowait)
        names = sender.others()
        listener.listen(lambda message: heard.put_nowait("again"))
        assert sender.others() == names
        assert listener.others() == []
        sender.send(["hello"])
        assert await heard.get() == "hello"
        listener.stop()
        assert sender.others() == []

    check()


class Remembered(socket.socket):
    """A socket that a test gets hold of."""

    made: ClassVar[list[socket.socket]]

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.made.append(self)


@pytest.mark.parametrize("failing", ["the address", "the loop"])
def test_a_socket_that_cannot_be_used_is_closed_and_removed(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_readers(*about: Any) -> None:
        raise NotImplementedError("this loop knows no readers")

    @in_loop
    async def check() -> None:
        loop = asyncio.get_running_loop()
        relay = Relay(tmp_path / "ledger.db")
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", Remembered)
            Remembered.made = []
            if failing == "the loop":
                patch.setattr(loop, "add_reader", no_readers)
            else:
                patch.setattr(secrets, "token_hex", lambda size: "x" * 200)  # longer than an address may be
            relay.listen(lambda message: None)
        assert [each.fileno() for each in Remembered.made] == [-1]
        assert os.listdir(tmp_path) == []
        relay.listen(lambda message: None)  # the next try may succeed
        assert len(os.listdir(tmp_path)) == 1
        relay.stop()

    check()


@pytest.mark.parametrize("user", [0, 1000])
def test_a_socket_belongs_to_whom_the_ledger_belongs_to(
    user: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[str, int, int]] = []

    def give(path: Path, owner: int, group: int) -> None:
        given.append((path.name, owner, group))

    @in_loop
    async def check() -> None:
        ledger = tmp_path / "ledger.db"
        ledger.touch()
        ledger.chmod(0o777)
        relay = Relay(ledger)
        with monkeypatch.context() as patch:
            patch.setattr(os, "geteuid", lambda: user)
            patch.setattr(os, "chown", give)
            relay.listen(lambda message: None)
        (name,) = Relay(ledger).others()
        status = ledger.stat()
        # Only root may give files away.
        assert given == ([] if user else [(name, status.st_uid, status.st_gid)])
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o666
        relay.stop()

    check()


def test_a_message_that_cannot_be_heard_does_not_keep_the_next_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @in_loop
    async def check() -> None:
        heard: asyncio.Queue[str] = asyncio.Queue()

        def hear(message: str) -> None:
            heard.put_nowait(message)
            if message == "first":
                raise RuntimeError("no room")

        listener, sender = (Relay(tmp_path / "ledger.db") for _ in range(2))
        listener.listen(hear)
        sender.send(["first", "second"])
        assert (await heard.get(), await heard.get()) == ("first", "second")
        listener.stop()

    check()
    assert [str(each.exc_info[1]) for each in caplog.records if each.exc_info] == ["no room"]


def test_whoever_speaks_without_end_leaves_the_loop_to_others_in_between() -> None:
    class Flooded:
        def recv(self, size: int) -> bytes:
            assert size == LONGEST
            return b"more"

    heard: list[str] = []
    _sqlite_relay._receive(cast("socket.socket", Flooded()), heard.append)
    assert heard == ["more"] * _sqlite_relay._AT_ONCE


class Recording(Remembered):
    """A socket whose calls are written down; it sends nothing, for all that it speaks to is in `trouble`."""

    trouble: ClassVar[OSError]

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.sent: list[tuple[bytes, str]] = []
        self.options: list[tuple[Any, ...]] = []

    def sendto(self, *about: Any) -> int:
        message, address = about
        self.sent.append((message, Path(address).name))
        raise self.trouble

    def setsockopt(self, *about: Any) -> None:
        self.options.append(about)


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> type[Recording]:
    Recording.made = []
    monkeypatch.setattr(socket, "socket", Recording)
    return Recording


@pytest.mark.parametrize("trouble", [ConnectionRefusedError(), BlockingIOError()])
def test_a_listener_that_takes_no_message_is_not_bothered_with_the_next(
    trouble: OSError, tmp_path: Path, recording: type[Recording]
) -> None:
    recording.trouble = trouble
    names = [f"ledger.db-relay-{digit * 16}" for digit in "01"]
    for name in names:
        (tmp_path / name).touch()
    Relay(tmp_path / "ledger.db").send(["first", "second"])
    (sender,) = recording.made
    assert isinstance(sender, Recording)
    assert sorted(sender.sent) == [(b"first", name) for name in names]


def test_there_is_room_for_many_messages(tmp_path: Path, recording: type[Recording]) -> None:
    @in_loop
    async def check() -> None:
        relay = Relay(tmp_path / "ledger.db")
        relay.listen(lambda message: None)
        receiver = recording.made[-1]
        assert isinstance(receiver, Recording)
        ((level, option, room),) = receiver.options
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_RCVBUF)
        assert room > _sqlite_relay._AT_ONCE * LONGEST
        relay.stop()

    check()


def test_what_listens_and_speaks_leaves_nothing_open_in_a_folder_of_any_depth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("d" * 100) / ("e" * 100)  # a socket's address has about a hundred bytes
    folder.mkdir(parents=True)

    @in_loop
    async def check() -> None:
        loop, heard = asyncio.get_running_loop(), asyncio.Queue[str]()
        before = os.listdir("/dev/fd")
        listener, sender = (Relay(folder / "ledger.db") for _ in range(2))
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", Remembered)
            Remembered.made = []
            listener.listen(heard.put_nowait)
        receiving = Remembered.made[0].fileno()
        sender.send(["hello"])
        assert await heard.get() == "hello"
        listener.stop()
        assert os.listdir("/dev/fd") == before
        assert not loop.remove_reader(receiving)

    check()
