"""What users name on the command line: module:name, path.py:name, a file with a token."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import click


def loaded(target: str, spelling: str) -> Any:
    """Return what a target names; `spelling` says how to spell one."""
    where, _, name = target.rpartition(":")
    if not where or not name:
        raise click.UsageError(f"{target!r} is no target; give {spelling}")
    is_file = where.endswith(".py")
    if is_file and not Path(where).is_file():
        raise click.UsageError(f"there is no file {where}; give {spelling}")
    if not is_file and where.startswith("."):
        raise click.UsageError(f"{where!r} is no module; give {spelling}")
    sys.path.insert(0, os.getcwd())
    try:
        module = _from_path(Path(where)) if is_file else importlib.import_module(where)
    except ModuleNotFoundError as missing:
        if not is_file and missing.name is not None and f"{where}.".startswith(f"{missing.name}."):
            said = f"{where} cannot be imported: there is no module {missing.name!r} here; give {spelling}"
            raise click.UsageError(said) from None
        raise click.UsageError(f"{where} cannot be imported: {_told(missing)}") from None
    except (Exception, SystemExit) as wrong:  # whatever a module does when it is imported
        raise click.UsageError(f"{where} cannot be imported: {_told(wrong)}") from None
    if not hasattr(module, name):
        close = difflib.get_close_matches(name, [each for each in vars(module) if not each.startswith("_")])
        hint = f"; did you mean {close[0]}?" if close else ""
        raise click.UsageError(f"{where} has no {name}{hint}")
    return getattr(module, name)


def _told(wrong: BaseException) -> str:
    """Return what an import has raised, and the line that raised it."""
    if isinstance(wrong, SyntaxError):
        return f"{type(wrong).__name__}: {wrong.msg} ({wrong.filename}, line {wrong.lineno})"
    said = f"{type(wrong).__name__}: {wrong}" if str(wrong) else type(wrong).__name__
    frames = [each for each in traceback.extract_tb(wrong.__traceback__) if not each.filename.startswith("<")]
    if len(frames) < 2 or frames[-1].filename in (__file__, importlib.__file__):
        return said  # no line of the module's
    return f"{said} ({frames[-1].filename}, line {frames[-1].lineno})"


def _from_path(path: Path) -> Any:
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def read_token(file: Path) -> str:
    """Return the token in a file."""
    try:
        token = file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise click.UsageError(
            f"{file} is not a text file; a token file has the token and nothing else"
        ) from None
    if not token:
        raise click.UsageError(f"there is no token in {file}; a token file has the token and nothing else")
    if not token.isprintable() or " " in token:
        raise click.UsageError(f"the token in {file} must be one word: clients send it in a header")
    return token
