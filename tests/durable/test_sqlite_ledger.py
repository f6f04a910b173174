"""A ledger in an SQLite file: the file itself, and statements, commits and threads that fail."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dispatching import Agent, echo, in_loop
from operating import NOBODY, PYTHONPATH, Child, turns, until
from turngate import Delta, Message, Run, SqliteMessages, Subscription, Turn
from turngate._sqlite_file import OpenedFile
from turngate.durable import DurableDispatcher, LedgerUnavailable, OutcomeUnknown, SqliteLedger, _sqlite
from turngate.durable._sqlite_workers import refuse_shared_file_system


async def ledger_with(path: Path, *run_ids: str) -> None:
    async with DurableDispatcher(echo, SqliteLedger(path), poll=0.05) as d:
        for run_id in run_ids:
            assert (await d.ask("s", "p", run_id=run_id)).outcome == "finished"


async def known(path: Path, *run_ids: str) -> list[bool]:
    async with DurableDispatcher(echo, SqliteLedger(path), poll=0.05) as d:
        return [await d.find(run_id) is not None for run_id in run_ids]


def test_a_log_that_sqlite_itself_cuts_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    async def main() -> None:
        async with DurableDispatcher(echo, SqliteLedger(path), poll=0.05) as d:
            for number in range(40):
                asked = asyncio.create_task(d.ask(f"s{number % 4}", "p"))
                with closing(sqlite3.connect(path)) as other:
                    other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                assert (await asked).outcome == "finished"

    asyncio.run(main())


# The file is taken away while it is open.


def restore(home: Path) -> None:
    for name in ("ledger.db-wal", "ledger.db-shm", "ledger.db"):
        (home / name).unlink()
    os.replace(home / "backup", home / "ledger.db")


def restore_the_file_alone(home: Path) -> None:
    os.replace(home / "backup", home / "ledger.db")


def remove(home: Path) -> None:
    (home / "ledger.db").unlink()


def rename(home: Path) -> None:
    (home / "ledger.db").rename(home / "other.db")


def rename_folder(home: Path) -> None:
    home.rename(home.with_name("other"))


def replace_folder(home: Path) -> None:
    shutil.copytree(home, home.with_name("copy"))
    home.rename(home.with_name("other"))
    home.with_name("copy").rename(home)


def point_link_elsewhere(home: Path) -> None:
    os.replace(home / "another link", home / "link.db")


def remove_log(home: Path) -> None:
    (home / "ledger.db-wal").unlink()


def remove_log_and_index(home: Path) -> None:
    (home / "ledger.db-wal").unlink()
    (home / "ledger.db-shm").unlink()


def empty(home: Path) -> None:
    os.truncate(home / "ledger.db", 0)


TAKING_AWAY = [
    restore, restore_the_file_alone, remove, rename, rename_folder, replace_folder, point_link_elsewhere,
    remove_log, remove_log_and_index, empty,
]  # fmt: skip


@pytest.mark.parametrize("take_away", TAKING_AWAY, ids=lambda taking: taking.__name__)
def test_nothing_is_acknowledged_once_the_file_is_gone(
    take_away: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    path = home / ("link.db" if take_away is point_link_elsewhere else "ledger.db")
    interrupted = asyncio.Event()

    async def runner(turn: Turn) -> str:
        if turn.run.run_id == "at work":
            try:
                await asyncio.Event().wait()
            finally:
                interrupted.set()
        return "done"

    @in_loop
    async def check() -> None:
        await ledger_with(home / "ledger.db", "r0")
        shutil.copy(home / "ledger.db", home / "backup")
        (home / "link.db").symlink_to("ledger.db")
        (home / "another link").symlink_to("backup")
        d = DurableDispatcher(runner, SqliteLedger(path), poll=0.05)
        await d.ask("s", "p", run_id="r1")
        run = await d.submit("busy", "p", run_id="at work")
        waiting = asyncio.create_task(run.wait())
        reading = asyncio.create_task(read(run))
        await asyncio.sleep(0)
        take_away(home)
        for number in range(5):
            with pytest.raises(LedgerUnavailable) as refused:
                await d.submit("t", "p", run_id=f"late {number}")
            assert "\n" not in str(refused.value)
        assert "while it was open" in str(refused.value) or "no longer leads" in str(refused.value)
        with pytest.raises(LedgerUnavailable):
            await d.find("r1")
        for task in (waiting, reading):
            with pytest.raises(LedgerUnavailable):
                await task
        await interrupted.wait()
        await d.aclose()
        if take_away in {remove_log, remove_log_and_index}:
            assert await known(path, "r0", "r1", "at work", "late 0") == [True, True, True, False]
        elif take_away in {restore, restore_the_file_alone, point_link_elsewhere}:
            assert await known(path, "r0", "late 0") == [True, False]

    with caplog.at_level(logging.WARNING, "turngate"):
        check()
    said = [each.getMessage() for each in caplog.records]
    assert sum("nothing more is written" in each for each in said) == 1, said


async def read(run: Run) -> None:
    async for _ in run.stream():
        pass


def test_an_idle_process_notices_that_its_file_is_gone(tmp_path: Path) -> None:
    """It has nothing to write, and a turn at work, which is interrupted all the same."""

    @in_loop
    async def check() -> None:
        agent = Agent()
        async with DurableDispatcher(agent, SqliteLedger(tmp_path / "ledger.db"), poll=3600.0) as d:
            run = await d.submit("s", "p")
            while not agent.turns:
                await asyncio.sleep(0.01)
            (tmp_path / "ledger.db").unlink()
            with pytest.raises(LedgerUnavailable, match="removed or renamed"):
                await run

    check()


def test_messages_are_not_acknowledged_once_their_file_is_gone(tmp_path: Path) -> None:
    def message(number: int) -> Message:
        return Message(f"m{number}", "s", "r", "user", "text", None, None)

    @in_loop
    async def check() -> None:
        os.chdir(tmp_path)
        async with SqliteMessages("messages.db") as messages:
            os.chdir("/")
            await messages.put([message(1)])
            (tmp_path / "messages.db").rename(tmp_path / "moved.db")
            for _ in range(2):
                with pytest.raises(OSError, match="removed or renamed"):
                    await messages.put([message(2)])
            with pytest.raises(OSError, match="removed or renamed"):
                await messages.list("s")
        os.link(tmp_path / "moved.db", tmp_path / "second.db")
        async with SqliteMessages(tmp_path / "second.db") as messages:
            with pytest.raises(OSError, match="2 hard links"):
                await messages.put([message(3)])

    back = os.getcwd()
    try:
        check()
    finally:
        os.chdir(back)


# What is refused at once.


def refusal(path: str | Path) -> str:
    """Return why a ledger cannot be opened."""
    said = ""

    @in_loop
    async def open_it() -> None:
        nonlocal said
        with pytest.raises(LedgerUnavailable) as refused:
            async with DurableDispatcher(echo, SqliteLedger(path)):
                pass
        said = str(refused.value)

    open_it()
    assert "\n" not in said
    return said


def test_a_path_that_cannot_be_a_ledger_is_refused_in_one_line(tmp_path: Path) -> None:
    in_loop(ledger_with)(tmp_path / "one.db", "r0")
    os.link(tmp_path / "one.db", tmp_path / "two.db")
    (tmp_path / "link.db").symlink_to("two.db")
    for name in ("one.db", "two.db", "link.db"):
        assert "2 hard links" in refusal(tmp_path / name)
    (tmp_path / "two.db").unlink()
    in_loop(ledger_with)(tmp_path / "one.db", "r1")

    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    assert "folder" in refusal(tmp_path / "folder")
    assert "fifo" in refusal(tmp_path / "fifo")
    assert "loop" in refusal(tmp_path / "loop")
    assert "nowhere" in refusal(tmp_path / "nowhere" / "ledger.db")
    assert "~" in refusal("~/no such folder/ledger.db")
    (tmp_path / "text").write_text("this is not a database, " * 100)
    assert "not a database" in refusal(tmp_path / "text")
    for name in ("", ":memory:"):
        with pytest.raises(ValueError, match="file"):
            SqliteLedger(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount, and become another user")
def test_a_folder_that_may_not_be_written_to_is_refused() -> None:
    with public_folder() as home, tempfile.TemporaryDirectory() as elsewhere:
        path = home / "ledger.db"
        in_loop(ledger_with)(path, "r0")
        os.chown(path, NOBODY, NOBODY)
        home.chmod(0o755)
        with Child(path, Path(elsewhere) / "journal", user=NOBODY) as child:
            assert child.answer().startswith(f"LedgerUnavailable: {path} cannot be opened: ")
        assert os.listdir(home) == ["ledger.db"]


@contextlib.contextmanager
def public_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="turngate-") as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)


IN_MOUNTS_OF_ITS_OWN = """
import asyncio, subprocess, sys
from turngate.durable import DurableDispatcher, SqliteLedger
async def main():
    async with DurableDispatcher(print, SqliteLedger(sys.argv[2])): pass
subprocess.run(["mount", "--bind", sys.argv[1], sys.argv[2]], check=True)
try: asyncio.run(main())
except Exception as exc: print(type(exc).__name__, exc)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
@pytest.mark.needs("unshare", "mount")
def test_a_mount_of_a_single_file_is_refused_and_a_mount_of_its_folder_is_not(tmp_path: Path) -> None:
    """SQLite would keep the log of the one file in two folders."""
    data, app = tmp_path / "data", tmp_path / "app"
    data.mkdir()
    app.mkdir()
    in_loop(ledger_with)(data / "ledger.db", "r0")
    (app / "ledger.db").touch()

    def opened(source: Path, target: Path) -> str:
        done = subprocess.run(
            ["unshare", "--mount", sys.executable, "-c", IN_MOUNTS_OF_ITS_OWN, source, target],
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
            capture_output=True,
            text=True,
            check=False,
        )
        if "CalledProcessError" in done.stderr or "unshare" in done.stderr:
            pytest.skip(f"nothing can be mounted here: {done.stderr}")
        return done.stdout

    assert "mount" in opened(data / "ledger.db", app / "ledger.db")


NETWORK = [
    "nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "vboxsf", "vmhgfs", "prl_fs", "fuse.sshfs", "fuse.s3fs",
    "fuse.rclone", "fuse.glusterfs", "fuse.gcsfuse", "fuse.vmhgfs-fuse", "fuse.grpcfuse", "fuse",
    "fuse.new-kind",
]  # fmt: skip
LOCAL = ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk", "fuse.ntfs-3g", "fuse.fuse-overlayfs"]


@pytest.mark.parametrize(
    "name", ["data", "größe", "with blank", "tab\there", "back\\slash", "new\nline", "\udcff", "日本", "a#b"]
)
def test_the_file_system_is_recognised_whatever_the_mount_point_is_called(name: str, tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    escaped = os.fsencode(tmp_path / name)
    for byte in b"\\ \t\n#":  # as the kernel writes them
        escaped = escaped.replace(bytes([byte]), b"\\%03o" % byte)
    for kind in NETWORK + LOCAL:
        mounts.write_bytes(
            b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
            b"36 22 0:50 / %b rw,relatime shared:1 master:2 - %b server:/export rw\n"
            b"37 36 0:51 / %b/local rw - ext4 /dev/sdb1 rw\n" % (escaped, kind.encode(), escaped)
        )
        refuse_shared_file_system(tmp_path / "ledger.db", mounts)
        refuse_shared_file_system(tmp_path / name / "local" / "ledger.db", mounts)
        if kind in LOCAL:
            refuse_shared_file_system(tmp_path / name / "ledger.db", mounts)
        else:
            with pytest.raises(LedgerUnavailable, match=f"{kind}.*PostgresLedger"):
                refuse_shared_file_system(tmp_path / name / "folder" / "ledger.db", mounts)


# Other files in the folder.


def test_ledgers_with_confusing_names_leave_each_other_alone(tmp_path: Path) -> None:
    """They are open in one process at the same time, and listen to what is streamed on them."""
    tail = "0123456789abcdef"
    names = ["agents", "agents-worker-eu", f"agents-worker-{tail}", "agents-relay-eu", f"agents-relay-{tail}"]
    files = [
        tmp_path / f"agents-worker-{'f' * 16}",
        tmp_path / f"agents-relay-{'f' * 16}",
        tmp_path / "agents-relay-",
    ]

    @in_loop
    async def check() -> None:
        for name in names:
            await ledger_with(tmp_path / name, f"of {name}")
        for file in files:
            file.write_text("precious")
        sockets = [*map(dead_socket, (tmp_path / "agents-relay-socket", tmp_path / "agents-worker-socket"))]
        agents = {name: Agent() for name in names}
        async with contextlib.AsyncExitStack() as stack:
            pairs = {
                name: [
                    await stack.enter_async_context(
                        DurableDispatcher(agents[name], SqliteLedger(tmp_path / name), poll=0.02)
                    )
                    for _ in range(2)
                ]
                for name in names
            }
            heard = {name: two.subscribe() for name, (_, two) in pairs.items()}
            for name, (one, two) in pairs.items():
                await two.session("s")
                while not one._ledger.has_listeners():
                    await asyncio.sleep(0.01)
                run = await one.submit(f"session of {name}", "p", run_id=f"stream of {name}")
                while not agents[name].turns:
                    await asyncio.sleep(0.01)
                agents[name].turns[-1].write(f"text of {name}")
                assert (await deltas(heard[name])).text == f"text of {name}"
                agents[name].finish(run)
                assert (await run).outcome == "finished"
            await asyncio.sleep(0.2)  # ten looks
            for name in names:
                heard[name].close()
                assert {event.session_id async for event in heard[name]} <= {f"session of {name}"}
        for name in names:
            assert await known(tmp_path / name, f"of {name}", f"stream of {name}") == [True, True]
        assert [file.read_text() for file in files] == ["precious"] * len(files)
        assert all(each.exists() for each in sockets)

    check()


async def deltas(events: Subscription) -> Delta:
    while not isinstance(event := await anext(events), Delta):
        pass
    return event


def dead_socket(path: Path) -> Path:
    handle = os.open(path.parent, os.O_RDONLY)  # the address of a socket has little room
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(f"/proc/self/fd/{handle}/{path.name}")
    os.close(handle)
    return path


def test_a_ledger_of_an_earlier_version_with_its_lock_files_can_be_used(tmp_path: Path) -> None:
    """The rows have a token alone; one lock file is there and free, one is missing."""
    path = tmp_path / "ledger.db"

    @in_loop
    async def check() -> None:
        await ledger_with(path, "r0")
        with closing(sqlite3.connect(path)) as connection, connection:
            for token in ("a" * 16, "b" * 16):
                connection.execute("INSERT INTO worker (name) VALUES (?)", (token,))
        left = tmp_path / f"ledger.db-worker-{'a' * 16}"
        left.touch()
        async with DurableDispatcher(echo, SqliteLedger(path), poll=0.02) as d:
            while left.exists():
                await asyncio.sleep(0.01)
            assert (await d.ask("s", "p")).outcome == "finished"
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT count(*) FROM worker").fetchone() == (0,)

    check()


# No room.


@pytest.mark.parametrize("way", ["a full disk", "files that may not grow"])
def test_a_full_disk_refuses_and_loses_nothing(way: str, tmp_path: Path) -> None:
    """What was acknowledged stays; what runs is put on record when there is room again."""
    journal, home, sizes = tmp_path / "journal", tmp_path / "home", None
    home.mkdir()
    with contextlib.ExitStack() as stack:
        if way == "a full disk":
            if os.geteuid() != 0 or not mount_tmpfs(home):
                pytest.skip("only root can mount a small disk")
            stack.callback(lambda: subprocess.run(["umount", "--lazy", home], check=True))
        else:
            sizes = 400_000
        child = stack.enter_context(Child(home / "ledger.db", journal, sizes=sizes)).opened()
        assert child.ask("submit", "busy", "at work") == "at work"
        until(lambda: ("began", "busy", "at work", 1) in turns(journal), "the turn")
        filler = home / "filler"
        if sizes is None:
            with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as out:
                while True:
                    out.write(b"x" * 4096)
        acknowledged: list[str] = []
        for number in range(2000):
            answer = child.ask("submit", "s", f"r{number}")
            if answer != f"r{number}":
                break
            acknowledged.append(answer)
        assert answer.startswith("LedgerUnavailable: "), answer
        child.ask("finish")  # cannot be put on record now
        if sizes is None:
            filler.unlink()
            assert child.ask("wait", "at work")["outcome"] == "finished"
            assert child.ask("submit", "s", "there is room") == "there is room"
            acknowledged.append("there is room")
        child.kill()

        @in_loop
        async def check() -> None:
            assert all(await known(home / "ledger.db", "at work", *acknowledged))

        check()


def mount_tmpfs(folder: Path) -> bool:
    if shutil.which("mount") is None:
        return False
    command = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", os.fspath(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


# What an SQLite ledger did not expect: its thread goes on, or refuses, and no caller waits for ever.


class Fault:
    """Raises, a number of times, before or after the statements that begin with some words."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statement = ""
        self.is_done_first = False
        self.times = 0
        fault, connect = self, sqlite3.connect

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, *about: Any) -> sqlite3.Cursor:
                if not fault.strikes(sql):
                    return super().execute(sql, *about)
                if fault.is_done_first:
                    super().execute(sql, *about)
                raise RuntimeError("struck")

        monkeypatch.setattr(sqlite3, "connect", lambda *a, **kw: connect(*a, **kw, factory=Connection))

    def strikes(self, sql: str) -> bool:
        if not self.times or not sql.lstrip().startswith(self.statement):
            return False
        self.times -= 1
        return True

    def arm(self, statement: str, *, is_done_first: bool, times: int = 1) -> None:
        self.statement, self.is_done_first, self.times = statement, is_done_first, times


async def on_record(path: Path, run_id: str) -> bool:
    """Ask the file, by another ledger."""
    ledger = SqliteLedger(path)
    await ledger.open()
    try:
        return bool(await ledger.find([run_id]))
    finally:
        await ledger.close()


@pytest.mark.parametrize("is_done_first", [False, True])
@pytest.mark.parametrize("statement", ["BEGIN IMMEDIATE", "COMMIT", "PRAGMA data_version", "SELECT"])
def test_a_prompt_whose_statement_fails_gets_a_true_answer_and_the_ledger_goes_on(
    statement: str, is_done_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"

    @in_loop
    async def check() -> None:
        fault = Fault(monkeypatch)
        async with DurableDispatcher(echo, SqliteLedger(path), poll=0.05) as d:
            assert (await d.ask("s", "before")).text == "before"
            for number in range(6):
                run_id = f"r{number}"
                fault.arm(statement, is_done_first=is_done_first)
                problem: Exception | None = None
                try:
                    await d.accept("s", "p", run_id=run_id)
                except Exception as exc:
                    problem = exc
                fault.times = 0
                if not isinstance(problem, OutcomeUnknown):
                    assert await on_record(path, run_id) is (problem is None)
            while True:  # a worker that does not know what happened to a step takes a new name first
                with contextlib.suppress(LedgerUnavailable):
                    assert (await d.ask("t", "after")).text == "after"
                    break

    check()


def test_a_commit_that_fails_behind_the_commit_is_not_called_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @in_loop
    async def check() -> None:
        fault = Fault(monkeypatch)
        ledger = SqliteLedger(tmp_path / "ledger.db")
        await ledger.open()
        fault.arm("COMMIT", is_done_first=True)
        with pytest.raises(OutcomeUnknown):
            await ledger.register(5.0)
        assert await ledger.register(5.0)
        await ledger.close()

    check()


@pytest.mark.parametrize("at", ["the look at the file", "the look behind the commit", "the taking of jobs"])
@pytest.mark.parametrize("times", [1, 10_000])
def test_a_thread_that_fails_goes_on_or_says_that_it_cannot(
    at: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 0

    def failing(call: Callable[..., Any], every: int) -> Callable[..., Any]:
        calls = 0

        def fail(*args: Any) -> Any:
            nonlocal left, calls
            if left:
                calls += 1
                if calls % every == 0:
                    left -= 1
                    raise MemoryError(f"no room for {at}")
            return call(*args)

        return fail

    if at == "the taking of jobs":
        from turngate.durable._sqlite_thread import CommitThread  # noqa: PLC0415 - for this case alone

        monkeypatch.setattr(CommitThread, "_next_batch", failing(CommitThread._next_batch, 1))
    else:
        every = 2 if at == "the look behind the commit" else 1
        monkeypatch.setattr(OpenedFile, "problem", failing(OpenedFile.problem, every))

    @in_loop
    async def check() -> None:
        nonlocal left
        ledger = SqliteLedger(tmp_path / "ledger.db")
        d = DurableDispatcher(echo, ledger, poll=0.05)
        await d.__aenter__()
        assert (await d.ask("s", "before")).text == "before"
        left = times
        asked = [asyncio.create_task(d.ask(f"s{number}", "p")) for number in range(20)]
        await asyncio.wait(asked)  # none waits for ever
        for task in asked:
            assert task.exception() is None or isinstance(task.exception(), LedgerUnavailable)
        if times == 1:
            while True:
                with contextlib.suppress(LedgerUnavailable):
                    assert (await d.ask("t", "after")).text == "after"
                    break
        else:
            with pytest.raises(LedgerUnavailable):
                await d.accept("t", "p")
        await d.aclose(finish=1)

    check()


def test_a_listener_that_raises_gets_the_next_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @in_loop
    async def check() -> None:
        ledgers = [SqliteLedger(tmp_path / "ledger.db") for _ in range(2)]
        for ledger in ledgers:
            await ledger.open()
        heard: list[str] = []

        def hear(message: str) -> None:
            heard.append(message)
            if message == "wrong":
                raise ValueError(message)

        ledgers[0].on_relay(hear)
        await ledgers[1].relay(["wrong", "right"])
        while len(heard) < 2:
            await asyncio.sleep(0.005)
        assert heard == ["wrong", "right"]
        for ledger in ledgers:
            await ledger.close()

    check()
    assert "ValueError: wrong" in caplog.text


def test_a_file_that_is_locked_for_a_moment_is_opened_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate, codes = _sqlite._migrate, [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_SNAPSHOT]

    def locked(*about: Any) -> None:
        if codes:
            problem = sqlite3.OperationalError("database is locked")
            problem.sqlite_errorcode = codes.pop()
            raise problem
        migrate(*about)

    monkeypatch.setattr(_sqlite, "_migrate", locked)

    @in_loop
    async def check() -> None:
        ledger = SqliteLedger(tmp_path / "ledger.db")
        await ledger.open()
        await ledger.close()

    check()
    assert not codes


def test_a_worker_that_retires_leaves_no_lock_file(tmp_path: Path) -> None:
    def locks() -> int:
        return sum("-worker-" in name for name in os.listdir(tmp_path))

    @in_loop
    async def check() -> None:
        ledger = SqliteLedger(tmp_path / "ledger.db")
        await ledger.open()
        worker = await ledger.register(5.0)
        assert locks() == 1
        await ledger.retire(worker)
        assert locks() == 0
        assert await ledger.expire_keys(3600.0, 10) == 0
        await ledger.close()

    check()
