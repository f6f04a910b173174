"""``python -m turngate``: the command line."""

from __future__ import annotations

from turngate.cli.entry import main

if __name__ == "__main__":
    main()
