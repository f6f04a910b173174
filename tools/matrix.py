"""Run the tests of the dispatcher and of its drivers on every other supported Python there is: `make matrix`.

On ledgers too, but for PostgreSQL, where `make test` is enough.
Each has a virtual environment of its own, .venv-3.12 and so on. A Python that cannot be found here is named.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = ROOT / "pyproject.toml"
NOT_YET = ("3.14",)
"""Tried where they are found, though the project does not claim them yet."""
SELECTED = "(dispatcher or driver or (ledger and not needs)) and not deep"
FOLDERS = ("tests/impl", "tests/durable", "tests/verify/drivers")
"""Nothing else is collected: the rest needs packages that are not installed here."""


def claimed() -> list[str]:
    """Return the versions that the project says it supports."""
    classifiers = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["classifiers"]
    return re.findall(r"Python :: (3\.\d+)$", "\n".join(classifiers), re.MULTILINE)


def candidates(version: str) -> Iterator[Path]:
    """Yield where a Python may be: on the PATH, then where pyenv and uv put them, the newest first."""
    if found := shutil.which(f"python{version}"):
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"), reverse=True)
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", "~/.local/share/uv/python")).expanduser()
    yield from sorted(uv.glob(f"cpython-{version}.*/bin/python{version}"), reverse=True)


def python(version: str) -> Path | None:
    """Return a Python of that version that runs: a shim of pyenv may be there and have nothing behind it."""
    says = "import sys; print('%d.%d' % sys.version_info[:2])"
    for path in candidates(version):
        done = subprocess.run([path, "-c", says], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:
            return path
    return None


def set_up(version: str, interpreter: Path) -> Path:
    """Return the Python of the virtual environment for that version, made anew if the project has changed."""
    folder = ROOT / f".venv-{version}"
    ready, made = folder / ".ready", folder / "bin" / "python"
    if not ready.exists() or ready.stat().st_mtime < PYPROJECT.stat().st_mtime:
        pip = [str(made), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([interpreter, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([*pip, "--upgrade", "pip>=25.1"], check=True)
        subprocess.run(
            [*pip, "--editable", ".[verify,postgres]", "--group", "conform", "--group", "stacks"],
            check=True,
            cwd=ROOT,
        )
        ready.touch()
    return made


def main() -> int:
    """Test on each, print a line for each in the end; return 1 if something failed on one."""
    mine = "{}.{}".format(*sys.version_info)
    came_of: dict[str, str] = {mine: "this one: make test"}
    for version in [each for each in (*claimed(), *NOT_YET) if each != mine]:
        interpreter = python(version)
        if interpreter is None:
            came_of[version] = "NOT RUN: there is no such Python here"
            continue
        print(f"Python {version}", flush=True)
        tests = ["-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal", "-m", SELECTED, *FOLDERS]
        done = subprocess.run([set_up(version, interpreter), *tests], check=False, cwd=ROOT)
        came_of[version] = "FAILED" if done.returncode else "passed"
    for version, what in sorted(came_of.items(), key=lambda each: tuple(map(int, each[0].split(".")))):
        print(f"Python {version:5} {what}")
    return 1 if "FAILED" in came_of.values() else 0


if __name__ == "__main__":
    sys.exit(main())
