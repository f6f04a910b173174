"""The command line: the one place, besides the tests, that brings the two packages together."""

from turngate_verify.cli.main import run

__all__ = ["run"]
