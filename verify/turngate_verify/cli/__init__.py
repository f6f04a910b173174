"""The command line: the one place, besides the tests, that brings the two packages together."""

from ._main import run

__all__ = ["run"]
