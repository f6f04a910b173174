"""Finds out by file locks which of the workers that share a file are alive.

Each worker holds a lock on its own file beside the ledger. The kernel releases the lock exactly when the
process ends, so there is no clock and no lease, and a stopped process stays alive. File locks work on one
machine only, so file systems that machines may share are refused.

The ledger has a row for each worker. The worker's name in it contains the identity of the lock file (token,
device and inode), of the database file on which the worker was registered, and of the process. The rules:

1. If the lock is held, the worker is alive. If the lock is free, it is dead.
2. If the lock file is missing, is another file, or cannot be opened, that is a fault and not a death: the
   owner makes a new lock file at its next look. Until then the worker is alive if its process is.
3. If the process cannot be seen either (another container), the worker counts as dead when its lock has been
   out of sight for a lease.
4. If the worker was registered on another database file, this file is a copy, and the worker writes nothing
   here. It counts as dead after a moment, in which it may notice that its own file was replaced.

Only files that a row names are ever opened or removed, and only if they are what the row says, because other
files in the folder may look like lock files. Merely opening and closing another database would drop SQLite's
locks on it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
import re
import secrets
import stat
import time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from turngate._sqlite_file import FileId
from turngate.durable._ledger import LedgerUnavailable

if TYPE_CHECKING:
    from typing import Self

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]  # `WorkerLock` asks first

# File systems.

_SHARED: Final = frozenset({
    "9p", "acfs", "afs", "auristorfs", "autofs", "beegfs", "ceph", "cifs", "coda", "davfs", "drvfs",
    "fakeowner", "fhgfs", "fuse", "gfs", "gfs2", "glusterfs", "gpfs", "kafs", "lustre", "ncpfs", "nfs",
    "nfs3", "nfs4", "ocfs2", "orangefs", "osxfs", "panfs", "prl_fs", "pvfs2", "smb2", "smb3", "smbfs",
    "vboxsf", "virtiofs", "vmhgfs",
})  # fmt: skip
"""Kinds that other machines may share: networks, clusters, and a host's folders in a virtual machine."""
_LOCAL_FUSE: Final = frozenset({
    "fuse.encfs", "fuse.exfat", "fuse.exfat-fuse", "fuse.fuse-overlayfs", "fuse.fuse2fs", "fuse.gocryptfs",
    "fuse.ntfs", "fuse.ntfs-3g",
})  # fmt: skip
"""Kinds of FUSE, in addition to `fuseblk`, that keep files on a local disk; all others are refused."""
_MOUNTS: Final = Path("/proc/self/mountinfo")
_ESCAPED: Final = re.compile(rb"\\([0-7]{3})")


def refuse_shared_file_system(path: Path, mounts: Path = _MOUNTS) -> None:
    """Raise LedgerUnavailable if other machines may share the file, or if the file itself is a mount.

    Looks at the file system of the folder, not at the file systems below it (an overlay on NFS).
    """
    path = path.resolve()
    where, kind = _mount_of(path, mounts)
    if kind in _SHARED or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE):
        raise LedgerUnavailable(
            f"{path} is on a file system that other machines may share ({kind}); put it on a local disk, "
            f"or use PostgresLedger"
        )
    if where == path:
        raise LedgerUnavailable(
            f"{path} is a mount of a single file, and SQLite keeps its log beside it; mount its folder"
        )


def _mount_of(path: Path, mounts: Path) -> tuple[Path | None, str]:
    """Return the mount point and the kind of the file's file system; None and "" if they are not known."""
    try:
        lines = mounts.read_bytes().splitlines()
    except OSError:
        return None, ""
    found, kind = None, ""
    for line in lines:
        before, _, after = line.partition(b" - ")
        fields, source = before.split(b" "), after.split(b" ")
        if len(fields) < 5:
            continue
        mounted = Path(os.fsdecode(_ESCAPED.sub(lambda code: bytes([int(code[1], 8) & 0xFF]), fields[4])))
        if path.is_relative_to(mounted) and (found is None or len(mounted.parts) >= len(found.parts)):
            found, kind = mounted, os.fsdecode(source[0])
    return found, kind


# Processes.


class Process(NamedTuple):
    """The identity of a process, which no other process of this machine has or ever had."""

    space: str
    """Identifies the boot of the machine and the namespaces in which pid and start are valid."""
    pid: int
    start: int


class Seen(Enum):
    """Whether a process exists, or a lock is held."""

    THERE = "there"
    GONE = "gone"
    UNCLEAR = "unclear"


def this_process() -> Process | None:
    """Return the identity of this process; None if the system does not provide it."""
    space = _space(os.getpid())
    status = _status_of(os.getpid())
    return None if space is None or status is None else Process(space, os.getpid(), status.start)


@functools.lru_cache(maxsize=1)
def _space(pid: int) -> str | None:
    """Return an identifier of this machine, boot and container, in which pids are unique."""
    try:
        if os.readlink("/proc/self") != str(pid):
            return None  # /proc shows the pids of another namespace
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        known = [boot, os.readlink("/proc/self/ns/pid")]
    except OSError:
        return None
    with contextlib.suppress(OSError):  # older kernels do not have it
        known.append(os.readlink("/proc/self/ns/time"))
    return hashlib.sha256("\n".join(known).encode()).hexdigest()[:12]


class _Status(NamedTuple):
    start: int
    """When the process started, in clock ticks since the boot."""
    is_over: bool
    """Whether it is a zombie, so that it does not run any more."""


def _status_of(pid: int) -> _Status | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
        # The name of the program is in brackets, and may have brackets and blanks in it.
        fields = text.rpartition(b")")[2].split()
        state, threads, start = fields[0], int(fields[17]), int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
    return _Status(start, state in {b"Z", b"X", b"x"} and threads <= 1)


def look_for(process: Process) -> Seen:
    """Return whether a process still exists."""
    if process.space != _space(os.getpid()) or process.pid < 1:
        return Seen.UNCLEAR
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return Seen.GONE
    except (OSError, OverflowError):
        pass  # it exists, and belongs to another user
    status = _status_of(process.pid)
    if status is None:
        return Seen.UNCLEAR
    return Seen.THERE if status.start == process.start and not status.is_over else Seen.GONE


# Workers and their locks.

_NAME: Final = re.compile(
    r"(?P<token>[0-9a-f]{16})"
    r"(?:\.(?P<lock>[0-9]+-[0-9]+)\.(?P<ledger>[0-9]+-[0-9]+)(?:\.(?P<space>[0-9a-f]{12})-(?P<pid>[0-9]+)-(?P<start>[0-9]+))?)?"
)
_MOMENT: Final = 1.0
"""Seconds in which a worker notices that its database file was replaced."""
_TRIES: Final = 20


class WorkerName(NamedTuple):
    """The name of a worker in its row. Names written by an older Turngate have only a token."""

    token: str
    lock: FileId | None = None
    ledger: FileId | None = None
    process: Process | None = None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse a name; None if the text is not one."""
        found = _NAME.fullmatch(text)
        if found is None:
            return None
        token, lock, ledger, space, pid, start = found.groups()
        return cls(
            token,
            None if lock is None else FileId(*map(int, lock.split("-"))),
            None if ledger is None else FileId(*map(int, ledger.split("-"))),
            None if space is None else Process(space, int(pid), int(start)),
        )

    def __str__(self) -> str:
        known = [self.token]
        if self.lock is not None and self.ledger is not None:
            known += ["-".join(map(str, self.lock)), "-".join(map(str, self.ledger))]
            if self.process is not None:
                known += ["-".join(map(str, self.process))]
        return ".".join(known)

    def lock_file(self, ledger: Path) -> Path:
        """Return the path of this worker's lock file."""
        return ledger.with_name(f"{ledger.name}-worker-{self.token}")


class WorkerLock:
    """The lock by which other processes see that a worker is alive.

    name         the name for the worker's row
    is_recorded  whether the row has that name already
    """

    def __init__(self, ledger: Path, ledger_id: FileId) -> None:
        if fcntl is None:  # pragma: no cover - Windows
            raise LedgerUnavailable("SqliteLedger needs file locks of a POSIX system; use PostgresLedger")
        for _ in range(_TRIES):
            token = secrets.token_hex(8)
            self._path = WorkerName(token).lock_file(ledger)
            try:
                self._file = os.open(
                    self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
                )
            except FileExistsError:
                continue
            except OSError as exc:
                raise LedgerUnavailable(f"no lock file can be made beside {ledger}: {exc}") from exc
            self._id = FileId.of(os.fstat(self._file))
            try:
                _share_like(ledger, self._file)
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self.is_in_place():
                    break
            except BlockingIOError:
                pass  # another program was faster
            except OSError as exc:
                self._close(remove=True)
                raise LedgerUnavailable(f"the files beside {ledger} cannot be locked: {exc}") from exc
            self._close(remove=True)
        else:
            raise LedgerUnavailable(
                f"lock files beside {ledger} disappear; does another program remove them?"
            )
        self.name = WorkerName(token, self._id, ledger_id, this_process())
        self.is_recorded = False
        _LOCKS.add(self)

    def is_in_place(self) -> bool:
        """Return whether other processes can see the lock: its file may have been removed or replaced."""
        try:
            return FileId.of(self._path.lstat()) == self._id
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # the folder cannot be read, so assume that they can

    def release(self, *, remove: bool) -> None:
        """Release the lock. Idempotent.

        Remove the file only if the ledger has no row for it any more: a free lock file is what shows other
        processes that the worker is dead.
        """
        if self in _LOCKS:
            _LOCKS.discard(self)
            self._close(remove=remove)

    def _close(self, *, remove: bool) -> None:
        if remove and self.is_in_place():
            with contextlib.suppress(OSError):
                self._path.unlink()
        os.close(self._file)

    def leave_to_parent(self) -> None:
        """Close the file in a forked child, and leave the lock to the parent."""
        with contextlib.suppress(OSError):
            os.close(self._file)


_LOCKS: Final[set[WorkerLock]] = set()


def _after_fork() -> None:
    for lock in _LOCKS:
        lock.leave_to_parent()
    _LOCKS.clear()
    _space.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _share_like(ledger: Path, file: int) -> None:
    """Give the file the owner and the permissions of the ledger, as SQLite does with its own files."""
    with contextlib.suppress(OSError):
        status = ledger.stat()
        os.fchmod(file, stat.S_IMODE(status.st_mode) & 0o666)
        if os.geteuid() == 0:
            os.fchown(file, status.st_uid, status.st_gid)


class _Unclear:
    """A worker that may be dead, and since when."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._waited = 0.0
        self._last = time.monotonic()

    def wait(self, limit: float) -> float:
        """Return how many seconds have been waited in all.

        A pause between two looks counts for at most a quarter of the limit: if this process was stopped, the
        other one may have been stopped with it, and needs time to come back.
        """
        now = time.monotonic()
        self._waited += min(now - self._last, limit / 4)
        self._last = now
        return self._waited


class DeathWatch:
    """Decides which workers of other processes are dead, and remembers those for which it is unclear."""

    def __init__(self) -> None:
        self._unclear: dict[int, _Unclear] = {}

    def dead_of(
        self, workers: dict[int, str], ledger: Path, ledger_id: FileId, lease: float
    ) -> list[tuple[int, str]]:
        """Return the workers that are dead, with the names that their rows have."""
        dead: list[tuple[int, str]] = []
        unclear: dict[int, _Unclear] = {}
        for worker, name in workers.items():
            limit = _patience(ledger, ledger_id, name, lease)
            if limit == math.inf:
                continue
            seen = self._unclear.get(worker)
            if seen is None or seen.name != name:
                seen = _Unclear(name)
            if seen.wait(limit) >= limit:
                dead.append((worker, name))
            else:
                unclear[worker] = seen
        self._unclear = unclear
        return dead


def _patience(ledger: Path, ledger_id: FileId, row: str, lease: float) -> float:
    """Return for how many seconds a worker that looks like this counts as alive; see the rules above."""
    name = WorkerName.parse(row)
    if name is None:
        return lease
    lock = _look_at_lock(ledger, name)
    if name.ledger is None or name.lock is None:
        return {Seen.THERE: math.inf, Seen.GONE: 0.0, Seen.UNCLEAR: lease}[lock]
    if lock is Seen.GONE:
        return 0.0
    works_here = name.ledger == ledger_id
    if lock is Seen.THERE:
        return math.inf if works_here else lease
    process = Seen.UNCLEAR if name.process is None else look_for(name.process)
    if process is Seen.GONE:
        return 0.0
    if not works_here:
        return min(_MOMENT, lease)
    return math.inf if process is Seen.THERE else lease


def _look_at_lock(ledger: Path, name: WorkerName) -> Seen:
    """Return whether the lock is held (THERE) or free (GONE). Never waits."""
    path = name.lock_file(ledger)
    try:
        status = path.lstat()
        if not _is_lock(status, name):
            return Seen.UNCLEAR
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return Seen.UNCLEAR if name.lock is not None else Seen.GONE
    except OSError:
        return Seen.UNCLEAR
    try:
        if FileId.of(os.fstat(file)) != FileId.of(status):
            return Seen.UNCLEAR
        assert fcntl is not None
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return Seen.THERE
    except OSError:
        return Seen.UNCLEAR
    finally:
        os.close(file)
    return Seen.GONE


def _is_lock(status: os.stat_result, name: WorkerName) -> bool:
    """Return whether a file is the lock that the row names; for an old row, whether it is empty."""
    if not stat.S_ISREG(status.st_mode):
        return False
    return status.st_size == 0 if name.lock is None else FileId.of(status) == name.lock


def remove_lock(ledger: Path, row: str) -> None:
    """Remove the lock file of a dead worker, if it is there and can be removed."""
    name = WorkerName.parse(row)
    if name is None:
        return
    path = name.lock_file(ledger)
    with contextlib.suppress(OSError):
        if _is_lock(path.lstat(), name):
            path.unlink()
