"""ARCHITECTURE.md: what it names is there, and what is there is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from surroundings import ROOT

PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
PACKAGES = ("impl/turngate", "model/turngate_model", "verify/turngate_verify")
QUOTED = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w./-]+(/|\.(py|md))")
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
STEP = re.compile(r"^\d+\. .+\n(?:   .+\n)*", re.MULTILINE)


def paths(text: str) -> list[Path]:
    """Return the files and folders that a text names; one without a folder is beside the one before it."""
    found: list[Path] = []
    for quoted in QUOTED.findall(text):
        if PATH.fullmatch(quoted):
            beside = found[-1].parent if found and "/" not in quoted else ROOT
            found.append(beside / quoted if (beside / quoted).exists() else ROOT / quoted)
    return found


def names(text: str) -> list[str]:
    """Return the functions and classes that a text names, methods without their class."""
    quoted = [each for each in QUOTED.findall(text) if NAME.fullmatch(each) and not PATH.fullmatch(each)]
    return [each.rpartition(".")[2] for each in quoted]


def rooms(package: str) -> list[str]:
    """Return the modules and folders of a package as the page is to name them."""
    found = [path for path in (ROOT / package).iterdir() if path.name != "__init__.py"]
    return [
        f"{package}/{path.name}/" if path.is_dir() else f"{package}/{path.name}"
        for path in found
        if path.suffix == ".py" or (path / "__init__.py").exists()
    ]


def test_every_path_that_is_named_exists() -> None:
    named = paths(PAGE)
    assert len(named) > 80
    assert [str(path.relative_to(ROOT)) for path in named if not path.exists()] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_and_module_has_its_line(package: str) -> None:
    assert [room for room in rooms(package) if PAGE.count(f"| `{room}` |") != 1] == []


def test_every_folder_of_the_project_is_named() -> None:
    folders = [path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith((".", "_"))]
    made = {"build", "dist"}
    assert [name for name in folders if name not in made and f"`{name}/" not in PAGE] == []


STEPS = [step for step in STEP.findall(PAGE) if names(step)]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.split(".")[0])
def test_every_function_on_the_way_is_where_the_page_says(step: str) -> None:
    files = [file for path in paths(step) for file in ([path] if path.is_file() else path.rglob("*.py"))]
    source = "\n".join(file.read_text(encoding="utf-8") for file in files)
    for name in names(step):
        known = rf"(def|class) {name}\b|^{name}\b.*=|\"{name}\""
        assert re.search(known, source, re.MULTILINE), f"{name}: not in {[file.name for file in files]}"


def test_the_way_is_read_as_far_as_it_goes() -> None:
    assert len(STEPS) >= 11
