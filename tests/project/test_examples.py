from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import turngate
from surroundings import ROOT

SOURCE = str(Path(turngate.__file__).parent.parent)


def run(example: str, typed: str = "", *by: str) -> str:
    return subprocess.run(
        [sys.executable, *by, ROOT / "examples" / example],
        input=typed,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": SOURCE, "PYTHONWARNINGS": "error"},
    ).stdout


def test_echo() -> None:
    printed = run("echo.py")
    assert "text='hello / and good morning'" in printed
    assert printed.endswith("user      never mind (None)\nassistant  (canceled)\n")


READ_AT_ONCE = """
import runpy, sys, threading

class AtOnce(threading.Thread):
    start = threading.Thread.run

threading.Thread = AtOnce
runpy.run_path(sys.argv[1], run_name="__main__")
"""
"""Runs a program whose thread reads everything before anything happens: no machine is too busy for that."""


def test_streaming_from_a_pipe() -> None:
    assert run("streaming.py").endswith("Ctrl-D ends.\n")
    printed = run("streaming.py", "one\ntwo\n\n\nthree\n", "-c", READ_AT_ONCE)
    assert printed.count("-- cancelled") == 1
    assert "[3] you said: three" in printed
    assert printed.endswith("-- done\n")
