"""The shape of the project: who imports whom, and what is isolated where."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "model" / "turngate_model"
IMPL = ROOT / "impl" / "turngate"


def imports(path: Path) -> Iterator[str]:
    """Yield the top-level packages that a file imports, at any depth of its code."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


def importers(root: Path, package: str) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*.py") if package in set(imports(path))}


def test_the_dispatcher_and_the_model_do_not_import_each_other() -> None:
    assert importers(MODEL, "turngate") == set()
    assert {path.split("/")[0] for path in importers(IMPL, "turngate_model")} <= {"_cli", "_verify"}


def test_transitions_and_graphviz_are_each_behind_one_module() -> None:
    assert importers(MODEL, "transitions") == {"_machine.py"}
    assert importers(MODEL, "graphviz") == {"_dot.py"}
    assert importers(IMPL, "transitions") | importers(IMPL, "graphviz") == set()


def test_the_dispatcher_needs_nothing_but_the_standard_library() -> None:
    third_party = {"click", "rich", "hypothesis", "pytest", "transitions", "graphviz"}
    for path in IMPL.glob("*.py"):
        assert not third_party & set(imports(path)), path


def test_the_first_moment_of_the_command_line_is_short() -> None:
    command = ROOT / "impl" / "turngate_command" / "__init__.py"
    assert set(imports(command)) == {"__future__", "os", "signal", "sys", "traceback", "turngate"}


def test_both_packages_say_that_they_are_typed_and_their_roots_are_no_packages() -> None:
    assert (MODEL / "py.typed").exists()
    assert (IMPL / "py.typed").exists()
    assert not (MODEL.parent / "__init__.py").exists()
    assert not (IMPL.parent / "__init__.py").exists()


def test_every_test_file_has_a_name_of_its_own() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("*.py")]
    assert len(names) == len(set(names))
