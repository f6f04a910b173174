"""What is appended, torn, rotated, truncated or out of order is read as it comes; lost lines are said."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from turngate_verify.cli import run
from turngate_verify.monitor import Monitor, TailedFile, TailedStream, Window, follow, prometheus_text
from turngate_verify.monitor.following import Item, LostPlace, Whole
from turngate_verify.monitor.metrics import observe_by_opentelemetry


def texts(items: Iterator[Item]) -> list[str]:
    return [each.text.decode() if isinstance(each, Whole) else f"lost: {each.why}" for each in items]


def drained(tail: TailedFile) -> list[str]:
    """Return what three looks at the file bring."""
    return [text for _ in range(3) for text in texts(tail.poll())]


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    path.write_text("one\n")
    return path


def test_the_end_of_a_torn_line_is_waited_for(log: Path) -> None:
    tail = TailedFile(log)
    append(log, "two\nthr")
    assert drained(tail) == ["one", "two"]
    assert tail.behind == 0
    append(log, "ee\n")
    (line,) = tail.poll()
    assert line == Whole(3, b"three")


def test_what_is_in_the_file_already_is_left_out_from_its_end(log: Path) -> None:
    append(log, "two, which is to")
    tail = TailedFile(log, from_end=True)
    assert drained(tail) == []
    append(log, "rn\nthree\n")
    assert drained(tail) == ["three"]


def test_a_renamed_file_is_read_to_its_end_before_the_next_one(log: Path) -> None:
    tail = TailedFile(log)
    assert drained(tail) == ["one"]
    old = log.rename(log.with_suffix(".1"))
    append(old, "two\n")
    assert drained(tail) == ["two"]
    log.touch()
    append(old, "three\n")  # the writer has not moved on yet
    assert drained(tail) == ["three"]
    append(old, "four\nfive")
    append(log, "six\n")
    assert drained(tail) == ["four", "five", "six"]
    append(log, "seven\n")
    assert [*tail.poll()] == [Whole(2, b"seven")]


def test_a_truncated_file_has_lost_lines(log: Path) -> None:
    tail = TailedFile(log)
    append(log, "two\nthr")
    assert drained(tail) == ["one", "two"]
    os.truncate(log, 0)
    append(log, "a\n")
    assert drained(tail) == ["lost: the file was truncated", "a"]


def test_a_file_that_has_grown_again_since_it_was_truncated_is_noticed(log: Path) -> None:
    tail = TailedFile(log)
    assert drained(tail) == ["one"]
    os.truncate(log, 0)
    append(log, "another line, which is longer than what was there\n")
    found = drained(tail)
    assert found == ["lost: the file was truncated", "another line, which is longer than what was there"]


def test_a_writer_that_keeps_its_place_leaves_zeros_behind(log: Path) -> None:
    with log.open("r+") as writer:
        writer.seek(0, os.SEEK_END)
        tail = TailedFile(log)
        assert drained(tail) == ["one"]
        os.truncate(log, 0)
        writer.write("two\n")
    assert drained(tail) == ["lost: the file was truncated", "two"]


def test_a_line_without_an_end_does_not_fill_the_memory(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngate_verify.monitor.following.LONGEST", 100)
    tail = TailedFile(log)
    for _ in range(50):
        append(log, "x" * 99)
        assert set(texts(tail.poll())) <= {"one"}
    append(log, "\ntwo\n")
    assert drained(tail) == ["(a line of more than 16 MiB)", "two"]


def test_a_pipe_ends_with_its_last_line_even_if_that_is_torn() -> None:
    out, into = os.pipe()
    tail = TailedStream(out)
    os.write(into, b"one\ntw")
    assert texts(tail.poll()) == ["one"]
    assert (texts(tail.poll()), tail.ended) == ([], False)
    os.close(into)
    assert (texts(tail.poll()), tail.ended) == (["tw"], True)
    os.close(out)


def numbered(*numbers: float) -> list[Whole]:
    return [Whole(nth, json.dumps({"at": number}).encode()) for nth, number in enumerate(numbers, 1)]


def through(window: Window, items: list[Whole]) -> list[str]:
    out = [each for item in items for each in window.put(item)]
    return [
        f"lost {each.number}" if isinstance(each, LostPlace) else str(each.number)
        for each in [*out, *window.flush()]
    ]


def test_lines_are_put_into_their_order_within_a_window() -> None:
    assert through(Window(2, "at"), numbered(2, 1, 3, 5, 4, 4)) == ["2", "1", "3", "5", "6", "4"]


def test_a_line_that_comes_too_late_is_reported_and_not_judged() -> None:
    assert through(Window(1, "at"), numbered(1, 3, 4, 2, 5)) == ["1", "2", "lost 4", "3", "5"]
    assert through(Window(3, "at"), [*numbered(1, 2), Whole(3, b'{"event": "end"}')]) == ["lost 3"]


def test_a_line_does_not_wait_for_others_for_long() -> None:
    now = [0.0]
    window = Window(10, "at", clock=lambda: now[0])
    assert [each for item in numbered(2, 1) for each in window.put(item)] == []
    assert [*window.overdue()] == []
    now[0] = 0.6
    assert [each.number for each in window.overdue()] == [2, 1]


ACCEPT = '{"event": "accept", "session": "s", "run": "a"}\n'
POISONED = '{"event": "complete", "run": "a", "cancelled": true}\n'
RIGHT = '{"event": "complete", "run": "a", "cancelled": false}\n'


def test_a_truncation_makes_every_session_unknown(tmp_path: Path) -> None:
    """The ids of the runs may come again: another process may have begun another recording."""
    path = tmp_path / "log.jsonl"
    path.write_text(ACCEPT + RIGHT)
    monitor, found, steps = Monitor(), list[Any](), iter(range(100))

    def stopped() -> bool:
        step = next(steps)
        if step == 3:
            os.truncate(path, 0)
        if step == 5:
            append(path, ACCEPT + RIGHT)
        return step == 8

    follow(TailedFile(path), monitor, found.append, stopped=stopped)
    assert len(found) == 1
    assert "truncated" in found[0].what
    assert (monitor.figures.restarts, monitor.figures.accepted) == (1, 2)


def follows(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start the command, with its output in pipes."""
    command = [sys.executable, "-m", "turngate", "trace", "--follow", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.PIPE, text=True, **options
    )


def line_of(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM"])
def test_a_violation_is_said_at_once_and_a_signal_ends_with_a_summary(tmp_path: Path, how: str) -> None:
    path, figures = tmp_path / "log.jsonl", tmp_path / "turngate.prom"
    path.write_text("")
    with follows(str(path), "--metrics-file", str(figures)) as process:
        until(figures.exists)
        append(path, ACCEPT + POISONED[:20])
        append(path, POISONED[20:])
        assert line_of(process.stdout).startswith(
            "session s, line 2: NEVER_POISONED: no cancel has come since a"
        )
        assert [line_of(process.stdout).split()[0] for _ in range(2)] == ["1", "2"]
        until(lambda: 'violations_total{property="NEVER_POISONED"} 1' in figures.read_text())
        process.send_signal(getattr(signal, how))
        out, errors = process.communicate(timeout=60)
    assert out.splitlines()[0] == "2 events, 1 run, 1 violation"
    assert out.splitlines()[-1] == "verdict: violated"
    assert (process.returncode, errors) == (1, "")
    assert "turngate_trace_events_total 2" in figures.read_text()


def test_standard_input_is_followed_to_its_end_with_json(tmp_path: Path) -> None:
    with follows("-", "--json", "--metrics-port", "0") as process:
        assert process.stdin is not None
        url = line_of(process.stderr).split()[-1]
        process.stdin.write(ACCEPT + POISONED)
        process.stdin.flush()
        told = json.loads(line_of(process.stdout))
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert 'turngate_trace_violations_total{property="NEVER_POISONED"} 1' in answer.read().decode()
        process.stdin.write("torn")
        out, errors = process.communicate(timeout=60)
    assert (told["session"], told["property"], told["line"]) == ("s", "NEVER_POISONED", 2)
    assert [each["line"] for each in told["history"]] == [1, 2]
    assert out == ""
    assert errors.splitlines()[0].startswith("line 3: not JSON")
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("lines", "code"), [(ACCEPT + RIGHT, 0), ("", 3), ("?\n", 3), (ACCEPT + POISONED, 1)]
)
def test_the_exit_code_says_what_was_seen(tmp_path: Path, lines: str, code: int) -> None:
    with follows("-") as process:
        process.communicate(lines, timeout=60)
    assert process.returncode == code


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--follow", "no-such-file"], "no-such-file: No such file or directory"),
        (["--follow", "a", "b"], "give one FILE to --follow"),
        (["--follow", "--intervals", "a"], "--follow excludes"),
        (["--follow", "--window", "5", "a"], "--window and --order-by go together"),
        (["--follow", "--order-by", "at", "a"], "--window and --order-by go together"),
        (["--from-end", "a"], "--from-end is for --follow only"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(["trace", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err


def test_a_port_that_is_taken_is_refused(capsys: pytest.CaptureFixture[str], log: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert run(["trace", "--follow", str(log), "--metrics-port", port]) == 2
    assert f"port {port} cannot be used" in capsys.readouterr().err


def test_a_named_pipe_is_followed(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with follows(str(pipe)) as process:
        pipe.write_text(ACCEPT + POISONED)
        process.communicate(timeout=60)
    assert process.returncode == 1


def test_the_figures_say_how_far_behind_the_monitor_is() -> None:
    out, into = os.pipe()
    monitor = Monitor()
    os.write(into, json.dumps({**json.loads(ACCEPT), "at": time.time() - 100}).encode() + b"\n")
    os.close(into)
    follow(TailedStream(out), monitor, lambda found: None)
    os.close(out)
    assert monitor.figures.lag_seconds is not None
    assert monitor.figures.lag_seconds > 99
    text = prometheus_text(monitor.figures)
    assert "turngate_trace_lag_bytes 0\n" in text
    assert "turngate_trace_accepted_total 1\n" in text
    assert text.count("# TYPE") == 11


def test_opentelemetry_observes_the_figures_if_it_is_installed() -> None:
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    monitor = Monitor()
    assert observe_by_opentelemetry(lambda: monitor.figures)
    for nth, line in enumerate((ACCEPT, POISONED), 1):
        monitor.judge(line, nth)
    read = reader.get_metrics_data()
    assert read is not None
    data = json.loads(read.to_json())
    found = {
        metric["name"]: metric["data"]["data_points"]
        for scope in data["resource_metrics"][0]["scope_metrics"]
        for metric in scope["metrics"]
    }
    assert found["turngate.trace.events"][0]["value"] == 2
    by_property = {
        each["attributes"]["property"]: each["value"] for each in found["turngate.trace.violations"]
    }
    assert by_property["NEVER_POISONED"] == 1
