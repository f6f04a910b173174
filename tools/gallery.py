"""Checks the peers of examples/conformance/peers with the conformance kit, and writes GALLERY.md.

Usage: python tools/gallery.py [--only NAME ...] [--page]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from gallery_agents import whole_page
from gallery_page import kept
from gallery_peers import RESULTS, Peer, peers, read_results

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "GALLERY.md"
PATIENCE = 1800
"""Seconds after which a check will never end; the kit itself gives up much earlier."""
ENDS = 10
"""Seconds that a process may take to end by itself when everything is said."""


def checked(peer: Peer) -> dict[str, Any]:
    """Have the kit check a peer, and return what it says; or why it could not."""
    command = [sys.executable, "-m", "turngate", "conform", "--json", *peer.effort, *peer.subject]
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complaints:
        process = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=complaints, start_new_session=True)
        _wait_for(process, said)
        try:
            result: dict[str, Any] = json.loads(_written_to(said))
        except ValueError:
            return {"missing": (_written_to(complaints).strip().splitlines() or ["it said nothing"])[-1]}
        return result


def _wait_for(process: subprocess.Popen[bytes], said: IO[str]) -> None:
    """Wait until a check has ended. Threads of a peer may keep its process alive when everything is said."""
    for _ in range(PATIENCE):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)
            return
        if _written_to(said).endswith("\n}\n"):
            break
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(ENDS)
        return
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _written_to(file: IO[str]) -> str:
    """Return what is in a file, without moving to where in it the process goes on writing."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode()


def main() -> int:
    """Check the peers and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="*", metavar="NAME", help="check these, and keep what is known of the others"
    )
    parser.add_argument(
        "--page", action="store_true", help="check nothing, and write the page of what is known"
    )
    asked = parser.parse_args()
    results = read_results()
    for peer in peers():
        if not asked.page and (asked.only is None or peer.key in asked.only):
            print(f"checking {peer.name}", flush=True)
            results[peer.key] = {"version": peer.version} | kept(checked(peer))
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    GALLERY.write_text(whole_page(), encoding="utf-8")
    print(f"wrote {GALLERY.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
