"""The command line as a process: Ctrl-C at any moment ends it with one line, and nothing is left."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pytest

from surroundings import ROOT
from turngate import Dispatcher, Run
from turngate.cli.commands import registered
from turngate.cli.endings import INTERNAL_ERROR
from turngate.cli.main import turngate
from turngate_verify.drivers.faults import inject_faults
from turngate_verify.world.world import without_log

PATIENCE = 120
"""Seconds after which something will never happen; nothing is measured by it."""

PRESSES = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where it is ignored, as in a background job
def press():
    os.kill(os.getpid(), signal.SIGINT)
"""
AT_THE_IMPORT_OF = """
class Presses:
    def find_spec(self, name, path=None, target=None):
        if name == {0!r}:
            sys.meta_path.remove(self)
            press()
sys.meta_path.insert(0, Presses())
"""
AT_THE_CALL = """
calls = 0
def profile(frame, event, arg):
    global calls
    calls += 1
    if calls == {0}:
        sys.setprofile(None)
        press()
sys.setprofile(profile)
"""


def command(*arguments: str, pressed: str = "", beforehand: str = "") -> list[str]:
    """Return the command line, run by a program that presses Ctrl-C somewhere on the way."""
    program = f"{beforehand}{PRESSES}{pressed}\nfrom turngate.cli.entry import main\n"
    program += (
        f"sys.argv = ['turngate', *{arguments!r}]\nsys.stdout.write('up\\n'); sys.stdout.flush()\nmain()\n"
    )
    return [sys.executable, "-c", program]


def run(*arguments: str, pressed: str = "", beforehand: str = "") -> tuple[int, str, str]:
    done = subprocess.run(
        command(*arguments, pressed=pressed, beforehand=beforehand),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT / "impl",
        timeout=PATIENCE,
    )
    return done.returncode, done.stdout.removeprefix("up\n"), done.stderr


INTERRUPTED = (130, "", "turngate: interrupted\n")
LISTS_MODULES = "import atexit, sys; atexit.register(lambda: sys.stdout.write('\\n'.join(sys.modules)))\n"


def imported_for(*arguments: str) -> list[str]:
    """Return the modules that a command imports between its first moment and its last, in their order."""
    _, out, _ = run(*arguments, beforehand=LISTS_MODULES)
    before = {"turngate.cli.entry", "turngate.cli.endings", *sys.builtin_module_names}
    names = [name for name in out.splitlines() if name.replace(".", "").replace("_", "").isalnum()]
    return [name for name in names[names.index("turngate.cli.entry") :] if name not in before]


SOME = (
    "turngate_model",
    "click",
    "rich.console",
    "hypothesis",
    "turngate_verify.cli.verify",
)


@pytest.mark.parametrize("module", SOME)
def test_an_interrupt_while_importing_is_answered(module: str) -> None:
    assert run("verify", "--help", pressed=AT_THE_IMPORT_OF.format(module)) == INTERRUPTED


@pytest.mark.deep
def test_an_interrupt_while_importing_anything_is_answered() -> None:
    modules = imported_for("verify", "--help")
    assert set(SOME) <= set(modules)
    for module in modules:
        ended = run("verify", "--help", pressed=AT_THE_IMPORT_OF.format(module))
        # Some are not looked for: they are made by another.
        assert ended == INTERRUPTED or (ended[0], ended[2]) == (0, ""), module


def test_a_command_imports_what_it_needs_and_no_more() -> None:
    recording = str(ROOT / "tests" / "verify" / "recordings" / "good-one-run.jsonl")
    for arguments in (["--help"], ["--version"], ["trace", recording]):
        modules = imported_for(*arguments)
        assert ("click" in modules) == (arguments[0] == "trace")
        assert not {"hypothesis", "graphviz", "turngate_verify.cli.verify"} & set(modules), arguments
    assert "hypothesis" in imported_for("verify", "--help")


def test_the_list_of_commands_says_what_each_says_of_itself() -> None:
    context = click.Context(turngate)
    for name, (sentence, *_) in registered().items():
        command = turngate.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert " ".join((command.help or "").split("\n\n")[0].split()) == sentence


def test_another_package_registers_commands(tmp_path: Path) -> None:
    folder = tmp_path / "other-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n", encoding="utf-8")
    registered = "[turngate.commands]\nother = other:COMMANDS\n"
    (folder / "entry_points.txt").write_text(registered, encoding="utf-8")
    table = {
        "greet": ("Say hello.", "other_cli:greet", "other"),
        "lack": ("Lack something.", "other_lack:lack", "more"),
    }
    (tmp_path / "other.py").write_text(f"COMMANDS = {table!r}\n", encoding="utf-8")
    greets = "import click\n@click.command()\ndef greet():\n    print('hello')\n    return 3\n"
    (tmp_path / "other_cli.py").write_text(greets, encoding="utf-8")
    (tmp_path / "other_lack.py").write_text("import nowhere_to_be_found\n", encoding="utf-8")
    here = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    code, out, err = run("--help", beforehand=here)
    assert (code, err) == (0, "")
    assert "\n  greet      Say hello.\n" in out
    assert "turngate[more] for lack" in out
    assert run("greet", beforehand=here) == (3, "hello\n", "")
    code, out, err = run("lack", beforehand=here)
    assert (code, out) == (2, "")
    assert "pip install 'turngate[more]'" in err


def see_that_an_interrupt_is_answered(calls: int, *arguments: str) -> None:
    assert run(*arguments, pressed=AT_THE_CALL.format(calls)) == INTERRUPTED, calls


IN_THE_FAULTS = (400_000, 700_000, 900_000, 1_000_000, 1_100_000)


@pytest.mark.parametrize("calls", IN_THE_FAULTS)
def test_an_interrupt_among_the_injected_ones_is_answered(calls: int) -> None:
    see_that_an_interrupt_is_answered(calls, "faults")


@pytest.mark.deep
@pytest.mark.parametrize("driver", ["faults", "verify", "schedules --workers 1"])
def test_an_interrupt_anywhere_in_a_driver_is_answered(driver: str) -> None:
    chance = random.Random(driver)
    for _ in range(40):
        see_that_an_interrupt_is_answered(chance.randrange(1, 1_500_000), *driver.split())


class Interrupted(Dispatcher):
    """Ctrl-C comes while it accepts the last of the given number of prompts."""

    calls = 0

    async def accept(self, session_id: str, prompt: str, **options: Any) -> Run:
        Interrupted.calls -= 1
        if Interrupted.calls == 0:
            raise KeyboardInterrupt("pressed")
        return await super().accept(session_id, prompt, **options)


def test_only_what_was_injected_is_the_drivers() -> None:
    with without_log(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for calls in (1, 2, 7, 40, 300):
            Interrupted.calls = calls
            with pytest.raises(KeyboardInterrupt, match="pressed"):
                inject_faults(make=Interrupted)
        gc.collect()  # what was broken off complains when it is taken apart


def started(*arguments: str) -> subprocess.Popen[str]:
    """Start the command line in a process group of its own, and wait until it is there."""
    process = subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT / "impl",
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def pressed(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Press Ctrl-C as a terminal does, for the whole group, and return how it ended."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, out, err


def eventually(happened: Callable[[], bool]) -> bool:
    until = time.monotonic() + PATIENCE
    while not happened() and time.monotonic() < until:
        time.sleep(0.05)
    return happened()


def gone(kill: Callable[[int, int], None], number: int) -> bool:
    with suppress(ProcessLookupError):
        kill(number, 0)
        return False
    return True


@pytest.mark.parametrize("delay", [0.05, 0.5, 2.0])
def test_an_interrupt_after_a_while_is_answered(delay: float) -> None:
    process = started("verify", "--deep")
    time.sleep(delay)
    assert pressed(process) == INTERRUPTED


@pytest.mark.parametrize("delay", [0.3, 2.0])
def test_no_worker_complains_of_an_interrupt_or_stays_behind(delay: float) -> None:
    process = started("schedules", "--workers", "2", "--no-reduce")
    time.sleep(delay)
    assert pressed(process) == INTERRUPTED
    assert eventually(lambda: gone(os.killpg, process.pid))


def test_no_subject_stays_behind(tmp_path: Path) -> None:
    known_by = tmp_path / "pid"
    process = started("conform", "--", "sh", "-c", f"echo $$ > '{known_by}'; exec sleep 1000")
    assert eventually(lambda: known_by.exists() and known_by.read_text(encoding="ascii").endswith("\n"))
    assert pressed(process) == INTERRUPTED
    subject = int(known_by.read_text(encoding="ascii"))
    assert eventually(lambda: gone(os.kill, subject))


SWALLOWS = """
import os, signal
from turngate_verify.conform import Features, Subject

class Swallows(Subject):
    features = Features()
    def accept(self, session, run):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000): pass
        except BaseException:
            pass
    def cancel(self, session): pass
    def finish(self, run): pass
    def fail(self, run): pass
    def observe(self): return []
    def close(self): pass
"""


def test_an_interrupt_that_is_swallowed_is_answered(tmp_path: Path) -> None:
    path = tmp_path / "swallows.py"
    path.write_text(SWALLOWS, encoding="utf-8")
    assert run("conform", f"{path}:Swallows") == INTERRUPTED


def test_what_cannot_be_imported_is_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text("1 / 0\n", encoding="utf-8")
    code, out, err = run("explore", beforehand=f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n")
    assert (code, out) == (INTERNAL_ERROR, "")
    assert "ZeroDivisionError" in err


def test_a_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    gone_by_then = f"import os; os.makedirs({str(tmp_path / 'x')!r}); os.chdir({str(tmp_path / 'x')!r})\n"
    gone_by_then += f"os.rmdir({str(tmp_path / 'x')!r})\n"
    said = "turngate: the current folder no longer exists; change to another one\n"
    assert run("explore", beforehand=gone_by_then) == (2, "", said)
