"""How the modules of impl hold together: inheritance, private attributes, missing methods, casts.

None of these is allowed. `python tools/structure.py --list` names every place.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from structure import (
    MEASURES,
    dispatcher_casts,
    found_in,
    not_implemented,
    private_accesses,
)

FOUND = found_in()


@pytest.mark.parametrize("measure", MEASURES)
def test_nothing_is_found(measure: str) -> None:
    assert not [str(each) for each in FOUND if each.measure == measure]


def test_rows_of_classes_are_counted_over_modules_and_exceptions_are_not(tmp_path: Path) -> None:
    package = tmp_path / "some"
    (package / "room").mkdir(parents=True)
    (package / "__init__.py").write_text("from some._first import First\n")
    (package / "_first.py").write_text("class First: ...\nclass Second(First): ...\n")
    (package / "_third.py").write_text("from some import _first\nclass Third(_first.Second): ...\n")
    (package / "room" / "_fourth.py").write_text("from some._third import Third\nclass Fourth(Third): ...\n")
    (package / "_other.py").write_text("from some import First\nclass Other(First, dict[str, int]): ...\n")
    (package / "_errors.py").write_text(
        "class A(Exception): ...\nclass B(A): ...\nclass C(B): ...\nclass D(C, ValueError): ...\n"
    )
    found = [(each.file, each.what, each.times) for each in found_in(package)]
    assert found == [
        ("_third.py", "First > Second > Third", 1),
        ("room/_fourth.py", "First > Second > Third > Fourth", 2),
    ]


def private(source: str) -> list[str]:
    return [each.what for each in private_accesses("a.py", ast.parse(source))]


@pytest.mark.parametrize(
    "source",
    [
        "def f(run): return run._state",
        "class A:\n    def f(self): self._run._state = 1",
        "class A:\n    def f(self): del self.run._state",
        "from turngate._core import _rule",
        "getattr(run, '_state', None)",
        "setattr(run, '_state', None)",
    ],
)
def test_a_private_attribute_of_something_else_is_seen(source: str) -> None:
    assert len(private(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def f(self): return self._state, super()._state",
        "class A:\n    @classmethod\n    def f(cls): return cls._made",
        "class A:\n    def f(self, other): self._state = other._state",
        "class A:\n    __slots__ = ('_state',)\ndef f(a): return a._state",
        "class A:\n    _state: int\ndef f(a): return getattr(a, '_state')",
        "class A:\n    def _f(self): ...\ndef f(a): return a._f()",
        "def f(row): return row._replace(n=1), row._asdict(), row._fields, type(row)._make([1])",
        "def f(row): return row.__class__, row.public, getattr(row, 'public')",
        "from turngate import _core, Run",
    ],
)
def test_what_a_module_defines_itself_is_its_own(source: str) -> None:
    assert private(source) == []


def test_a_method_that_is_left_to_subclasses_is_seen() -> None:
    for raised, times in (("NotImplementedError", 1), ("NotImplementedError('f')", 1), ("ValueError", 0)):
        tree = ast.parse(f"class A:\n    def f(self): raise {raised}")
        assert len([*not_implemented("a.py", tree)]) == times


@pytest.mark.parametrize(
    "source",
    [
        "cast('Dispatcher', self)",
        "cast(Dispatcher, x)",
        "typing.cast('DurableDispatcher | None', x)",
        "cast('Run', None)",
        "cast('Shell', self._dispatcher)",
        "cast(Any, dispatcher)",
    ],
)
def test_a_cast_of_a_dispatcher_is_seen(source: str) -> None:
    assert len([*dispatcher_casts("a.py", ast.parse(source))]) == 1
    assert not [*dispatcher_casts("a.py", ast.parse("cast('Run', handle)"))]
