"""Who of the processes that share a file is alive: the kernel knows.

Each worker holds a lock on a file of its own beside the ledger. The lock ends with the process, however that
ends, and not before: no clock, no lease, and no process that is given up while it still runs. That holds on
one machine only, so file systems that machines share are refused as far as they can be recognised.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Final

from turngate.durable._ledger import LedgerUnavailable

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]  # whoever uses it asks first

_SHARED: Final = frozenset({
    "9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs",
    "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs3", "nfs4", "ocfs2", "pvfs2", "smb3", "smbfs",
})  # fmt: skip
_MOUNTS: Final = Path("/proc/self/mountinfo")


def refuse_shared_file_system(path: Path, mounts: Path = _MOUNTS) -> None:
    """Raise if the file is on a file system that other machines may share."""
    kind = _file_system_of(path.resolve().parent, mounts)
    if kind in _SHARED:
        raise LedgerUnavailable(f"{path} is on a network file system ({kind}); use PostgresLedger")


def _file_system_of(folder: Path, mounts: Path) -> str:
    """Return the kind of file system that is mounted where the folder is; "" where that cannot be told."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    longest, kind = -1, ""
    for line in lines:
        before, _, after = line.partition(" - ")
        where = Path(before.split()[4].encode().decode("unicode_escape"))
        if folder.is_relative_to(where) and len(where.parts) >= longest:
            longest, kind = len(where.parts), after.split()[0]
    return kind


class Life:
    """The lock that says that a worker lives."""

    def __init__(self, ledger: Path) -> None:
        if fcntl is None:  # pragma: no cover - Windows
            raise LedgerUnavailable("SqliteLedger needs file locks of a POSIX system; use PostgresLedger")
        while True:
            self.name = secrets.token_hex(8)
            self._path = _lock_file(ledger, self.name)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._path.exists():  # nobody took it for a leftover before it was locked
                    break
            except BlockingIOError:
                pass
            os.close(self._file)
        _LIVES.add(self)

    def end(self) -> None:
        """Let go of the lock. Idempotent."""
        if self in _LIVES:
            _LIVES.discard(self)
            self._path.unlink(missing_ok=True)
            os.close(self._file)

    def leave_to_parent(self) -> None:
        """Close the file in a process that was forked off: the lock is the parent's."""
        with contextlib.suppress(OSError):
            os.close(self._file)


_LIVES: Final[set[Life]] = set()


def _after_fork() -> None:
    for life in _LIVES:
        life.leave_to_parent()
    _LIVES.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def is_dead(ledger: Path, name: str) -> bool:
    """Say whether nobody holds the lock of that name any more."""
    path = _lock_file(ledger, name)
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        assert fcntl is not None
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True


def forget(ledger: Path, name: str) -> None:
    """Remove the file of a worker that is dead."""
    _lock_file(ledger, name).unlink(missing_ok=True)


def leftovers(ledger: Path) -> set[str]:
    """Return the names of all the lock files beside the ledger, whoever they belong to."""
    prefix = f"{ledger.name}-worker-"
    return {name.removeprefix(prefix) for name in os.listdir(ledger.parent) if name.startswith(prefix)}


def _lock_file(ledger: Path, name: str) -> Path:
    return ledger.with_name(f"{ledger.name}-worker-{name}")
