"""Coverage with branches: runs the tests that count, and reports on each layer of the project.

A layer with a floor must reach it. What a missing program leaves out is said and not judged: without
PostgreSQL no test runs the engine of that name. The exit code is 1 when a layer is below its floor, or
that of pytest when a test fails. `--ledgers` measures the ledgers, too, which have no floor yet;
`--floors` runs the tests of the layers with a floor and reports on these alone; `--again` reports on the
data of the last run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import coverage

ROOT: Final = Path(__file__).resolve().parent.parent
MARKED: Final = "dispatcher or server or acp or command"
"""The tests that count, by their markers."""


FLOORED: Final = (
    "tests/impl",
    *(f"tests/server/test_client_{rules}.py" for rules in ("rules", "stream_rules", "text_rules")),
)
"""The tests by which the layers with a floor are judged."""


class Layer(NamedTuple):
    """Files that are reported on together; `floor` is the percentage that they must reach, if any."""

    name: str
    files: list[str]
    floor: float | None = 100.0


LAYERS: Final = (
    Layer("the dispatcher", ["*/impl/turngate/*.py"]),
    Layer("when the client sends again", [f"*/client/{each}.py" for each in ("_calls", "_events", "_text")]),
    Layer(
        "server, client, ACP, command line",
        [f"*/turngate/{each}/**" for each in ("server", "client", "acp", "cli")],
        floor=None,
    ),
    Layer("ledgers", ["*/turngate/durable/**"], floor=None),
)
"""The last one is reported on where its tests were run."""
NEEDS: Final = {
    "initdb": ("PostgreSQL", ("*/durable/_postgres*",)),
    "chromium": ("Chromium", ()),
    "tmux": ("tmux", ("*/cli/screen.py",)),
}
"""What each program is called, and the files that cannot be judged without it."""


def is_there(program: str) -> bool:
    """Return whether a program is installed."""
    return shutil.which(program) is not None or any(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))


def main(arguments: Sequence[str]) -> int:
    """Run the tests, report, and return the exit code."""
    if "--again" not in arguments:
        marked = f"{MARKED} or ledger" if "--ledgers" in arguments else MARKED
        command = [sys.executable, "-m", "pytest", "--quiet", "--cov", "--cov-report=", "-n", "auto"]
        command += ["--dist", "worksteal", *(FLOORED if "--floors" in arguments else ("-m", marked))]
        if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
            return code
    missing = {name: files for program, (name, files) in NEEDS.items() if not is_there(program)}
    unjudged = [each for files in missing.values() for each in files]
    below = []
    for layer in LAYERS if "--ledgers" in arguments else LAYERS[:-1]:
        if layer.floor is None and "--floors" in arguments:
            continue
        print(f"\n{layer.name}: {'no floor yet' if layer.floor is None else f'{layer.floor:g} % or more'}")
        data = coverage.Coverage(data_file=str(ROOT / ".coverage"), config_file=str(ROOT / "pyproject.toml"))
        data.load()
        reached = data.report(include=layer.files, omit=unjudged, show_missing=True, skip_covered=True)
        if layer.floor is not None and reached < layer.floor:
            below.append(f"{layer.name}: {reached:.2f} % of {layer.floor:g} %")
    for name, files in missing.items():
        print(f"not measured: what needs {name}, which is not installed: {', '.join(files) or 'tests alone'}")
    for each in below:
        print(f"below its floor: {each}")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
