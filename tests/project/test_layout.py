"""The shape of the project: who imports whom, without going round in circles, and what is isolated where."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from surroundings import ROOT

PACKAGES = {
    "turngate": ROOT / "impl" / "turngate",
    "turngate_model": ROOT / "model" / "turngate_model",
    "turngate_verify": ROOT / "verify" / "turngate_verify",
}
MAY_KNOW = {
    "turngate": {"turngate"},
    "turngate_model": {"turngate_model"},
    "turngate_verify": {"turngate", "turngate_model", "turngate_verify"},
}
"""Whose names a module may import: the entry of the longest prefix of its own name counts."""
NOT_BELOW = {
    "turngate_model": ("checker", "durable", "pictures", "oracles", "proof"),
    "turngate_model.checker": ("durable", "pictures", "oracles", "proof"),
    "turngate_model.durable": ("pictures", "oracles", "proof"),
    "turngate_model.pictures": ("durable", "oracles", "proof"),
    "turngate_model.oracles": ("durable", "pictures", "proof"),
    "turngate_model.proof": ("durable", "pictures", "oracles"),
    "turngate_verify.world": ("conform", "vectors", "drivers", "trace", "report", "cli"),
    "turngate_verify.conform": ("acp", "vectors", "drivers", "trace", "report", "cli"),
    "turngate_verify.acp": ("vectors", "drivers", "trace", "report", "cli"),
    "turngate_verify.intervals": ("world", "conform", "vectors", "drivers", "trace", "report", "cli"),
    "turngate_verify.vectors": ("world", "drivers", "trace", "report", "cli"),
    "turngate_verify.drivers": ("conform", "vectors", "report", "cli"),
    "turngate_verify.trace": ("world", "conform", "drivers", "monitor", "report", "cli"),
    "turngate_verify.trace_lines": ("world", "conform", "drivers", "trace", "monitor", "report", "cli"),
    "turngate_verify.monitor": ("world", "conform", "intervals", "vectors", "drivers", "report", "cli"),
    "turngate_verify.report": ("world", "cli"),
}
"""The rooms of its own package that a room must not look into."""


def modules() -> dict[str, Path]:
    """Return every module of the three packages by its dotted name."""
    found = {}
    for name, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join((name, *(part for part in parts if part != "__init__")))] = path
    return found


MODULES = modules()


def nodes(tree: ast.AST, *, for_types: bool) -> Iterator[ast.AST]:
    """Yield the nodes of a file, those under ``if TYPE_CHECKING`` only for types."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not for_types:
            continue
        yield node
        yield from nodes(node, for_types=for_types)


def imports(path: Path, *, for_types: bool = True) -> Iterator[str]:
    """Yield the dotted names that a file imports: modules, and names out of modules."""
    for node in nodes(ast.parse(path.read_text(encoding="utf-8")), for_types=for_types):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_modules(module: str, *, for_types: bool = True) -> set[str]:
    """Return the modules of ours that a module imports, packages that are imported on the way not counted."""
    found = set()
    for name in imports(MODULES[module], for_types=for_types):
        known = name if name in MODULES else name.rpartition(".")[0]
        if known in MODULES and known != module:
            found.add(known)
    return found


def is_within(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


def rule_for(module: str, rules: dict[str, set[str]]) -> set[str]:
    return rules[max((prefix for prefix in rules if is_within(module, prefix)), key=len)]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_knows_only_whom_it_may_know(module: str) -> None:
    allowed = rule_for(module, MAY_KNOW)
    for known in imported_modules(module):
        assert any(is_within(known, package) for package in allowed), f"{module} imports {known}"


@pytest.mark.parametrize("room", NOT_BELOW)
def test_a_room_does_not_look_into_the_rooms_above_it(room: str) -> None:
    package = room.split(".", maxsplit=1)[0]
    forbidden = [f"{package}.{other}" for other in NOT_BELOW[room]]
    if room == package:
        insiders = [each for each, path in MODULES.items() if path.parent == PACKAGES[package]]
    else:
        insiders = [each for each in MODULES if is_within(each, room)]
    assert insiders
    for module in insiders:
        looked_into = [
            known
            for known in imported_modules(module, for_types=False)
            if any(is_within(known, other) for other in forbidden)
        ]
        assert not looked_into, f"{module} imports {looked_into}"


def test_what_another_package_imports_has_no_underscore() -> None:
    """The drivers alone look inside the dispatcher: to see what it holds, and to spoil it."""
    for module, path in MODULES.items():
        package = module.split(".")[0]
        for name in imports(path):
            owner, *inside = name.split(".")
            if owner in PACKAGES and owner != package and any(part.startswith("_") for part in inside):
                assert owner == "turngate", f"{module} imports {name}"
                assert module.split(".")[1] in {"world", "drivers"}, f"{module} imports {name}"


def test_the_conformance_kit_does_not_import_the_dispatcher() -> None:
    """A team that checks its own dispatcher does not need ours."""
    known: set[str] = set()
    to_do = {module for module in MODULES if is_within(module, "turngate_verify.conform")}
    while to_do:
        known |= to_do
        to_do = {each for module in to_do for each in imported_modules(module, for_types=False)} - known
    assert [module for module in sorted(known) if is_within(module, "turngate")] == []


def test_no_import_leads_back_to_where_it_came_from() -> None:
    above: list[str] = []
    done: set[str] = set()

    def visit(module: str) -> None:
        assert module not in above, f"{' imports '.join([*above[above.index(module) :], module])}"
        if module in done:
            return
        above.append(module)
        for known in sorted(imported_modules(module, for_types=False)):
            # A module that imports from its own package has been imported by that package's root.
            if not is_within(module, known):
                visit(known)
        above.pop()
        done.add(module)

    for module in MODULES:
        visit(module)


def importers(package: str) -> set[str]:
    return {
        name for name, path in MODULES.items() if package in {each.split(".")[0] for each in imports(path)}
    }


def test_transitions_and_graphviz_are_each_behind_one_module() -> None:
    assert importers("transitions") == {"turngate_model.lifecycle"}
    assert importers("graphviz") == {"turngate_model.pictures.dot"}


def test_the_template_engine_is_behind_one_module() -> None:
    assert importers("jinja2") == importers("markupsafe") == {"turngate_verify.report.rendering"}


def test_a_solver_is_imported_when_it_is_first_asked_for() -> None:
    assert importers("z3") == importers("cvc5") == set()


def test_the_dispatcher_needs_nothing_but_the_standard_library() -> None:
    for module in MODULES:
        if is_within(module, "turngate"):
            needed = {name.split(".")[0] for name in imports(MODULES[module])}
            extra = {"asyncpg"} if module == "turngate.durable._postgres_connections" else set()
            if is_within(module, "turngate.server"):
                extra = {"msgspec", "starlette", "uvicorn"}
            elif is_within(module, "turngate.client"):
                extra = {"httpx2"}
            elif is_within(module, "turngate.cli"):
                extra = {"click", "prompt_toolkit", "rich", "wcwidth"}
            assert needed <= sys.stdlib_module_names | {"turngate"} | extra, module


def test_asyncpg_is_behind_one_module_which_is_imported_when_it_is_needed() -> None:
    assert importers("asyncpg") == {"turngate.durable._postgres_connections"}
    knows = [
        name
        for name in MODULES
        if "turngate.durable._postgres_connections" in imported_modules(name, for_types=False)
    ]
    assert knows == ["turngate.durable._postgres"]


KNOW_LEDGERS = ("turngate.durable", "turngate.server", "turngate.acp", "turngate.cli")
"""What may know the durable dispatcher: itself, and what serves either."""


def test_the_dispatcher_in_memory_does_not_know_the_durable_one() -> None:
    for module in MODULES:
        if is_within(module, "turngate") and not any(is_within(module, each) for each in KNOW_LEDGERS):
            assert not any(is_within(known, "turngate.durable") for known in imported_modules(module)), module


def test_the_model_runs_other_programs_for_its_oracles_only() -> None:
    users = {
        name for name in importers("subprocess") | importers("asyncio") if is_within(name, "turngate_model")
    }
    assert users == {"turngate_model.oracles.comparison"}


def test_the_first_moment_of_the_command_line_is_short() -> None:
    command = {name.split(".")[0] for name in imports(MODULES["turngate.cli.entry"])}
    assert command == {"__future__", "logging", "os", "signal", "sys", "traceback", "turngate", "typing"}
    assert [*imports(MODULES["turngate.cli"])] == []
    assert [*imports(MODULES["turngate.cli.endings"])] == ["__future__.annotations"]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_that_it_is_typed_and_its_root_is_no_package(package: str) -> None:
    folder = PACKAGES[package]
    assert (folder / "py.typed").exists()
    assert not (folder.parent / "__init__.py").exists()
    assert importlib.util.find_spec(package) is not None


def test_every_test_file_has_a_name_of_its_own() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("*.py")]
    assert len(names) == len(set(names))
