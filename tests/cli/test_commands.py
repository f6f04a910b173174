"""What commands do with what goes wrong: one line and a code that is no verdict."""

from __future__ import annotations

import functools
import io
import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from turngate import Turn
from turngate.cli import acp, endings, main, serve, targets, terminal
from turngate.cli.commands import Registered
from turngate.durable import LedgerUnavailable


def said(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("turngate: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("turngate: ").rstrip("\n")


# Any command.


def test_without_a_command_it_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 2
    assert capsys.readouterr().out.startswith("Usage: turngate")
    assert main.run(["--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: turngate")


def test_a_shell_can_complete_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("_TURNGATE_COMPLETE", "bash_complete"), ("COMP_WORDS", "turngate se"), ("COMP_CWORD", "1"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    assert main.run([]) == 0
    assert "plain,serve" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("raised", "line"),
    [
        (FileNotFoundError(2, "No such file or directory", "runs.db"), "No such file or directory: runs.db"),
        (OSError("odd"), "odd"),
        (endings.BadInput("give a\n  number"), "give a number"),
    ],
)
def test_what_a_command_raises_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, raised: Exception, line: str
) -> None:
    monkeypatch.setattr(serve, "_app", functools.partial(raise_, raised))
    assert main.run(["serve"]) == 2
    assert said(capsys) == line


def raise_(raised: BaseException, *_: object) -> Any:
    raise raised


@pytest.mark.parametrize("raised", [ZeroDivisionError("odd"), SystemExit(1)])
def test_an_error_of_turngate_is_none_of_the_users(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, raised: BaseException
) -> None:
    monkeypatch.setattr(serve, "_app", functools.partial(raise_, raised))
    assert main.run(["serve"]) == 70
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "Traceback (most recent call last):"
    assert told[-1].startswith("turngate: ")


def test_a_module_of_turngate_that_is_missing_is_an_error_of_turngate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "find", lambda _: Registered("", "turngate.cli.no_such_module:x", "server"))
    assert main.run(["serve"]) == 70
    assert "No module named 'turngate.cli.no_such_module'" in capsys.readouterr().err


def test_an_extra_that_is_missing_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "find", lambda _: Registered("", "no_such_package:x", "server"))
    assert main.run(["serve"]) == 2
    assert "'server' (the package no_such_package" in said(capsys)


# What is printed.


class Gone(io.StringIO):
    """A pipe whose reader is gone."""

    def write(self, _: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("stderr", [False, True])
def test_a_reader_that_goes_away_ends_the_output_and_not_the_command(
    monkeypatch: pytest.MonkeyPatch, stderr: bool
) -> None:
    redirected: list[bool] = []
    monkeypatch.setattr(terminal, "stop_writing", redirected.append)
    out = terminal.Terminal(stderr=stderr)
    out.file = Gone()
    out.print("one")
    out.print("two")
    assert out.quiet
    assert redirected == [stderr]


def test_after_ctrl_c_nothing_more_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endings, "_pressed", True)
    with pytest.raises(KeyboardInterrupt):
        terminal.out.print("one")
    assert capsys.readouterr().out == ""


def test_an_object_is_printed_in_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_json({"a": "ä\x7f[bold]", "b": [1, 2]})
    printed = capsys.readouterr().out
    assert printed.isascii()
    assert "\x7f" not in printed
    assert json.loads(printed) == {"a": "ä\x7f[bold]", "b": [1, 2]}


# Targets and ledgers.


async def wants_two(_more: int, turn: Turn) -> str:
    return turn.run.prompt


class Callable:
    async def __call__(self, turn: Turn) -> str:
        return turn.run.prompt


class Plain:
    def __call__(self, turn: Turn) -> str:
        return turn.run.prompt


def plain(_more: int, turn: Turn) -> str:
    return turn.run.prompt


bound, called = functools.partial(wants_two, 1), Callable()
plain_bound, plain_called = functools.partial(plain, 1), Plain()


def test_a_runner_may_be_bound_or_an_object() -> None:
    assert targets.load_runner(f"{__name__}:bound") is bound
    assert targets.load_runner(f"{__name__}:called") is called
    for name in ("plain_bound", "plain_called"):
        with pytest.raises(endings.BadInput, match="async"):
            targets.load_runner(f"{__name__}:{name}")


def test_an_import_error_without_a_line_of_the_module_names_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nul.py").write_bytes(b"\0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(endings.BadInput, match=r"^nul.py cannot be imported: \w+Error: .*null bytes"):
        targets.loaded("nul.py:agent", "one")


def test_an_import_error_outside_the_module_names_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(targets, "_from_path", int)  # fails as what is written in C does
    with pytest.raises(endings.BadInput, match=r"^odd.py cannot be imported: TypeError: int\(\)[^\n(]*$"):
        targets.loaded("odd.py:agent", "one")


def test_a_database_may_have_several_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "postgresql://one:5432,two:5433/runs"
    assert "PostgresLedger" in type(targets.ledger_at(place)).__name__
    monkeypatch.delattr("turngate.durable._postgres_connections")
    monkeypatch.setitem(sys.modules, "turngate.durable._postgres_connections", None)
    with pytest.raises(endings.BadInput, match=r"turngate\[postgres\]"):
        targets.ledger_at(place)


# turngate serve.


def test_an_unusual_address_error_has_the_words_of_the_system(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "listening", functools.partial(raise_, OSError(24, "Too many open files")))
    assert main.run(["serve"]) == 2
    assert said(capsys) == "Too many open files"


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (13, "port 80 needs privileges; choose another with --port"),
        (99, "--host 127.0.0.1 is not an address of this machine"),
        (98, "port 80 is already in use; choose another with --port"),
    ],
)
def test_an_unavailable_address_is_refused_with_advice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int, line: str
) -> None:
    monkeypatch.setattr(serve, "listening", functools.partial(raise_, OSError(number, "no")))
    assert main.run(["serve", "--port", "80"]) == 2
    assert said(capsys) == line


def test_where_it_is_served_is_said_as_an_address(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve_app(_app: object, _host: str, *, on_start: Any, listener: socket.socket, **_: object) -> bool:
        with listener:
            on_start(1234)
        return True

    monkeypatch.setattr(serve, "serve_app", serve_app)
    monkeypatch.setattr(serve, "listening", lambda *_: socket.socket())
    assert main.run(["serve", "--host", "::1"]) == 130
    assert " the demonstration agent on http://[::1]:1234/ (" in capsys.readouterr().out


def test_only_a_database_is_asked_about_its_address(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(serve, "serve_app", functools.partial(refuse_to_serve))
    assert main.run(["serve", "--port", "0", "--ledger", str(tmp_path / "runs.db")]) == 2
    assert said(capsys) == "gone"
    assert main.run(["serve", "--port", "0", "--ledger", "postgresql://127.0.0.1:1/x"]) == 2
    assert "--ledger" in said(capsys)


def refuse_to_serve(*_: object, listener: socket.socket, **__: object) -> Any:
    listener.close()
    raise LedgerUnavailable("gone")


# turngate serve --acp.


def test_an_error_of_turngate_does_not_look_like_bad_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acp, "take_stdio", lambda: (0, 1))
    monkeypatch.setattr(acp, "load_runner", functools.partial(raise_, ZeroDivisionError("odd")))
    assert acp.run_acp(["--acp", "x:y"]) == 70
    assert "ZeroDivisionError: odd" in capsys.readouterr().err
    assert acp.run_acp(["--acp", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: turngate serve --acp")
