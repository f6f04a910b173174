"""How the drivers report that something is wrong.

They do not use `assert`: Python removes assertions when it optimises, and pytest rewrites them, so the
messages would differ.
"""

from __future__ import annotations

from turngate_model import Violation


class Broken(AssertionError):
    """A property does not hold."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(f"{violation.property}: {violation.what}")
        self.violation = violation


def expect(condition: object, otherwise: str) -> None:
    """Raise an AssertionError that says `otherwise` unless the condition is true."""
    if not condition:
        raise AssertionError(otherwise)
