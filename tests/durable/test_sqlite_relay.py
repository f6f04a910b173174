"""Messages between the processes that share a file: who is spoken to, who listens, what cannot be sent."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from dispatching import HANG, in_loop
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
