"""What a command prints is text: no id, file name or message of a stranger can be anything else."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from surroundings import ROOT
from turngate.cli.visible import visible
from turngate_verify.cli import run, trace
from turngate_verify.words import counted

COMMAND = [sys.executable, "-m", "turngate"]
NASTY = (
    "[red]x[/nope]",
    "[/]",
    ":smile:",
    "\x1b[2J\x1b]0;owned\x07",
    "a\rb",
    "a\nverdict: holds",
    "\x9b31m",
    "\u202egnp.exe",
    "\u2028",
    "\ud800",
    "\udcff",
    "grün",
    "\x00",
    "\x7f",
    "{0}%s",
)


def recording_about(run_id: str, session: str = "s") -> list[dict[str, Any]]:
    """Return a recording that breaks something, and says so with the run id."""
    return [
        {"event": "accept", "session": session, "run": run_id},
        {"event": "enter", "run": run_id, "state": "active"},
        {"event": "complete", "run": run_id, "cancelled": True},
    ]


def written(path: Path, entries: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="ascii")
    return path


@contextlib.contextmanager
def captured(encoding: str) -> Iterator[Callable[[], str]]:
    """Capture both standard streams as a strict terminal of this encoding would take them."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="strict", write_through=True)
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        yield lambda: raw.getvalue().decode(stream.encoding)


def raw_in(printed: str) -> set[str]:
    """Return what a terminal might act on."""
    return {each for each in printed if not each.isprintable()} - {"\n"}


def ids() -> st.SearchStrategy[str]:
    characters = st.characters(exclude_categories=()) | st.sampled_from("[]/\\:\x1b\r\n\x07\x9b\u202e\ud800")
    return st.sampled_from(NASTY) | st.text(characters, min_size=1, max_size=12)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@settings(max_examples=150, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(run_id=ids(), session=ids(), cut=st.integers(1, 4), as_json=st.booleans())
@example(run_id="[red]x[/nope]", session="s", cut=3, as_json=False)
def test_no_id_can_do_anything_but_be_read(
    encoding: str, run_id: str, session: str, cut: int, as_json: bool, tmp_path_factory: Any
) -> None:
    entries = [*recording_about(run_id, session)[:cut], {"event": "fold", "run": run_id, "into": run_id}]
    path = written(tmp_path_factory.getbasetemp() / "nasty.jsonl", entries[:4])
    with captured(encoding) as printed:
        code = run(["trace", str(path), *(["--json"] if as_json else [])])
        text = printed()
    assert code in (0, 1)
    assert raw_in(text) == set()
    if as_json:
        assert json.loads(text)["verdict"] == ("violated" if code else "holds")
    else:
        assert text.count("verdict:") == 1 + run_id.count("verdict:") * text.count(visible(run_id, encoding))
    if cut == 3:
        assert code == 1
        assert as_json or visible(run_id, encoding) in text


@pytest.mark.parametrize("nasty", NASTY)
def test_what_is_refused_cannot_either(nasty: str, tmp_path: Path) -> None:
    unknown = [{"event": nasty}, {"event": "enter", "run": nasty, "state": "active"}, {"event": "accept"}]
    for number, entry in enumerate(unknown):
        path = written(tmp_path / f"{number}.jsonl", [entry])
        with captured("ascii") as printed:
            assert run(["trace", str(path)]) == 2
        assert raw_in(printed()) == set()
        assert printed().count("\n") == 1
    with captured("ascii") as printed:
        assert run(["explore", "--design", nasty]) == 2
        assert run(["conform", f"{nasty}:Subject"]) == 2
        assert run(["schedules", "--dispatcher", f"{nasty}:Subject"]) == 2
        assert run(["faults", "--scenario", nasty]) == 2
        assert run([nasty]) == 2
    assert raw_in(printed()) == set()
    assert printed().count("\n") == 5


def test_a_file_cannot_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "\x1b[31m\udcff.jsonl"
    path.write_bytes(b"nonsense\n")
    with captured("utf-8") as printed:
        assert run(["trace", str(path)]) == 2
        assert run(["trace", str(path) + "x"]) == 2
        assert run(["diagrams", "--check", "--directory", str(path)]) == 2
    assert raw_in(printed()) == set()
    assert r"\x1b[31m\udcff.jsonl: line 1: not JSON" in printed()


HARMFUL_SUBJECT = """
import json, sys
sys.stderr.write("\\x1b[2J[red]gone[/nope]\\n"); sys.stderr.flush()
for line in sys.stdin:
    asked = json.loads(line)
    if asked["op"] == "hello":
        answer = {"features": ["cancel"]}
    elif asked["op"] == "accept":
        ended = {"event": "complete", "run": "a", "cancelled": True, "error": "\\x1b[2J\\ud800[/]"}
        entered = {"event": "enter", "run": "\\x1b]0;x\\x07[/]\\u202e\\ud800", "state": "active"}
        answer = {"events": [ended, entered]}
    else:
        answer = {"events": []}
    print(json.dumps({"id": asked["id"], **answer}), flush=True)
"""


def test_a_subject_cannot_by_what_it_says_or_complains_of(tmp_path: Path) -> None:
    subject = tmp_path / "subject.py"
    subject.write_text(HARMFUL_SUBJECT, encoding="utf-8")
    command = ["--report", str(tmp_path), "--", sys.executable, str(subject)]
    with captured("ascii") as printed:
        assert run(["conform", *command]) == 3
        assert run(["conform", "--replay", "accept a", *command]) == 3
    assert raw_in(printed()) == set()
    assert "  ! \\x1b[2J[red]gone[/nope]\n" in printed()
    assert "\x1b" not in (tmp_path / "index.html").read_text(encoding="utf-8")


RAISES = """
from turngate_verify.conform import Features, Subject

class {0}(Subject):
    features = Features()
    def accept(self, session, run): self.fail("accept")
    def cancel(self, session): pass
    def finish(self, run): pass
    def fail(self, run): {1}
    def observe(self): {2}
    def close(self): {1}
"""


@pytest.mark.parametrize("raises", ["raise SystemExit(1)", "raise ValueError('\\x1b[2J')", "1 / 0"])
def test_a_subject_that_wants_to_leave_is_reported_and_nothing_is_said_of_its_promises(
    raises: str, tmp_path: Path
) -> None:
    for name, source in {"Doing": (raises, "return []"), "Showing": ("pass", raises)}.items():
        path = tmp_path / f"leaves_{name}.py"
        path.write_text(RAISES.format(name, *source), encoding="utf-8")
        with captured("ascii") as printed:
            assert run(["conform", f"{path}:{name}"]) == 3
        assert raw_in(printed()) == set()
        assert "at accept a: it raised" in printed()


def test_an_error_of_its_own_is_no_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def breaks(lines: Any) -> None:
        raise KeyError("\x1b[2J")

    monkeypatch.setattr(trace, "check", breaks)
    path = written(tmp_path / "good.jsonl", recording_about("a"))
    with captured("ascii") as printed:
        assert run(["trace", str(path)]) == 70
    assert raw_in(printed()) == set()
    assert "KeyError" in printed()
    assert "turngate itself" in printed()


def shell(script: str, *paths: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a shell script in which ``turngate`` is the command and ``$1`` the first path."""
    defined = f"turngate() {{ '{sys.executable}' -m turngate \"$@\"; }}\n"
    return subprocess.run(
        ["sh", "-c", defined + script, "sh", *map(str, paths)],
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
        cwd=ROOT / "impl",
        env={**os.environ, **environment},
    )


GOOD = [*recording_about("grün \U0001f600 \ud800")[:2], {"event": "cancel", "session": "s"}]
BAD = recording_about("grün \U0001f600 \ud800")


@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "POSIX"])
@pytest.mark.parametrize("utf8", ["0", "1"])
def test_any_id_can_be_printed_in_any_locale(locale: str, utf8: str, tmp_path: Path) -> None:
    good, bad = written(tmp_path / "good", GOOD), written(tmp_path / "bad", BAD)
    language = {"LC_ALL": locale, "PYTHONUTF8": utf8, "PYTHONCOERCECLOCALE": "0"}
    done = shell('turngate trace "$1" && turngate trace "$1" --json', good, **language)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\ud800" in done.stdout
    done = shell('turngate trace "$1"', bad, **language)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_stream_that_is_closed_changes_no_verdict(tmp_path: Path) -> None:
    good, bad = written(tmp_path / "good", GOOD), written(tmp_path / "bad", BAD)
    for closing in (">&-", "2>&-", "<&-", "<&- >&- 2>&-"):
        script = (
            f'turngate trace "$1" {closing}; echo $? >&3; turngate trace "$2" --json {closing}; echo $? >&3'
        )
        done = shell(f"exec 3>&1; ( {script} )", good, bad)
        codes = [line for line in done.stdout.splitlines() if line.isdigit()]
        assert (codes, done.stderr) == (["0", "1"], ""), closing
    assert shell("turngate trace - <&-").returncode == 3
    assert shell("turngate trace /nowhere 2>&-").returncode == 2


def test_a_reader_that_goes_away_changes_no_verdict(tmp_path: Path) -> None:
    good, bad = written(tmp_path / "good", GOOD), written(tmp_path / "bad", BAD)
    for path, code in ((good, 0), (bad, 1)):
        for options in ([], ["--json"]):
            reader, writer = os.pipe()
            os.close(reader)
            done = subprocess.run(
                [*COMMAND, "trace", str(path), *options], stdout=writer, stderr=subprocess.PIPE, check=False
            )
            os.close(writer)
            assert (done.returncode, done.stderr) == (code, b"")
    gone = shell("exec 3>&1; { turngate --help; echo $? >&3; } | :")
    assert gone.stdout == "0\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    done = shell('turngate trace "$1" >/dev/full', written(tmp_path / "good", GOOD))
    assert (done.returncode, done.stderr) == (2, "turngate: No space left on device\n")
    done = shell("turngate --help >/dev/full")
    assert (done.returncode, done.stderr) == (2, "turngate: No space left on device\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_bad_input_is_bad_input_where_it_cannot_be_said() -> None:
    done = shell('turngate trace no-such-file "$1" 2>/dev/full', Path())
    assert (done.returncode, done.stdout) == (2, "")


def test_nothing_but_the_terminal_prints() -> None:
    paths = [*(ROOT / "verify" / "turngate_verify" / "cli").glob("*.py")]
    assert len(paths) > 8
    for path in paths:
        source = path.read_text(encoding="utf-8")
        for way_out in (
            "click.echo",
            "click.secho",
            "print(",
            "Console(",
            "sys.stdout.write",
            "sys.stderr.write",
        ):
            own = re.sub(r"\b(out|err|printed)\.print\(", "", source)
            if path.name not in ("terminal.py", "screen.py"):
                assert way_out not in own.replace("def print", ""), (path.name, way_out)


def test_numbers_and_nouns_agree() -> None:
    assert [counted(number, "run") for number in (0, 1, 2, 1000)] == [
        "0 runs",
        "1 run",
        "2 runs",
        "1,000 runs",
    ]
    assert [counted(number, "process", "processes") for number in (1, 2)] == ["1 process", "2 processes"]
