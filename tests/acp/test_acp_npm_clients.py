"""Unmodified clients from npm: the SDK of the protocol, and acpx. `make editors` installs both."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from acp_client import AGENT
from surroundings import insist_on, miss

CLIENTS = Path(__file__).parent / "clients"
SERVER = [sys.executable, "-m", "turngate", "serve", "--acp", f"{AGENT}:agent"]
pytestmark = pytest.mark.editors


def insist_on_npm_package(name: str) -> None:
    insist_on("node")
    if not (CLIENTS / "node_modules" / name).exists():
        miss(f"the npm package {name}")


def test_the_sdk() -> None:
    insist_on_npm_package("@agentclientprotocol/sdk")
    command = ["node", str(CLIENTS / "drive.mjs"), *SERVER]
    driven = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert driven.stdout.splitlines() == [
        "initialized turngate",
        "cancelled at every step 48",
        "two sessions",
        "errors",
        "aborted cancelled",
        "exit 0",
    ], driven.stderr
    assert driven.returncode == 0


class Acpx:
    """acpx, with a home and a folder of its own."""

    def __init__(self, folder: Path) -> None:
        insist_on_npm_package("acpx")
        agent = " ".join([*SERVER, "--messages", str(folder / "messages.db")])
        self.command = ["node", str(CLIENTS / "node_modules" / "acpx" / "dist" / "cli.js"), "--agent", agent]
        self.folder = folder
        self.environment = {**os.environ, "HOME": str(folder)}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.command, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        said, _ = process.communicate(timeout=120)
        return process.returncode, said


def test_acpx_asks_once(tmp_path: Path) -> None:
    acpx = Acpx(tmp_path)
    code, said = acpx.run("--approve-all", "exec", "hello plan:x tool:t world")
    assert code == 0
    for part in ("hello", "[plan]", "touch it (completed)", "t=allow world", "[done] end_turn"):
        assert part in said
    assert "t=reject" in acpx.run("--deny-all", "exec", "tool:t")[1]
    code, said = acpx.run("exec", "fail")
    assert code == 1
    assert "RuntimeError: no luck" in said


def test_acpx_keeps_a_session_and_cancels(tmp_path: Path) -> None:
    acpx = Acpx(tmp_path)
    assert acpx.run("sessions", "new")[0] == 0
    try:
        assert "first words" in acpx.run("prompt", "first words")[1]
        held = acpx.start("prompt", f"touch:{tmp_path}/begun hold")
        while not (tmp_path / "begun").exists():
            assert held.poll() is None
            time.sleep(0.05)
        assert "cancel requested" in acpx.run("cancel")[1]
        assert "[done] cancelled" in held.communicate(timeout=120)[0]
        assert "after" in acpx.run("prompt", "after")[1]
    finally:
        assert acpx.run("sessions", "close")[0] == 0
