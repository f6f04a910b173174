"""What the tests ask of the machine: programs that may be missing, and no speed at all."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
"""The checkout that the tests are part of."""


def insist_on(program: str) -> None:
    """Skip what needs a program that is missing, and say so; where CI is set it must be there."""
    if shutil.which(program) is None:
        miss(f"the program {program}")


def insist_on_package(package: str) -> None:
    """Do the same about a package of Python."""
    if importlib.util.find_spec(package) is None:
        miss(f"the package {package}")


def miss(what: str) -> None:
    """Skip for want of something, and say so; where CI is set, fail."""
    missing = f"NOT RUN: {what} is not installed"
    pytest.fail(missing, pytrace=False) if os.environ.get("CI") else pytest.skip(missing)


class StandingStill:
    """A clock, in the place of the module time, that goes on when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now
