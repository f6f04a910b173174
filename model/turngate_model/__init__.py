"""The formal side of Turngate: the machine, the abstract session, the mechanism, and what checks them."""

from ._counterexample import Counterexample, Step
from ._designs import DESIGNS, NOT_IN_DESIGNS, Design
from ._diagrams import Generated, generate, lifecycle_svg, refute, sequence_svg, stale, write
from ._explorer import HEART, Bounds, Exploration, Explorer, Limits, Progress
from ._how import How
from ._machine import TABLE, Guard, Lifecycle, Row, State, Successor, Trigger, UndeclaredMove, successor
from ._oracles import Comparison, OracleFailed, OracleMissing, Oracles
from ._properties import Property, Violation
from ._trace import NEVER_SHOWN, BadRecording, Checked, check
from ._what import AbstractSession

__all__ = [
    "DESIGNS",
    "HEART",
    "NEVER_SHOWN",
    "NOT_IN_DESIGNS",
    "TABLE",
    "AbstractSession",
    "BadRecording",
    "Bounds",
    "Checked",
    "Comparison",
    "Counterexample",
    "Design",
    "Exploration",
    "Explorer",
    "Generated",
    "Guard",
    "How",
    "Lifecycle",
    "Limits",
    "OracleFailed",
    "OracleMissing",
    "Oracles",
    "Progress",
    "Property",
    "Row",
    "State",
    "Step",
    "Successor",
    "Trigger",
    "UndeclaredMove",
    "Violation",
    "check",
    "generate",
    "lifecycle_svg",
    "refute",
    "sequence_svg",
    "stale",
    "successor",
    "write",
]
