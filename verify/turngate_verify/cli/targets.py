"""What people name on the command line and have written themselves: module:name, or path.py:name."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import click


def loaded(target: str, spelling: str) -> Any:
    """Return what a target names; `spelling` says how one is to be spelled."""
    where, _, name = target.rpartition(":")
    if not where or not name:
        raise click.UsageError(f"{target!r} is no target; give {spelling}")
    if where.endswith(".py") and not Path(where).is_file():
        raise click.UsageError(f"there is no file {where}")
    sys.path.insert(0, os.getcwd())
    try:
        module = _from_path(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except (Exception, SystemExit) as wrong:  # whatever a module does when it is imported
        raise click.UsageError(f"{where} cannot be imported: {wrong!r}") from None
    named = getattr(module, name, None)
    if named is None:
        raise click.UsageError(f"{where} has no {name}")
    return named


def _from_path(path: Path) -> Any:
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
