"""Mutants in a process that has everything loaded: changed code takes the place of the code that is there.

For `tools/mutants.py`. The tests of a layer are collected once. For each mutant the process forks, gives the
live functions the changed code and defaults, sets the changed constants wherever they were imported, and runs
the tests that are asked. What that does not bring about (a decorator, a base class, what a module computes
when it is imported) is for a process that imports the mutant.
"""

from __future__ import annotations

import ast
import functools
import gc
import importlib
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, Final

import pytest

PLAIN: Final = (int, float, str, bytes, bool, type(None))
"""What a constant may consist of to be replaced while its module is loaded."""


@functools.cache
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def is_replaceable(source: str, line: int) -> bool:
    """Return whether a change of that line shows in functions, defaults or plain constants alone."""
    body = _parsed(source).body
    while True:
        around = [each for each in body if each.lineno <= line <= (each.end_lineno or 0)]
        if not around:
            return False  # a decorator, or nothing that is carried out
        match around[0]:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return True
            case ast.ClassDef(bases=bases, body=inner, decorator_list=decorators):
                made = decorators or any(ast.unparse(each) in {"NamedTuple", "Enum"} for each in bases)
                body = [each for each in inner if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
                body += [] if made else [each for each in inner if _is_constant(each)]
            case each:
                return _is_constant(each)


def _is_constant(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return False
    return not any(isinstance(each, ast.Call) for each in ast.walk(statement.value))


def functions_in(names: Mapping[str, Any], file: str, seen: set[int]) -> Iterator[FunctionType]:
    """Yield the functions of a module that its names lead to."""
    for value in [*names.values()]:
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield from _functions_of(value, file, seen)


def _functions_of(value: Any, file: str, seen: set[int]) -> Iterator[FunctionType]:
    if isinstance(value, FunctionType):
        if value.__code__.co_filename == file:
            yield value
        inner = [getattr(value, "__wrapped__", None)]
    elif isinstance(value, property):
        inner = [value.fget, value.fset]
    elif isinstance(value, functools.cached_property | functools.partial):
        inner = [value.func]
    elif isinstance(value, staticmethod | classmethod):
        inner = [value.__func__]
    elif isinstance(value, type):
        yield from functions_in(vars(value), file, seen)
        return
    else:
        inner = [getattr(value, "__wrapped__", None)]
    for each in inner:
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield from _functions_of(each, file, seen)


def put_in_place(name: str, source: str) -> None:
    """Give the functions and constants of a loaded module those of the changed source."""
    live = sys.modules[name]
    fresh = ModuleType(name)
    file = str(live.__file__)
    fresh.__dict__.update(__file__=file, __package__=live.__package__)
    exec(compile(source, file, "exec"), fresh.__dict__)
    if {name for name in vars(live) if not name.startswith("__")} - vars(fresh).keys():
        raise ValueError("a name is gone, and others may have imported it")
    replacements = {_key(each): each for each in functions_in(vars(fresh), file, set())}
    for function in _live_functions(file):
        new = replacements.get(_key(function))
        if new is not None:
            function.__code__ = new.__code__
            if _is_plain(new.__defaults__) or function.__defaults__ is None:
                function.__defaults__ = new.__defaults__
            if _is_plain(new.__kwdefaults__):
                function.__kwdefaults__ = new.__kwdefaults__
    _set_constants(live, fresh)


def _key(function: FunctionType) -> tuple[str, int]:
    return function.__qualname__, function.__code__.co_firstlineno


def _live_functions(file: str) -> list[FunctionType]:
    """Return every function there is that was made in the file."""
    gc.unfreeze()
    found = [
        each for each in gc.get_objects() if type(each) is FunctionType and each.__code__.co_filename == file
    ]
    gc.freeze()
    return found


def _is_plain(value: Any) -> bool:
    match value:
        case tuple() | list() | set() | frozenset():
            return all(map(_is_plain, value))
        case dict():
            return all(_is_plain(each) for pair in value.items() for each in pair)
    return type(value) in PLAIN


def _set_constants(live: ModuleType, fresh: ModuleType) -> None:
    loaded = [each for name, each in [*sys.modules.items()] if name.partition(".")[0].startswith("turngate")]
    for name, value in [*vars(fresh).items()]:
        old = vars(live).get(name)
        if name.startswith("__") or not _is_plain(value):
            if isinstance(value, type) and isinstance(old, type) and value is not old:
                _set_attributes(old, value)
            continue
        if (type(old), old) != (type(value), value):
            for module in loaded:
                if vars(module).get(name) is old:
                    setattr(module, name, value)


def _set_attributes(old: type, new: type) -> None:
    for name, value in [*vars(new).items()]:
        plain = not name.startswith("__") and _is_plain(value)
        if plain and name in vars(old) and vars(old)[name] != value:
            setattr(old, name, value)


class Warm:
    """A plug-in of pytest: collects the tests, and calls what uses them instead of running them."""

    def __init__(self, work: Callable[[Warm], None]) -> None:
        self._work = work
        self._items: dict[str, pytest.Item] = {}
        self._failed: list[pytest.TestReport] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Do the work, and run no test here."""
        self._items = {item.nodeid: item for item in session.items}
        needed = [item for item in session.items if item.get_closest_marker("needs")]
        if any("postgres" in item.nodeid for item in needed):
            importlib.import_module("postgres").cluster()  # once, and not in every fork
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # the same
        gc.collect()
        gc.freeze()
        self._work(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember what failed."""
        if report.failed:
            self._failed.append(report)

    def first_failure(self, tests: list[str], plugin: object) -> str | None:
        """Run the tests in this process up to the first that fails; return what it says."""
        items = [self._items[test] for test in tests]
        items[0].config.pluginmanager.register(plugin)
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                return f"{item.nodeid}\n{self._failed[0].longreprtext}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return None
