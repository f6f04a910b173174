"""The origin of a page: commit and versions, so that it can be made again."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import tomllib
from pathlib import Path

import turngate_model

_PACKAGES = ("turngate", "hypothesis", "transitions", "graphviz", "z3-solver", "cvc5")


def provenance() -> dict[str, str]:
    """Return what made a page: the commit if it was a checkout, the versions, the platform."""
    return {
        "commit": commit(own_checkout()),
        "versions": ", ".join(versions()),
        "platform": platform.platform(),
    }


def versions() -> list[str]:
    """Return the versions of Python and of the packages whose work the verdicts rest on."""
    found = [f"Python {platform.python_version()}"]
    for package in _PACKAGES:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit(checkout: Path | None) -> str:
    """Return the commit of a checkout, and whether anything in it has been changed since."""
    if checkout is None:
        return "none: Turngate is installed, not checked out"
    try:
        head = _git(checkout, "rev-parse", "HEAD")
        changed = _git(checkout, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return "unknown: git does not say"
    return f"{head}, with changes" if changed else head


def _git(checkout: Path, *arguments: str) -> str:
    command = ["git", "-C", str(checkout), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)  # noqa: S603 - fixed words
    return done.stdout.strip()


def own_checkout() -> Path | None:
    """Return the checkout of Turngate that this code is imported from; None if it is installed.

    The current folder does not count: a folder called diagrams there may belong to another project.
    """
    model = Path(turngate_model.__file__).resolve()
    root = model.parents[2]
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        is_ours = project["project"]["name"] == "turngate"
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return root if is_ours and model == root / "model" / "turngate_model" / "__init__.py" else None
