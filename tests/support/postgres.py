"""A PostgreSQL of the tests' own: a private cluster in a temporary folder, on loopback, gone afterwards."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from surroundings import insist_on, insist_on_package, miss


def programs() -> Path | None:
    """Return the folder of the server's programs, the newest if there are several."""
    if (found := shutil.which("initdb")) is not None:
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return folders[-1].parent if folders else None


class Cluster:
    """A server that runs as long as the process that made it."""

    def __init__(self, programs: Path, *, fsync: bool = False) -> None:
        self._programs = programs
        self._fsync = "on" if fsync else "off"
        self._folder = Path(tempfile.mkdtemp(prefix="turngate-postgres-"))
        # The server refuses to run as root, so it runs as the user that its package has made.
        self._as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if self._as_user:
            shutil.chown(self._folder, "postgres")
        self._data = self._folder / "data"
        self._call(
            "initdb",
            "--pgdata",
            self._data,
            "--username=turngate",
            "--auth=trust",
            "--no-sync",
            "--encoding=UTF8",
        )
        self._process = os.getpid()
        atexit.register(self.remove)
        self._start_on_a_free_port()

    @property
    def dsn(self) -> str:
        return f"postgresql://turngate@127.0.0.1:{self.port}/postgres"

    def _start_on_a_free_port(self) -> None:
        """Start; another process may take a free port first, so several are tried."""
        for left in reversed(range(5)):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
            try:
                self.start()
            except subprocess.CalledProcessError:
                if not left:
                    raise
            else:
                return

    def start(self) -> None:
        options = (
            f"-c listen_addresses=127.0.0.1 -c port={self.port} -c unix_socket_directories= "
            f"-c fsync={self._fsync} -c max_connections=200"
        )
        log = self._folder / "log"
        self._call("pg_ctl", "start", "--wait", "--pgdata", self._data, "--log", log, "--options", options)

    def stop(self, mode: str = "immediate") -> None:
        self._call("pg_ctl", "stop", "--wait", "--pgdata", self._data, "--mode", mode)

    def copy_to(self, folder: Path) -> None:
        """Copy the files of a server that is stopped."""
        subprocess.run(["cp", "-a", str(self._data), str(folder)], check=True)

    def put_back(self, folder: Path) -> None:
        """Put such a copy in place of the files of a server that is stopped."""
        shutil.rmtree(self._data)
        subprocess.run(["cp", "-a", str(folder), str(self._data)], check=True)

    def remove(self) -> None:
        if os.getpid() != self._process or not self._folder.exists():  # forked off, or done already
            return
        try:
            self.stop()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _call(self, program: str, *arguments: object) -> None:
        command = [*self._as_user, str(self._programs / program), *map(str, arguments)]
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=self._folder
        )


@functools.cache
def cluster() -> Cluster:
    """Return the cluster of this process; skip, or fail in CI, where there can be none."""
    insist_on_package("asyncpg")
    if os.geteuid() == 0:
        insist_on("runuser")  # PostgreSQL does not run as root
    found = programs()
    if found is None:
        miss("the program initdb")
    assert found is not None
    return Cluster(found)
