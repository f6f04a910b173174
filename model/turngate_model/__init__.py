"""The formal side of Turngate, in the words of SPEC.md.

The lifecycle of a run, the abstract session (what must hold), the mechanism (how it comes to hold), recorded
histories, the properties, and the known-bad designs. `checker` explores them, `oracles` has others explore
them too, `pictures` draws what was found.
"""

from turngate_model.abstract_session import AbstractSession
from turngate_model.designs import DESIGNS, NOT_IN_DESIGNS, Design
from turngate_model.lifecycle import (
    TABLE,
    DeclaredState,
    Guard,
    Lifecycle,
    Row,
    Successor,
    Trigger,
    UndeclaredMove,
    successor,
)
from turngate_model.mechanism import Mechanism
from turngate_model.properties import Property, Violation

__all__ = [
    "DESIGNS",
    "NOT_IN_DESIGNS",
    "TABLE",
    "AbstractSession",
    "DeclaredState",
    "Design",
    "Guard",
    "Lifecycle",
    "Mechanism",
    "Property",
    "Row",
    "Successor",
    "Trigger",
    "UndeclaredMove",
    "Violation",
    "successor",
]
