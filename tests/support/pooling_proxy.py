"""A PgBouncer of the tests' own, which pools transactions, before the PostgreSQL of the tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from postgres import cluster
from surroundings import miss


def _program() -> str:
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        miss("the program pgbouncer")
    assert found is not None
    return found


@contextmanager
def pooling_proxy(server_connections: int) -> Iterator[str]:
    """Give the dsn of a proxy that shares so few connections to the server among all who come."""
    program, server = _program(), cluster()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="turngate-pgbouncer-"))
    config = folder / "pgbouncer.ini"
    config.write_text(
        f"[databases]\npostgres = host=127.0.0.1 port={server.port} user=turngate\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"pool_mode = transaction\ndefault_pool_size = {server_connections}\nlogfile = {folder}/log\n"
    )
    as_user: list[str] = []
    if os.geteuid() == 0:  # it refuses to run as root, as the server does
        as_user = ["runuser", "-u", "postgres", "--"]
        for path in (folder, config):
            shutil.chown(path, "postgres")
    command = [*as_user, program, "--quiet", str(config)]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionError:
                assert process.poll() is None, "pgbouncer has ended"
                time.sleep(0.01)
        yield f"postgresql://turngate@127.0.0.1:{port}/postgres"
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)
