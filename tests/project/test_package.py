"""What surrounds the package: Pythons, extra, hooks, workflow and pages agree with each other."""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib

import pytest

import matrix
import turngate
from surroundings import ROOT


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


PYPROJECT = tomllib.loads(read("pyproject.toml"))
PROJECT = PYPROJECT["project"]
WORKFLOW = read(".github/workflows/ci.yml")
PAGES = (
    *("README.md", "SPEC.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
)


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_the_pythons_that_are_claimed_are_those_that_are_tested() -> None:
    claimed = matrix.claimed()
    minors = [number(version)[1] for version in claimed]
    assert minors == [*range(minors[0], minors[-1] + 1)]
    assert PROJECT["requires-python"] == f">={claimed[0]}"
    (in_workflow,) = re.findall(r"^ +python-version: (\[.*\])$", WORKFLOW, re.MULTILINE)
    assert json.loads(in_workflow) == claimed
    assert min(map(number, matrix.NOT_YET)) > number(claimed[-1])


def test_the_tools_look_for_what_the_oldest_python_has() -> None:
    oldest = matrix.claimed()[0]
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
    assert PYPROJECT["tool"]["pyright"]["pythonVersion"] == oldest
    assert f"sys.version_info < {number(oldest)}" in read("Makefile")
    for page in ("README.md", "CONTRIBUTING.md", "Makefile"):
        assert f"Python {oldest} or newer" in read(page)


def test_the_pages_name_the_pythons_that_are_claimed() -> None:
    *some, last = matrix.claimed()
    assert f"Python {', '.join(some)} or {last}" in read("CHANGELOG.md")


def test_the_workflow_runs_what_is_run_everywhere() -> None:
    assert re.findall(r"^ +run: (\S.*)$", WORKFLOW, re.MULTILINE) == ["|", ".ci/run"]
    (packages,) = re.findall(r"^ORACLE_PACKAGES := (.*)$", read("Makefile"), re.MULTILINE)
    (installed,) = re.findall(r"apt-get install -y (.*)$", WORKFLOW, re.MULTILINE)
    assert {*packages.split(), "graphviz", "nodejs"} == {*installed.split()}


def test_the_hooks_are_what_make_setup_installs() -> None:
    entries = re.findall(r"^ +entry: (.*)$", read(".pre-commit-config.yaml"), re.MULTILINE)
    lint = read("Makefile").replace("$(BIN)", ".venv/bin")
    assert len(entries) == 4
    for entry in entries:
        assert " ".join(entry.split()[:2]) in lint, entry


def test_the_extras_are_what_the_packages_import() -> None:
    imported = set()
    for package in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    imported |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    imported.add(str(node.module).split(".")[0])
    ours = {"turngate", "turngate_model", "turngate_verify"}
    extras = {
        re.split(r"[<>=]", each)[0] for extra in PROJECT["optional-dependencies"].values() for each in extra
    }
    only_if_it_is_there = {"opentelemetry", "httpcore2"}  # httpx2 brings the latter along
    assert imported - ours - sys.stdlib_module_names - only_if_it_is_there == extras
    assert PROJECT["dependencies"] == []


def test_the_version_is_one() -> None:
    assert PROJECT["version"] == turngate.__version__


def heading_anchors(page: str) -> set[str]:
    """Return what a link after # may name: the headings, as the usual renderers spell them."""
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", read(name)):
        path, _, anchor = link.partition("#")
        if link.startswith("https://"):
            continue
        target = (ROOT / name).parent / path if path else ROOT / name
        assert target.exists(), link
        if anchor and not anchor.startswith(
            "turngate."
        ):  # the names of the reference, which make docs looks for
            assert anchor in heading_anchors(target.read_text(encoding="utf-8")), link


def test_what_is_still_to_be_filled_in_is_said_in_one_place() -> None:
    assert "## Before the first release" in read("CONTRIBUTING.md")
    assert "before-the-first-release" in read("SECURITY.md")
    # No address is made up: pages link to the tools and standards that they name, and to nothing else.
    known = ("https://semver.org", "https://pre-commit.com", "http://127.0.0.1")
    for page in PAGES:
        for address in re.findall(r"https?://[^\s)>`]+", read(page)):
            assert address.startswith(known), (page, address)
