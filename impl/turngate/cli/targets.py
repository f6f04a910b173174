"""What users name on the command line: module:name, path.py:name, a ledger, a file with a token."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from turngate import Dispatcher, TurngateError
from turngate.cli.endings import BadInput

if TYPE_CHECKING:
    from turngate.durable import Ledger

_POSTGRES = ("postgres://", "postgresql://")
"""What the address of a PostgreSQL database begins with."""


def loaded(target: str, spelling: str) -> Any:
    """Return what a target names; `spelling` says how to spell one."""
    where, _, name = target.rpartition(":")
    if not where or not name:
        raise BadInput(f"{target!r} is not a target; give {spelling}")
    is_file = where.endswith(".py")
    if is_file and not Path(where).is_file():
        raise BadInput(f"there is no file {where}; give {spelling}")
    if not is_file and where.startswith("."):
        raise BadInput(f"{where!r} is not a module; give {spelling}")
    sys.path.insert(0, os.getcwd())
    try:
        module = _from_path(Path(where)) if is_file else importlib.import_module(where)
    except ModuleNotFoundError as missing:
        if not is_file and missing.name is not None and f"{where}.".startswith(f"{missing.name}."):
            said = f"{where} cannot be imported: there is no module {missing.name!r} here; give {spelling}"
            raise BadInput(said) from None
        raise BadInput(f"{where} cannot be imported: {_told(missing)}") from None
    except (Exception, SystemExit) as wrong:  # whatever a module does when it is imported
        raise BadInput(f"{where} cannot be imported: {_told(wrong)}") from None
    if not hasattr(module, name):
        close = difflib.get_close_matches(name, [each for each in vars(module) if not each.startswith("_")])
        hint = f"; did you mean {close[0]}?" if close else ""
        raise BadInput(f"{where} has no {name}{hint}")
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
        raise BadInput(f"{file} is not a text file; a token file has the token and nothing else") from None
    if not token:
        raise BadInput(f"{file} has no token; a token file has the token and nothing else")
    if not token.isprintable() or " " in token:
        raise BadInput(f"the token in {file} must be one word: clients send it in a header")
    return token


def load_runner(target: str) -> Any:
    """Return the runner that a target names."""
    runner = loaded(target, "module:runner or path.py:runner")
    try:
        Dispatcher(runner)
    except TypeError as wrong:
        raise BadInput(f"{target} is not a runner: {wrong}") from None
    if _is_plain(runner):
        raise BadInput(
            f"{target} is not a runner: it must be an async function or async generator that takes a turn"
        )
    return runner


def _is_plain(runner: Any) -> bool:
    """Return whether a runner is a plain function, so that what it returns could hardly be awaited."""
    function = inspect.unwrap(runner)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    if not inspect.isroutine(function) and not isinstance(function, type):
        function = type(function).__call__
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    return inspect.isfunction(function) and not is_async


def ledger_at(place: str) -> Ledger:
    """Return the ledger in a file, or at the address of a database."""
    _check_ledger(place)
    from turngate.durable import PostgresLedger, SqliteLedger  # noqa: PLC0415 - only now

    try:
        return (PostgresLedger if is_at_an_address(place) else SqliteLedger)(place)
    except (ModuleNotFoundError, TurngateError, ValueError) as wrong:
        raise BadInput(str(wrong)) from None


def is_at_an_address(place: str) -> bool:
    """Return whether a ledger is in a database, not in a file."""
    return place.startswith(_POSTGRES)


def _check_ledger(ledger: str) -> None:
    """Refuse what names neither a file nor a database, without repeating a password."""
    right = "give the path of a file, or postgresql://user@host:5432/database"
    scheme, separator, _ = ledger.partition("://")
    if not ledger.strip():
        raise BadInput(f"--ledger is empty; {right}")
    if separator and not ledger.startswith(_POSTGRES):
        raise BadInput(f"--ledger cannot be at a {scheme} address; {right}")
    if not separator:
        return
    try:
        address = urlsplit(ledger)
        if "," not in address.netloc:  # of several hosts, each has a port
            _ = address.port
    except ValueError as wrong:
        raise BadInput(f"--ledger is not an address of PostgreSQL: {wrong}; {right}") from None
