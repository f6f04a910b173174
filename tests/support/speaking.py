"""Subjects of the conformance kit that speak JSON lines in a process of their own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from surroundings import ROOT
from turngate_verify.conform import Command, Timing

LONG = 600.0
"""Seconds after which something counts as hung: nothing that works takes so long on any machine."""

SPEAKS = """
import json, sys
sys.path[:0] = {paths}
from conforming import Able, Plain
from turngate_verify.conform import *
kind = {kind}
def told(event):
    return {{"event": type(event).__name__.lower(), **event._asdict()}}
for line in sys.stdin:
    asked = json.loads(line)
    id, op = asked.pop("id"), asked.pop("op")
    answer = {{"id": id}}
    if op == "hello":
        answer["features"] = kind.features.names
    elif op == "reset":
        subject = kind({flaw!r})
        answer["events"] = []
    elif op == "residue":
        answer |= {{"events": [], "residue": subject.residue()}}
    elif op == "burst":
        for each in asked["ops"]:
            getattr(subject, each.pop("op"))(**each)
        answer["events"] = [told(event) for event in subject.observe()]
    else:
        getattr(subject, op)(**asked)
        answer["events"] = [told(event) for event in subject.observe()]
    print(json.dumps(answer), flush=True)
"""


class Patient(Command):
    """Has as much time for an answer as a busy machine needs, except for the one that never comes."""

    def __init__(self, *command: str, hangs_at: str = "", waits: bool = False) -> None:
        # Until a process that is ending has ended, a busy machine may take its time.
        super().__init__(*command, timeout=LONG, timing=Timing(ends=LONG if waits else Timing().ends))
        self.hangs_at = hangs_at

    def _answer(self, op: str, **about: Any) -> dict[str, Any]:
        self.timeout = 0.5 if op == self.hangs_at else LONG
        return super()._answer(op, **about)


def command(folder: Path, *, flaw: str = "", kind: str = "Plain") -> Command:
    """Return a whole subject in a process of its own."""
    paths = [str(ROOT / folder) for folder in ("tests/support", "impl", "model", "verify")]
    program = folder / "subject.py"
    program.write_text(SPEAKS.format(paths=paths, flaw=flaw, kind=kind))
    return Patient(sys.executable, str(program))
