"""``turngate`` and ``python -m turngate``: the command line.

The dispatcher needs nothing but the standard library; the commands need the
extra ``verify``, and say so when it is missing.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        from ._cli import run  # noqa: PLC0415 - what it needs may not be installed
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("turngate"):
            raise
        sys.stderr.write(
            f"turngate: the commands need the package {missing.name}; install it with: "
            "pip install 'turngate[verify]'\n"
        )
        sys.exit(2)
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
