from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import turngate
from served_process import process
from surroundings import ROOT

SOURCE = str(Path(turngate.__file__).parent.parent)


def run(example: str) -> str:
    return subprocess.run(
        [sys.executable, ROOT / "examples" / example],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": SOURCE, "PYTHONWARNINGS": "error"},
    ).stdout


def test_echo() -> None:
    printed = run("echo.py")
    assert "text='hello / and good morning'" in printed
    assert printed.endswith("user      never mind (None)\nassistant  (canceled)\n")


def test_streaming_is_served_and_talked_to_from_a_pipe() -> None:
    with process(f"{ROOT}/examples/streaming.py:agent") as server:
        command = [sys.executable, "-m", "turngate", "chat", server.url]
        printed = subprocess.run(command, input="one\n", capture_output=True, text=True, check=True).stdout
        assert printed == "> one\n[1] you said: one \n-- finished (one)\n"
