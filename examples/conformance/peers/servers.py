"""The servers that peers need: each in a temporary folder, on a free port, and gone afterwards."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

logging.disable(logging.CRITICAL)  # what peers log is not what is looked at


def free_port() -> int:
    """Return a port that is free at the moment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def listening(port: int) -> int:
    """Wait until a server listens there, and return the port."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return port


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
    data = f"--pgdata={folder}/data"
    options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories= -c fsync=off"

    def call(program: str, *arguments: str) -> None:
        command = [*as_user, str(programs / program), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)

    call("initdb", data, "--username=peer", "--auth=trust", "--no-sync")
    call("pg_ctl", "start", "--wait", data, f"--log={folder}/log", f"--options={options}")
    atexit.register(call, "pg_ctl", "stop", data, "--mode=immediate")
    return f"postgresql://peer@127.0.0.1:{port}/postgres"
