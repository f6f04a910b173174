"""Count what keeps the modules of impl/turngate from standing alone, file by file.

    python tools/structure.py [--list]

depth    levels of inheritance beyond two among classes of this project, exceptions excepted
private  accesses to private attributes of what another module defines: not `self`, `cls` and `super()`, nor
         names that a class of the same module defines, nor the methods of a NamedTuple; `getattr` with a name
         counts, and so does a private name imported from another module
missing  `raise NotImplementedError` in a class
casts    a cast to or of a dispatcher, and a cast of None

tests/project/test_structure.py allows none of these.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "impl" / "turngate"
MEASURES = ("depth", "private", "missing", "casts")
AT_MOST = 2
NAMED_TUPLE = {"_replace", "_asdict", "_fields", "_field_defaults", "_make"}
ASK_BY_NAME = {"getattr", "setattr", "hasattr", "delattr"}
Counts = dict[str, dict[str, int]]


class Found(NamedTuple):
    """Something that is counted, as often as `times` says."""

    measure: str
    file: str
    line: int
    what: str
    times: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.measure}: {self.what}"


def found_in(package: Path = PACKAGE) -> list[Found]:
    """Return everything that is counted in a package."""
    trees = {
        path.relative_to(package).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(package.rglob("*.py"))
    }
    found = [*too_deep(trees, package.name)]
    for file, tree in trees.items():
        found += [*private_accesses(file, tree, package)]
        found += [*not_implemented(file, tree)]
        found += [*dispatcher_casts(file, tree)]
    return found


def counts(found: list[Found]) -> Counts:
    """Return the counts by measure and file."""
    sums = {measure: Counter[str]() for measure in MEASURES}
    for each in found:
        sums[each.measure][each.file] += each.times
    return {measure: dict(sorted(by_file.items())) for measure, by_file in sums.items()}


# Inheritance.


def too_deep(trees: dict[str, ast.Module], package: str) -> Iterator[Found]:
    """Yield the classes with more than two classes of this project above one another, themselves included."""
    bases: dict[str, list[str]] = {}
    places: dict[str, tuple[str, int]] = {}
    for file, tree in trees.items():
        module = module_of(file, package)
        names = names_in(tree, module)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases[f"{module}.{node.name}"] = [dotted(base, names) for base in node.bases]
                places[f"{module}.{node.name}"] = file, node.lineno

    def above(name: str) -> list[str]:
        """Return the longest row of classes of this project that ends here."""
        if name not in bases:
            return []
        rows = [above(canonical(base, bases)) for base in bases[name]]
        return [*max(rows, key=len, default=[]), name]

    def is_exception(name: str) -> bool:
        known = bases.get(name)
        if known is None:
            return name.endswith(("Exception", "Error"))
        return any(is_exception(canonical(base, bases)) for base in known)

    for name, (file, line) in places.items():
        row = above(name)
        if len(row) > AT_MOST and not is_exception(name):
            told = " > ".join(each.rpartition(".")[2] for each in row)
            yield Found("depth", file, line, told, len(row) - AT_MOST)


def module_of(file: str, package: str) -> str:
    parts = [package, *Path(file).with_suffix("").parts]
    return ".".join(part for part in parts if part != "__init__")


def canonical(name: str, known: dict[str, list[str]]) -> str:
    """Return the class that is meant by a name which a package hands on."""
    if name in known:
        return name
    owner, _, last = name.rpartition(".")
    same = [each for each in known if each.startswith(f"{owner}.") and each.endswith(f".{last}")]
    return same[0] if len(same) == 1 else name


def names_in(tree: ast.Module, module: str) -> dict[str, str]:
    """Return what the names at the top of a module mean, dotted."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names.update({each.asname or each.name: f"{node.module}.{each.name}" for each in node.names})
        elif isinstance(node, ast.Import):
            names.update({each.asname or each.name: each.name for each in node.names})
        elif isinstance(node, ast.ClassDef):
            names[node.name] = f"{module}.{node.name}"
    return names


def dotted(base: ast.expr, names: dict[str, str]) -> str:
    if isinstance(base, ast.Subscript):
        return dotted(base.value, names)
    first, *rest = ast.unparse(base).split(".")
    return ".".join([names.get(first, first), *rest])


# Private attributes.


def private_accesses(file: str, tree: ast.Module, package: Path = PACKAGE) -> Iterator[Found]:
    """Yield each access to a private attribute that no class of this module defines."""
    own = private_names(tree) | NAMED_TUPLE
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package.name:
            for each in node.names:
                if is_private(each.name) and not is_module(package, f"{node.module}.{each.name}"):
                    yield Found("private", file, node.lineno, f"from {node.module} import {each.name}")
        elif isinstance(node, ast.Attribute):
            if is_private(node.attr) and node.attr not in own and not is_self(node.value):
                yield Found("private", file, node.lineno, ast.unparse(node))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ASK_BY_NAME and len(node.args) > 1:
            owner, name = node.args[0], getattr(node.args[1], "value", None)
            if isinstance(name, str) and is_private(name) and name not in own and not is_self(owner):
                yield Found("private", file, node.lineno, ast.unparse(node))


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def is_module(package: Path, name: str) -> bool:
    """Return whether a dotted name is a module: `from turngate import _core` reads no attribute."""
    path = package.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def is_self(owner: ast.expr) -> bool:
    return ast.unparse(owner) in {"self", "cls", "super()"}


def private_names(tree: ast.Module) -> set[str]:
    """Return the private names that the classes of a module define: methods, attributes and slots."""
    names: set[str] = set()
    for owner in ast.walk(tree):
        if not isinstance(owner, ast.ClassDef):
            continue
        for line in owner.body:
            if isinstance(line, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(line.name)
            elif isinstance(line, ast.AnnAssign):
                names.add(ast.unparse(line.target))
            elif isinstance(line, ast.Assign):
                names.update(ast.unparse(target) for target in line.targets)
                if ast.unparse(line.targets[0]) == "__slots__":
                    names.update(ast.literal_eval(line.value))
        for node in ast.walk(owner):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
                names.add(node.attr)
    return {name for name in names if is_private(name)}


# What is not there, and what is not so.


def not_implemented(file: str, tree: ast.Module) -> Iterator[Found]:
    """Yield each `raise NotImplementedError` in a class."""
    for owner in ast.walk(tree):
        if isinstance(owner, ast.ClassDef):
            for node in ast.walk(owner):
                if isinstance(node, ast.Raise) and node.exc is not None:
                    raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
                    if ast.unparse(raised) == "NotImplementedError":
                        yield Found("missing", file, node.lineno, f"{owner.name} leaves it to a subclass")


def dispatcher_casts(file: str, tree: ast.Module) -> Iterator[Found]:
    """Yield each cast to a dispatcher, of a dispatcher, and of None."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"cast", "typing.cast"}:
            kind, value = (ast.unparse(each) for each in node.args)
            of = value.rpartition(".")[2].lower()
            if "Dispatcher" in kind or value == "None" or of.endswith("dispatcher"):
                yield Found("casts", file, node.lineno, ast.unparse(node))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="name every place")
    options = parser.parse_args()
    found = found_in()
    now = counts(found)
    for measure, by_file in now.items():
        in_files = ", ".join(f"{file} {count}" for file, count in Counter(by_file).most_common(5))
        more = f" and {len(by_file) - 5} more" if len(by_file) > 5 else ""
        print(f"{measure:8} {sum(by_file.values()):4}  {in_files}{more}")
    if options.list:
        print(*found, sep="\n")


if __name__ == "__main__":
    main()
