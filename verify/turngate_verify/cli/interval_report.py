"""What ``turngate trace --intervals`` prints."""

from __future__ import annotations

from typing import Any

from turngate_verify.cli.pipeline import told as requirements_told
from turngate_verify.cli.show import bold, out, print_but, styled
from turngate_verify.intervals.judge import JudgedHistory
from turngate_verify.intervals.picture import drawn
from turngate_verify.pipeline.telling import requirements_of_intervals
from turngate_verify.trace import NEVER_SHOWN
from turngate_verify.words import counted


def as_object(judged: JudgedHistory) -> dict[str, Any]:
    """Return the result as the object that ``--json`` prints."""
    told: dict[str, Any] = {"verdict": judged.verdict, "events": judged.events, "runs": judged.runs}
    if judged.breaches:
        first = judged.breaches[0]
        told |= {"property": str(first.broken), "line": first.where, "expected": first.what}
        told["violations"] = [
            {
                "session": each.session,
                "property": str(each.broken),
                "possible": [str(one) for one in each.possible],
                "line": each.where,
                "expected": each.what,
                "history": [item.what.where for item in each.history],
            }
            for each in judged.breaches
        ]
    told["unchecked"] = _unchecked(judged)
    told["undecided"] = judged.undecided
    told["never_shown"] = [str(each) for each in NEVER_SHOWN]
    told["requirements"] = requirements_told(requirements_of_intervals(judged))
    return told


def _unchecked(judged: JudgedHistory) -> list[str]:
    owed = [] if judged.whole else ["what is still owed: no line says end"]
    return owed + judged.cannot_show


def print_judged(judged: JudgedHistory) -> None:
    """Print the result for people."""
    extent = "a whole history" if judged.whole else "a partial history"
    out.print(f"{counted(judged.events, 'event')}, {counted(judged.runs, 'run')}, {extent}")
    for breach in judged.breaches:
        out.print("")
        out.print(
            f"session {breach.session}, {breach.where}: ",
            bold(breach.broken),
            f": {breach.broken.sentence}",
            sep="",
        )
        for line in drawn(breach):
            out.print(line)
        print_but(breach.what)
        if others := [str(each) for each in breach.possible if each is not breach.broken]:
            out.print(f"  or else {', '.join(others)} is broken: either alone would explain it")
    for session in judged.undecided:
        out.print(f"not decided: session {session} has too many possible orders")
    for each in _unchecked(judged):
        out.print(f"not checked: {each}")
    out.print(f"never shown by a recording: {', '.join(NEVER_SHOWN)}")
    out.print("verdict:", styled(judged.verdict))
