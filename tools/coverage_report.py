"""Coverage with branches: runs the tests that count, and reports on each layer of the project.

Each layer must reach its floor, and so must each module with a floor of its own. What a missing program
leaves out is said and not judged: without PostgreSQL no test runs the engine of that name. The exit code is 1
when something is below its floor, or that of pytest when a test fails. `--quick` judges the dispatcher and
the retries of the client, with their own tests alone; `--again` reports on the data of the last run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import coverage
from coverage.exceptions import NoDataError

ROOT: Final = Path(__file__).resolve().parent.parent
COUNTED: Final = (
    *(f"tests/{folder}" for folder in ("impl", "durable", "server", "acp", "cli")),
    *(f"tests/verify/cli/test_{each}.py" for each in ("cli", "command", "terminal")),
)
"""The tests that count: those of the layers, and those of the command line by the commands that check."""
QUICK: Final = (
    "tests/impl",
    *(f"tests/server/test_client_{rules}.py" for rules in ("rules", "stream_rules", "text_rules")),
)
"""The tests by which the quick layers are judged."""


class Layer(NamedTuple):
    """Files that are reported on together; `floor` is the percentage that they must reach.

    A module in `modules` has a floor of its own and does not count for the layer's. Floors below 100 are a
    little below what was reached, for some branches are reached on some runs only:
    docs/explanation/verification.md says what is missing.
    """

    name: str
    files: list[str]
    floor: float = 100.0
    modules: Mapping[str, float] = MappingProxyType({})


LAYERS: Final = (
    Layer("the dispatcher", ["*/impl/turngate/*.py"]),
    Layer("client", ["*/turngate/client/*"], 99.0),
    Layer("server", ["*/turngate/server/*"], 98.0),
    Layer("ACP", ["*/turngate/acp/*"], 98.0),
    Layer("command line", ["*/turngate/cli/*"], 97.0),
    Layer(
        "ledgers",
        ["*/turngate/durable/*"],
        95.0,
        {
            "durable/_close": 100.0,
            "durable/_turns": 100.0,
            "durable/_sqlite_relay": 100.0,
            "durable/_sqlite_thread": 100.0,
            "durable/feed/_feed": 100.0,
        },
    ),
)
QUICK_LAYERS: Final = (
    LAYERS[0],
    Layer("when the client sends again", [f"*/client/{each}.py" for each in ("_calls", "_events", "_text")]),
)
NEEDS: Final = {
    "initdb": ("PostgreSQL", ("*/durable/_postgres*",)),
    "chromium": ("Chromium", ()),
    "tmux": ("tmux", ("*/cli/screen.py",)),
}
"""What each program is called, and the files that cannot be judged without it."""


def is_there(program: str) -> bool:
    """Return whether a program is installed."""
    return shutil.which(program) is not None or any(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))


def judged(name: str, files: list[str], floor: float, unjudged: list[str]) -> list[str]:
    """Report on some files; return what is wrong with them."""
    data = coverage.Coverage(data_file=str(ROOT / ".coverage"), config_file=str(ROOT / "pyproject.toml"))
    data.load()
    try:
        reached = data.report(include=files, omit=unjudged, show_missing=True, skip_covered=True)
    except NoDataError:  # all of them need a program that is missing
        return []
    return [f"{name}: {reached:.2f} % of {floor:g} %"] if reached < floor else []


def main(arguments: Sequence[str]) -> int:
    """Run the tests, report, and return the exit code."""
    is_quick = "--quick" in arguments
    if "--again" not in arguments:
        command = [sys.executable, "-m", "pytest", "--quiet", "--cov", "--cov-report=", "-n", "auto"]
        command += [
            "--dist",
            "worksteal",
            "-m",
            "not deep and not editors",
            *(QUICK if is_quick else COUNTED),
        ]
        if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
            return code
    missing = {name: files for program, (name, files) in NEEDS.items() if not is_there(program)}
    unjudged = [each for files in missing.values() for each in files]
    below = []
    for layer, of_layer, floor, modules in QUICK_LAYERS if is_quick else LAYERS:
        of_modules = {f"*/{module}.py": own for module, own in modules.items()}
        print(f"\n{layer}")
        below += judged(layer, of_layer, floor, [*unjudged, *of_modules])
        for file, own in of_modules.items():
            below += judged(file, [file], own, unjudged)
    for name, files in missing.items():
        print(f"not measured: what needs {name}, which is not installed: {', '.join(files) or 'tests alone'}")
    for each in below:
        print(f"below its floor: {each}")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
