"""Which processes on one file are alive, however the path is spelled and whatever happens to lock files.

Each test has processes of their own on a real file. One has a turn at work; another one looks, many times.
Then the first one is killed, and the other one must notice that in the same circumstances.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from operating import NOBODY, Child, dies, overlaps, turns, until

LOOKS = 0.5
"""Seconds in which the other process looks about ten times."""
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed, and root to become it")


def at_work(journal: Path, run: str, attempt: int = 1) -> None:
    """Wait until the turn of a run has begun."""
    until(lambda: ("began", "s", run, attempt) in turns(journal), f"attempt {attempt} of run {run}")


def lock_files(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}-worker-*"))


def judge(one: Child, two: Child, journal: Path) -> None:
    """Let a turn in `one` finish, which `two` must leave alone; kill `one` in the next, which `two` takes."""
    time.sleep(LOOKS)
    one.ask("finish")
    assert two.ask("wait", "first")["text"] == f"text of {one.process.pid}"
    assert overlaps(journal) == []
    assert one.ask("submit", "s", "second") == "second"
    at_work(journal, "second")
    dies(journal, "s", "second")
    one.kill()
    at_work(journal, "second", 2)
    two.ask("finish")
    assert two.ask("wait", "second")["text"] == f"text of {two.process.pid}"
    assert overlaps(journal) == []


# How the path is spelled.


def file_link(home: Path) -> Path:
    (home / "link").mkdir()
    (home / "link" / "other.db").symlink_to(home / "data" / "ledger.db")
    return home / "link" / "other.db"


def folder_link(home: Path) -> Path:
    (home / "way").symlink_to(home / "data", target_is_directory=True)
    return home / "way" / "ledger.db"


def chain_of_links(home: Path) -> Path:
    (home / "way").symlink_to("data", target_is_directory=True)
    (home / "one.db").symlink_to("two.db")
    (home / "two.db").symlink_to("way/ledger.db")
    return home / "one.db"


def relative(home: Path) -> Path:
    return Path("data/../data/ledger.db")


@pytest.mark.parametrize(
    ("spell", "exists"),
    [(file_link, True), (file_link, False), (folder_link, True), (chain_of_links, False), (relative, True)],
    ids=["link", "dangling link", "linked folder", "chain of dangling links", "relative"],
)
def test_one_file_by_two_paths_is_one_ledger(
    spell: Callable[[Path], Path], exists: bool, tmp_path: Path
) -> None:
    """The process that reaches it by the other path opens it second, or first; then it changes its folder."""
    (tmp_path / "data").mkdir()
    (tmp_path / "elsewhere").mkdir()
    journal = tmp_path / "journal"
    direct, other = tmp_path / "data" / "ledger.db", spell(tmp_path)
    first, second = (direct, other) if exists else (other, direct)
    with (
        Child(first, journal, cwd=tmp_path) as one,
        Child(second, journal, cwd=tmp_path) as two,
    ):
        one.opened()
        two.opened()
        for child in (one, two):
            child.ask("chdir", str(tmp_path / "elsewhere"))
        one.ask("submit", "s", "first")
        at_work(journal, "first")
        assert len(lock_files(direct)) == 2
        judge(one, two, journal)
    assert not list((tmp_path / "elsewhere").iterdir())


# What happens to the lock file of a worker that lives.


def remove(lock: Path) -> None:
    lock.unlink()


def put_empty_file(lock: Path) -> None:
    lock.unlink()
    lock.touch()


def put_copy(lock: Path) -> None:
    shutil.copy2(lock, lock.with_name("copy"))
    os.replace(lock.with_name("copy"), lock)


def put_folder(lock: Path) -> None:
    lock.unlink()
    lock.mkdir()


def put_fifo(lock: Path) -> None:
    lock.unlink()
    os.mkfifo(lock)


def put_link(lock: Path) -> None:
    lock.unlink()
    lock.symlink_to("/dev/null")


def put_loop(lock: Path) -> None:
    lock.unlink()
    lock.symlink_to(lock)


def move_away(lock: Path) -> None:
    lock.rename(lock.with_name("moved"))


def write_into(lock: Path) -> None:
    lock.write_text("what is this file?\n")


def forbid(lock: Path) -> None:
    lock.chmod(0)


TAMPERING = [
    remove, put_empty_file, put_copy, put_folder, put_fifo, put_link, put_loop, move_away, write_into, forbid,
]  # fmt: skip


def test_a_worker_whose_lock_file_is_tampered_with_is_alive(tmp_path: Path) -> None:
    """It makes a new one each time where that is needed, and dies in the end."""
    path, journal = tmp_path / "ledger.db", tmp_path / "journal"
    with Child(path, journal, lease=0.2) as one:
        one.opened()
        others = set(lock_files(path))
        with Child(path, journal, lease=0.2) as two:
            two.opened()
            others = {*lock_files(path)} - others
            for tamper in TAMPERING:
                run = tamper.__name__
                assert one.ask("submit", "s", run) == run
                at_work(journal, run)
                lock = max({*lock_files(path)} - others, key=lambda each: each.lstat().st_ctime_ns)
                tamper(lock)
                time.sleep(LOOKS)
                one.ask("finish")
                assert two.ask("wait", run)["text"] == f"text of {one.process.pid}", run
                assert overlaps(journal) == []
            assert one.ask("submit", "s", "first") == "first"
            at_work(journal, "first")
            judge(one, two, journal)


@pytest.mark.parametrize("tamper", [remove, put_empty_file, None], ids=["removed", "replaced", "left alone"])
def test_a_process_that_is_stopped_is_alive(tamper: Callable[[Path], None] | None, tmp_path: Path) -> None:
    """It is stopped for longer than its lease, and cannot make a new lock file meanwhile."""
    path, journal = tmp_path / "ledger.db", tmp_path / "journal"
    with Child(path, journal, lease=0.2) as one:
        one.opened()
        (lock,) = lock_files(path)
        with Child(path, journal, lease=0.2) as two:
            two.opened()
            one.ask("submit", "s", "first")
            at_work(journal, "first")
            one.signal(signal.SIGSTOP)
            if tamper is not None:
                tamper(lock)
            time.sleep(LOOKS)
            one.signal(signal.SIGCONT)
            judge(one, two, journal)


def test_a_lock_file_that_was_removed_comes_back(tmp_path: Path) -> None:
    path, journal = tmp_path / "ledger.db", tmp_path / "journal"
    with Child(path, journal) as one:
        one.opened()
        for _ in range(2):
            for lock in lock_files(path):
                lock.unlink()
            until(lambda: lock_files(path), "a new lock file")
        assert one.ask("close", {}) == "closed"
        assert lock_files(path) == []
    assert any("WARNING" in line and "worker 1" in line for line in one.log)


# What is left of a worker that is dead.


@pytest.fixture
def public() -> Iterator[Path]:
    """Give a folder that every user may write into; those above it may be searched by everyone."""
    folder = Path(tempfile.mkdtemp(prefix="turngate-"))
    folder.chmod(0o777)
    (folder / "journal").touch()
    (folder / "journal").chmod(0o666)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("user", "tampering"),
    [
        (None, TAMPERING),
        pytest.param(NOBODY, [remove, put_folder, put_fifo, forbid], marks=AS_ROOT),
    ],
    ids=["same user", "other user"],
)
def test_a_dead_worker_is_noticed_in_every_state_of_its_lock_file(
    user: int | None, tampering: list[Callable[[Path], None]], public: Path
) -> None:
    path, journal = public / "ledger.db", public / "journal"
    with Child(path, journal, user=user) as two:
        two.opened()  # and makes the file, which is then the user's
        others = {*lock_files(path)}
        for tamper in tampering:
            run = tamper.__name__
            with Child(path, journal) as one:
                one.opened()
                (lock,) = {*lock_files(path)} - others
                one.ask("submit", "s", run)
                at_work(journal, run)
                two.signal(signal.SIGSTOP)  # it must not be faster than the tampering
                dies(journal, "s", run)
                one.kill()
            tamper(lock)
            two.signal(signal.SIGCONT)
            at_work(journal, run, 2)
            two.ask("finish")
            assert two.ask("wait", run)["text"] == f"text of {two.process.pid}"
            others = {*lock_files(path)}


def hex_name(number: int) -> str:
    return f"{number:016x}"


@pytest.mark.parametrize("user", [None, pytest.param(NOBODY, marks=AS_ROOT)], ids=["same user", "other user"])
def test_one_bad_lock_file_does_not_stop_the_recovery_of_others(user: int | None, public: Path) -> None:
    """The ledger has rows of workers whose lock files are a folder, a fifo, a stranger's, and so on."""
    path, journal = public / "ledger.db", public / "journal"
    with Child(path, journal, user=user) as first:
        first.opened()
        first.ask("close", {})
    bad = [path.with_name(f"{path.name}-worker-{hex_name(number)}") for number in range(len(TAMPERING))]
    with closing(sqlite3.connect(path)) as connection, connection:
        names = [hex_name(number) for number in range(len(TAMPERING))] + ["", "../../x", "no hex", "x" * 5000]
        connection.executemany("INSERT INTO worker (name) VALUES (?)", [(name,) for name in names])
    for lock, tamper in zip(bad, TAMPERING, strict=True):
        lock.touch(0o600)
        tamper(lock)
    public.chmod(0o1777)  # where a user may remove what is its own
    with Child(path, journal) as one:
        one.opened()
        one.ask("submit", "s", "first")
        at_work(journal, "first")
        dies(journal, "s", "first")
        one.kill()
    with Child(path, journal, user=user) as two:
        two.opened()
        at_work(journal, "first", 2)
        two.ask("finish")
        assert two.ask("wait", "first")["outcome"] == "finished"


def test_a_worker_that_has_not_locked_its_new_file_yet_is_alive(tmp_path: Path) -> None:
    """The one process is slow to lock what it has made; the other one looks meanwhile."""
    path, journal, slow = tmp_path / "ledger.db", tmp_path / "journal", tmp_path / "sitecustomize.py"
    slow.write_text(
        "import fcntl, time\n"
        "flock = fcntl.flock\n"
        f"def slow_flock(*about): time.sleep({LOOKS}); flock(*about); time.sleep({LOOKS})\n"
        "fcntl.flock = slow_flock\n"
    )
    with Child(path, journal) as two:
        two.opened()
        with Child(path, journal, first_on_path=tmp_path) as one:
            one.opened()
            slow.unlink()
            one.ask("submit", "s", "first")
            at_work(journal, "first")
            judge(one, two, journal)
