"""The commands of the checks, as `turngate` finds them by the entry point `turngate.commands`.

Standard library only: ``turngate --help`` lists them where no extra is installed.
"""

from __future__ import annotations

_SUMMARIES = {
    "verify": "Check every property, on the model and on the code, and every known-bad design.",
    "explore": "Explore the model exhaustively within bounds.",
    "prove": "Prove every property, for any number of prompts, cancels, holds, moves and sessions.",
    "trace": "Check a recorded history: JSON lines in FILE, '-' for standard input.",
    "conform": "Check another dispatcher behind the port: TARGET is module:Class or path.py:Class.",
    "vectors": "Write test vectors to FILE, JSON lines; without it, or with '-', to standard output.",
    "schedules": "Execute small scenarios on the real dispatcher in every possible order.",
    "faults": "Inject every kind of fault at every point of small scenarios on the real dispatcher.",
    "diagrams": "Write the diagrams of the lifecycle, the session, the races and the known-bad designs.",
    "oracles": "Compare the explorer with SPIN and TLC, number by number.",
}

COMMANDS = {
    name: (summary, f"turngate_verify.cli.{name}:{name}", "verify") for name, summary in _SUMMARIES.items()
}
"""What each command does, where it is, and the extra that it needs."""
