"""The servers that peers need, each in a temporary folder, on a free port of this machine, gone afterwards."""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path


def free_port() -> int:
    """Return a port that nobody uses just now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def answers(port: int) -> bool:
    """Say whether somebody listens there by now."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def temporary_folder() -> Path:
    """Return a folder that is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="turngate-peer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def postgres() -> str:
    """Start a PostgreSQL of our own, and return how to connect to it."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    assert found, "PostgreSQL is not installed; on Debian: apt-get install postgresql"
    programs, folder, port = found[-1].parent, temporary_folder(), free_port()
    # The server refuses to run as root, so it runs as the user that its package has made.
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if as_user:
        shutil.chown(folder, "postgres")
    quietly = {"check": True, "stdout": subprocess.DEVNULL, "cwd": folder}
    data = f"--pgdata={folder}/data"
    subprocess.run([*as_user, programs / "initdb", data, "--username=peer", "--auth=trust", "--no-sync"], **quietly)
    options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories= -c fsync=off"
    start = [*as_user, programs / "pg_ctl", "start", "--wait", data, f"--log={folder}/log", f"--options={options}"]
    subprocess.run(start, **quietly)
    atexit.register(subprocess.run, [*as_user, programs / "pg_ctl", "stop", data, "--mode=immediate"], **quietly)
    return f"host=127.0.0.1 port={port} user=peer dbname=postgres"
