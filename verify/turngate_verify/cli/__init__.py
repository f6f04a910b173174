"""The command line: the commands, one module each. Only this package imports all the others."""

from turngate.cli.main import run

__all__ = ["run"]
