"""The wheel: what works without the extra, what needs it and says so. No test here needs a network."""

from __future__ import annotations

import email
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from surroundings import ROOT, insist_on_package
from turngate.cli.commands import registered

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {
    name: {re.split(r"[<>=]", each)[0] for each in needed}
    for name, needed in PROJECT["optional-dependencies"].items()
}
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")

IMPORT_ALL = """
import importlib, importlib.util, json, pathlib
came_of = {}
for package in ("turngate", "turngate_model", "turngate_verify"):
    (folder,) = importlib.util.find_spec(package).submodule_search_locations
    for path in sorted(pathlib.Path(folder).rglob("*.py")):
        parts = path.relative_to(pathlib.Path(folder).parent).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as missing:
            came_of[name] = missing.name
        else:
            came_of[name] = None
print(json.dumps(came_of))
"""
"""Prints, for every module, the package that was missing when it was imported, or null."""


class Installed(NamedTuple):
    """A virtual environment that the wheel is installed in, and an empty folder to be in."""

    bin: Path
    elsewhere: Path

    def run(self, program: str, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
        command = [str(self.bin / program), *arguments]
        return subprocess.run(
            command, cwd=self.elsewhere, input=typed, capture_output=True, text=True, check=False
        )

    def imports(self) -> dict[str, str | None]:
        done = self.run("python", "-c", IMPORT_ALL)
        assert (done.stderr, done.returncode) == ("", 0)
        came_of: dict[str, str | None] = json.loads(done.stdout)
        return came_of


def build(project: Path, to: Path) -> Path:
    """Build the wheel with what is installed here."""
    insist_on_package("hatchling")
    subprocess.run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", to, project], check=True)
    (built,) = to.glob("*.whl")
    return built


def install(built: Path, to: Path) -> Installed:
    venv.create(to / "venv", symlinks=True)
    python = to / "venv" / "bin" / "python"
    subprocess.run([*PIP, "--python", python, "install", "--no-deps", "--no-index", built], check=True)
    (to / "elsewhere").mkdir()
    return Installed(python.parent, to / "elsewhere")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel, and nothing else."""
    return install(wheel, tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def full(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel, and behind it what is installed here, the extra among it."""
    installed = install(wheel, tmp_path_factory.mktemp("full"))
    (packages,) = (installed.bin.parent / "lib").glob("python*/site-packages")
    (packages / "behind.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return installed


def test_it_holds_the_three_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name.split("/")[0] for name in archive.namelist()}
    assert held == {
        "turngate",
        "turngate_model",
        "turngate_verify",
        f"turngate-{PROJECT['version']}.dist-info",
    }


def test_without_the_extra_a_ledger_is_made_by_the_migrations_of_the_wheel(
    bare: Installed, tmp_path: Path
) -> None:
    script = (
        "import asyncio, sys; from turngate.durable import SqliteLedger; "
        "ledger = SqliteLedger(sys.argv[1]); "
        "asyncio.run((lambda: asyncio.wait_for(ledger.open(), 60))())"
    )
    done = bare.run("python", "-c", script, str(tmp_path / "ledger.db"))
    assert (done.stderr, done.returncode) == ("", 0)


def test_without_the_extra_the_dispatcher_is_whole_and_the_rest_says_what_it_needs(bare: Installed) -> None:
    came_of = bare.imports()
    rooms = ("turngate.server", "turngate.client", "turngate.durable._postgres_connections", "turngate.cli")
    whole = [name for name in came_of if name.split(".")[0] == "turngate" and not name.startswith(rooms)]
    assert len(whole) > 10
    assert {came_of[name] for name in whole} == {None}
    for room, extra in zip(rooms[:3], ("server", "client", "postgres"), strict=True):
        assert came_of[room] in EXTRAS[extra]
    # What pytest and the shell load in every environment must not need the extra either.
    assert came_of["turngate.cli.entry"] is None
    assert came_of["turngate_verify.pytest_plugin"] is None
    brought_by_the_client = {"httpcore2"}
    assert {missing for missing in came_of.values() if missing} <= brought_by_the_client.union(
        *EXTRAS.values()
    )


PROGRAMS = [("turngate",), ("python", "-m", "turngate")]


@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
def test_without_any_extra_help_and_version_work(bare: Installed, program: tuple[str, ...]) -> None:
    for option in ("--help", "-h"):
        done = bare.run(*program, option)
        assert (done.stderr, done.returncode) == ("", 0)
        for command in registered():
            assert f"\n  {command} " in done.stdout
        assert "pip install 'turngate[server,client,verify]'" in done.stdout
    done = bare.run(*program, "--version")
    assert (done.stdout, done.stderr, done.returncode) == (f"turngate, version {PROJECT['version']}\n", "", 0)
    done = bare.run(*program)
    assert (done.stderr, done.returncode) == ("", 2)
    assert done.stdout.startswith("Usage: turngate ")


def test_without_its_extra_a_command_names_it_in_one_line(bare: Installed) -> None:
    for number, command in enumerate(registered()):
        extra = {"serve": "server", "chat": "client"}.get(command, "verify")
        done = bare.run("turngate", command, *(["--help"], ["x", "-h"], [])[number % 3])
        assert (done.stdout, done.returncode) == ("", 2)
        assert re.fullmatch(
            rf"turngate: turngate {command} needs .* pip install 'turngate\[{extra}\]'\n", done.stderr
        )


@pytest.mark.parametrize("wrong", ["no-such-command", "--no-such-option"])
def test_without_any_extra_a_mistake_is_reported_as_one(bare: Installed, wrong: str) -> None:
    done = bare.run("turngate", wrong)
    assert (done.stdout, done.returncode) == ("", 2)
    assert re.fullmatch(rf"turngate: there is no .* '{wrong}'; turngate --help lists them all\n", done.stderr)


NEEDED = [
    ("httpx2", "chat http://127.0.0.1:9", "client"),
    ("prompt_toolkit", "chat http://127.0.0.1:9", "client"),
    ("starlette", "serve", "server"),
    ("uvicorn", "serve", "server"),
    ("hypothesis", "verify", "verify"),
    ("transitions", "explore", "verify"),
    ("asyncpg", "serve --ledger postgresql://127.0.0.1:9/x", "postgres"),
    ("asyncpg", "serve --workers 2 --ledger postgres://127.0.0.1:9/x", "postgres"),
]


def test_with_the_other_extras_a_missing_one_is_named_rightly(wheel: Path, tmp_path: Path) -> None:
    installed = install(wheel, tmp_path)
    (packages,) = (installed.bin.parent / "lib").glob("python*/site-packages")
    behind = tmp_path / "behind"
    (packages / "behind.pth").write_text(str(behind), encoding="utf-8")
    for package, command, extra in NEEDED:
        behind.mkdir()
        for each in Path(sysconfig.get_path("purelib")).iterdir():
            if each.suffix != ".pth" and re.split(r"[-.]", each.name)[0] not in (package, "turngate"):
                (behind / each.name).symlink_to(each)
        done = installed.run("turngate", *command.split())
        assert (done.stdout, done.returncode) == ("", 2)
        assert re.fullmatch(rf"turngate: .* pip install 'turngate\[{extra}\]'\n", done.stderr), package
        shutil.rmtree(behind)


def test_with_the_extra_everything_imports_from_the_wheel(full: Installed) -> None:
    # All but PostgresLedger, which has an extra of its own.
    assert {name for name, missing in full.imports().items() if missing} <= {
        "turngate.durable._postgres_connections"
    }
    done = full.run("python", "-c", "import turngate; print(turngate.__file__)")
    assert str(full.bin.parent) in done.stdout


def test_with_the_extra_the_commands_work_in_an_empty_folder(full: Installed) -> None:
    assert "--report" in full.run("turngate", "verify", "--help").stdout
    explored = full.run("turngate", "explore", "--prompts", "2", "--cancels", "1")
    assert "596 states" in explored.stdout
    assert (explored.stderr, explored.returncode) == ("", 0)
    told = '{"event": "accept", "session": "s", "run": "a"}\n{"event": "end"}\n'
    traced = full.run("turngate", "trace", "-", typed=told)
    assert "EXACTLY_ONE_COMPLETE" in traced.stdout
    assert (traced.stderr, traced.returncode) == ("", 1)
    assert [*full.elsewhere.iterdir()] == []


def test_with_the_extra_pages_are_written_by_the_templates_of_the_wheel(
    full: Installed, tmp_path: Path
) -> None:
    told = '{"event": "accept", "session": "s", "run": "a"}\n{"event": "end"}\n'
    traced = full.run("turngate", "trace", "-", "--report", str(tmp_path), typed=told)
    assert (traced.stderr, traced.returncode) == (f"wrote {tmp_path}/index.html\n", 1)
    assert "never got a RunComplete" in (tmp_path / "index.html").read_text(encoding="utf-8")


def described(wheel: Path) -> str:
    """Return the README as the wheel has it."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        description = email.message_from_bytes(archive.read(name)).get_payload(decode=True)
    assert isinstance(description, bytes)
    return description.decode()


def links(page: str) -> list[str]:
    return re.findall(r"\]\(([^)]+)\)", page)


def test_the_readme_links_to_the_source_as_soon_as_its_address_is_known(wheel: Path, tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert described(wheel) == readme
    for name in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py"):
        shutil.copy(ROOT / name, tmp_path)
    for package in ("impl/turngate", "model/turngate_model", "verify/turngate_verify"):
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "__init__.py").touch()
    with (tmp_path / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write('[project.urls]\nSource = "https://example.org/turngate"\n')
    shown = described(build(tmp_path, tmp_path / "wheel"))
    at = f"v{PROJECT['version']}"
    assert f"(https://example.org/turngate/raw/{at}/pictures/page-light.png)" in shown
    assert f"(https://example.org/turngate/blob/{at}/SPEC.md)" in shown
    assert len(links(shown)) == len(links(readme))
    assert [link for link in links(shown) if not link.startswith(("https://", "#"))] == []
