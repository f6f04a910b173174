"""The first and the last moment of the command line, whatever it is given and wherever its output goes."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

INTERRUPTS = "import os, signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""It is ignored in a background job, and its default elsewhere."""


def program(
    beforehand: str, *arguments: str, output: int = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process, with something done before."""
    lines = (
        *("import sys", beforehand, "from turngate.cli.entry import main"),
        *(f"sys.argv[1:] = {arguments!r}", "main()"),
    )
    return subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )


def shell(script: str) -> subprocess.CompletedProcess[str]:
    command = script.replace("turngate", f"{sys.executable} -m turngate", 1)
    return subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


def test_what_is_answered_without_a_command() -> None:
    for arguments, code in (((), 2), (("-h",), 0), (("--help",), 0)):
        done = program("", *arguments)
        assert (done.returncode, done.stderr) == (code, "")
        assert done.stdout.startswith("Usage: turngate [OPTIONS] COMMAND")
        assert "\n  serve " in done.stdout
        assert "pip install 'turngate[" in done.stdout
    done = program("", "--version")
    assert (done.returncode, done.stdout) == (0, f"turngate, version {version('turngate')}\n")


@pytest.mark.parametrize("arguments", ["nothing", "--nothing", "serve --nothing"])
def test_what_there_is_not_is_one_line(arguments: str) -> None:
    done = program("", *arguments.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("turngate: No such ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("chat",), "turngate chat needs the extra 'client' (the package click is missing); "
                    "install it with: pip install 'turngate[client]'"),
        (("nothing",), "there is no command 'nothing'; turngate --help lists them all"),
        (("--nothing",), "there is no option '--nothing'; turngate --help lists them all"),
    ],
)  # fmt: skip
def test_without_any_extra_it_says_what_to_install(arguments: tuple[str, ...], line: str) -> None:
    done = program("sys.modules['click'] = None", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"turngate: {line}\n")


def test_without_the_extra_of_a_command_it_says_which() -> None:
    done = program("sys.modules['prompt_toolkit'] = None", "chat", "http://localhost")
    assert done.returncode == 2
    assert "'client' (the package prompt_toolkit" in done.stderr


@pytest.mark.parametrize(
    "broken", ["sys.modules['turngate.cli.terminal'] = None", "sys.path.insert(0, BROKEN)", "COMMAND"]
)
def test_a_turngate_that_is_broken_itself_ends_with_a_code_of_its_own(broken: str, tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("1 / 0\n", encoding="utf-8")
    broken = broken.replace("BROKEN", repr(str(tmp_path)))
    broken = broken.replace("COMMAND", "sys.modules['turngate.cli.screen'] = None")
    done = program(broken, "chat", "http://localhost")
    assert done.returncode == 70
    assert "Traceback (most recent call last):" in done.stderr


def test_the_folder_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = program(f"import os; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r})", "--help")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("turngate: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_reader_that_goes_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    for arguments in (("--help",), ("serve", "--help")):
        done = program("", *arguments, output=write)
        assert (done.returncode, done.stderr) == (0, "")
    os.close(write)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_disk_that_is_full_is_one_line_and_no_verdict() -> None:
    for arguments in ("--help", "serve --help"):
        done = shell(f"turngate {arguments} >/dev/full")
        assert (done.returncode, done.stderr) == (2, "turngate: No space left on device\n")
    done = shell("turngate serve --port x 2>/dev/full")
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_what_is_left_to_write_at_the_end_changes_no_code() -> None:
    with open("/dev/full", "w") as full:
        leaving = "lambda: (sys.stdout.write('left'), run())[1]"
        before = f"from turngate.cli import entry; run = entry._run; entry._run = {leaving}"
        done = program(before, "serve", "--port", "x", output=full.fileno())
    assert done.returncode == 2
    assert "'x' is not a valid integer" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_that_are_closed_lead_nowhere(closed: str) -> None:
    done = shell(f"turngate --version {closed}")
    said = "" if ">&-" in closed.split() else f"turngate, version {version('turngate')}\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


# Ctrl-C.

AT_AN_IMPORT = (
    "class Press:\n"
    "    def find_spec(self, name, path=None, target=None):\n"
    "        if name == {0!r}:\n"
    "            sys.meta_path.remove(self)\n"
    "            os.kill(os.getpid(), signal.SIGINT)\n"
    "sys.meta_path.insert(0, Press())\n"
)


@pytest.mark.parametrize("module", ["turngate.cli.commands", "turngate.cli.main", "turngate.cli.serve"])
def test_ctrl_c_while_something_is_imported_is_one_line(module: str) -> None:
    done = program(INTERRUPTS + AT_AN_IMPORT.format(module), "serve", "--port", "0")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "turngate: interrupted\n")


def test_ctrl_c_that_goes_nowhere_comes_again() -> None:
    swallowing = (
        f"{INTERRUPTS}"
        "class Press:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'turngate.cli.main':\n"
        "            sys.meta_path.remove(self)\n"
        "            class Held:\n"
        "                def __del__(self):\n"
        "                    import logging, time\n"
        "                    os.kill(os.getpid(), signal.SIGINT)\n"  # raised here, it goes no further
        "                    time.sleep(60)\n"
        "            Held()\n"
        "            import time; time.sleep(60)\n"
        "sys.meta_path.insert(0, Press())\n"
    )
    done = program(swallowing, "serve", "--port", "0")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "turngate: interrupted\n")


def test_ctrl_c_that_is_ignored_stays_ignored() -> None:
    ignoring = "import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    done = program(ignoring + AT_AN_IMPORT.format("turngate.cli.commands"), "--version")
    assert (done.returncode, done.stderr) == (0, "")


def test_what_else_is_lost_is_still_reported() -> None:
    losing = (
        "class Press:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'turngate.cli.commands':\n"
        "            sys.meta_path.remove(self)\n"
        "            class Held:\n"
        "                def __del__(self):\n"
        "                    raise ValueError('lost')\n"
        "            Held()\n"
        "sys.meta_path.insert(0, Press())\n"
    )
    done = program(losing, "--version")
    assert done.returncode == 0
    assert "ValueError: lost" in done.stderr
