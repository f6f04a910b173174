"""How the processes of one machine tell on SQLite which of them are alive: each rule by itself."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import stat
from pathlib import Path
from typing import Any

import pytest

import turngate.durable._sqlite_workers as workers
from turngate._sqlite_file import FileId
from turngate.durable import LedgerUnavailable
from turngate.durable._sqlite_workers import (
    DeathWatch,
    Process,
    Seen,
    WorkerLock,
    WorkerName,
    look_for,
    refuse_shared_file_system,
    remove_lock,
    this_process,
)

LEASE = 30.0


def fail(*arguments: Any, **options: Any) -> Any:
    raise PermissionError(errno.EPERM, "not permitted")


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    file = tmp_path / "ledger.db"
    file.touch()
    return file


@pytest.fixture
def lock(ledger: Path) -> Any:
    made = WorkerLock(ledger, FileId.of(ledger.stat()))
    yield made
    made.release(remove=True)


# File systems.


def mounts(folder: Path, *lines: str) -> Path:
    file = folder / "mountinfo"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def test_a_file_on_a_disk_of_another_machine_is_refused(tmp_path: Path) -> None:
    on = tmp_path / "a b"
    escaped = str(on).replace(" ", r"\040")
    told = mounts(
        tmp_path,
        "1 0 0:1 / / rw - ext4 /dev/sda rw",
        "what is this",
        f"2 1 0:2 / {escaped} rw shared:1 - nfs4 server:/x rw",
        f"3 1 0:3 / {tmp_path}/sshfs rw - fuse.sshfs server rw",
        f"4 1 0:4 / {tmp_path}/ntfs rw - fuse.ntfs /dev/sdb rw",
        f"5 1 0:5 / {tmp_path}/one.db rw - ext4 /dev/sda rw",
    )
    for refused, why in ((on / "x.db", "nfs4"), (tmp_path / "sshfs" / "x.db", "fuse.sshfs")):
        with pytest.raises(LedgerUnavailable, match=f"may share .{why}."):
            refuse_shared_file_system(refused, told)
    with pytest.raises(LedgerUnavailable, match="mount"):
        refuse_shared_file_system(tmp_path / "one.db", told)
    refuse_shared_file_system(tmp_path / "ntfs" / "x.db", told)
    refuse_shared_file_system(tmp_path / "x.db", told)


def test_without_a_list_of_mounts_nothing_is_refused(tmp_path: Path) -> None:
    refuse_shared_file_system(tmp_path / "x.db", tmp_path / "nothing here")


# Processes.


def test_a_process_exists_until_it_has_ended() -> None:
    me = this_process()
    assert me is not None
    assert look_for(me) is Seen.THERE
    assert look_for(me._replace(start=me.start + 1)) is Seen.GONE  # its number was given to another
    assert look_for(me._replace(space="another boot")) is Seen.UNCLEAR
    assert look_for(me._replace(pid=0)) is Seen.UNCLEAR
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    status = workers._status_of(child)
    assert status is not None
    assert look_for(Process(me.space, child, status.start)) is Seen.GONE  # a zombie
    os.waitpid(child, 0)
    assert look_for(Process(me.space, child, status.start)) is Seen.GONE


def test_a_process_that_the_system_cannot_show_is_unclear(monkeypatch: pytest.MonkeyPatch) -> None:
    me = this_process()
    assert me is not None
    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", fail)  # the process of another user
        assert look_for(me) is Seen.THERE
        patch.setattr(workers, "_status_of", lambda pid: None)
        assert look_for(me) is Seen.UNCLEAR
    workers._space.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(os, "readlink", lambda path: "1000000000")  # another view of /proc
        assert this_process() is None
    workers._space.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(os, "readlink", fail)
        assert this_process() is None
    workers._space.cache_clear()
    assert this_process() == me


# Locks.


def test_a_name_can_be_parsed_back(lock: WorkerLock) -> None:
    name = lock.name
    assert WorkerName.parse(str(name)) == name
    for less in (name._replace(process=None), WorkerName(name.token)):
        assert WorkerName.parse(str(less)) == less
    assert WorkerName.parse("anything") is None


def test_a_lock_is_in_place_as_long_as_others_can_see_it(
    lock: WorkerLock, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lock.is_in_place()
    path = lock.name.lock_file(ledger)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(ledger.stat().st_mode) & 0o666
    with monkeypatch.context() as patch:
        patch.setattr(Path, "lstat", fail)
        assert lock.is_in_place()
    path.rename(path.with_name("moved"))
    assert not lock.is_in_place()


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("open", "no lock file can be made beside"),
        ("flock", "cannot be locked"),
        ("held", "lock files beside"),
        ("there", "lock files beside"),
    ],
)
def test_a_lock_that_cannot_be_taken_raises_and_leaves_nothing_behind(
    ledger: Path, monkeypatch: pytest.MonkeyPatch, broken: str, says: str
) -> None:
    def held(*arguments: Any) -> None:
        raise BlockingIOError

    def there(*arguments: Any) -> Any:
        raise FileExistsError

    with monkeypatch.context() as patch:
        match broken:
            case "open":
                patch.setattr(os, "open", fail)
            case "there":
                patch.setattr(os, "open", there)
            case _:
                patch.setattr(fcntl, "flock", held if broken == "held" else fail)
        with pytest.raises(LedgerUnavailable, match=says):
            WorkerLock(ledger, FileId.of(ledger.stat()))
    assert [*ledger.parent.iterdir()] == [ledger]


def test_a_lock_is_released_once_and_a_forked_child_leaves_it_alone(ledger: Path) -> None:
    lock = WorkerLock(ledger, FileId.of(ledger.stat()))
    child = os.fork()
    if child == 0:
        os._exit(len(workers._LOCKS))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert seen(ledger, lock.name) is Seen.THERE
    lock.release(remove=False)
    lock.release(remove=True)
    assert seen(ledger, lock.name) is Seen.GONE
    remove_lock(ledger, "anything")
    remove_lock(ledger, str(lock.name._replace(lock=FileId(0, 0))))  # of another worker
    assert lock.name.lock_file(ledger).exists()
    remove_lock(ledger, str(lock.name))
    remove_lock(ledger, str(lock.name))
    assert not lock.name.lock_file(ledger).exists()


# Who is dead.


def seen(ledger: Path, name: WorkerName) -> Seen:
    return workers._look_at_lock(ledger, name)


def test_a_lock_file_that_cannot_be_read_or_is_another_one_is_unclear(
    lock: WorkerLock, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, token = lock.name.lock_file(ledger), WorkerName(lock.name.token)
    assert seen(ledger, token) is Seen.THERE
    assert seen(ledger, WorkerName("0" * 16)) is Seen.GONE
    assert seen(ledger, lock.name._replace(token="0" * 16)) is Seen.UNCLEAR
    assert seen(ledger, lock.name._replace(lock=FileId(0, 0))) is Seen.UNCLEAR
    for name, wrong in (("open", fail), ("fstat", lambda file: ledger.stat())):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, wrong)
            assert seen(ledger, lock.name) is Seen.UNCLEAR
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", fail)
        assert seen(ledger, lock.name) is Seen.UNCLEAR
    path.unlink()
    path.mkdir()
    assert seen(ledger, token) is Seen.UNCLEAR
    path.rmdir()


@pytest.mark.parametrize("held", [True, False])
def test_how_long_a_worker_counts_as_alive(
    ledger: Path, lock: WorkerLock, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    ours, name = FileId.of(ledger.stat()), lock.name
    if not held:
        lock.release(remove=True)

    def patience(row: WorkerName | str, ledger_id: FileId = ours) -> float:
        return workers._patience(ledger, ledger_id, str(row), LEASE)

    assert patience("anything") == LEASE
    assert patience(WorkerName(name.token)) == (math.inf if held else 0.0)
    assert patience(name) == math.inf  # held, or removed by others while its process is there
    elsewhere = FileId(0, 0)
    assert patience(name, elsewhere) == (LEASE if held else 1.0)
    assert patience(name._replace(process=None)) == (math.inf if held else LEASE)
    monkeypatch.setattr(workers, "look_for", lambda process: Seen.GONE)
    assert patience(name) == (math.inf if held else 0.0)


def test_a_free_lock_is_a_death_and_doubt_lasts_a_lease(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("turngate.durable._sqlite_workers.time.monotonic", lambda: clock[0])
    ours = FileId.of(ledger.stat())
    dead = WorkerLock(ledger, ours)
    alive = WorkerLock(ledger, ours)
    dead.release(remove=False)
    rows = {1: str(dead.name), 2: str(alive.name), 3: "anything"}
    watch = DeathWatch()

    def look() -> list[int]:
        return [worker for worker, _ in watch.dead_of(rows, ledger, ours, LEASE)]

    assert look() == [1]
    del rows[1]
    for quarter in range(1, 5):
        clock[0] += LEASE * 10  # this process was stopped: it counts for a quarter each time
        assert look() == ([3] if quarter == 4 else [])
    rows[3] = "anything else"  # another worker has its number
    assert look() == []
    alive.release(remove=True)


def test_a_process_is_over_when_none_of_its_threads_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def status(state: str, threads: int) -> workers._Status | None:
        fields = [state, *["0"] * 16, str(threads), "7", "1234", *["0"] * 30]
        text = f"12 (a ) name) {' '.join(fields)}\n".encode()
        monkeypatch.setattr(Path, "read_bytes", lambda path: text)
        return workers._status_of(12)

    assert status("Z", 1) == (1234, True)
    assert status("Z", 2) == (1234, False)  # the first thread has ended, another goes on
    assert status("S", 1) == (1234, False)


def test_a_lock_file_of_another_is_never_taken(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = iter(["a" * 16, "b" * 16])
    monkeypatch.setattr("turngate.durable._sqlite_workers.secrets.token_hex", lambda size: next(tokens))
    WorkerName("a" * 16).lock_file(ledger).touch()
    lock = WorkerLock(ledger, FileId.of(ledger.stat()))
    assert lock.name.token == "b" * 16
    lock.release(remove=True)
