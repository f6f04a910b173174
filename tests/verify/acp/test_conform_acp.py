"""``turngate conform --acp``: what it prints, its exit codes, and what it says of what is no agent."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

import jsonschema_rs
import pytest

from acp_judging import flawed, processes_in
from surroundings import ROOT
from turngate_verify.cli import run
from turngate_verify.conform.result import UNTESTED

WIRE_ALONE = ("--programs", "0", "--examples", "0", "--max-seconds", "1", "--grace", "20")
SCHEMA = ROOT / "verify" / "turngate_verify" / "pipeline" / "schemas" / "conform.schema.json"


def conform(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["conform", "--acp", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_finding_on_the_wire_is_printed_and_can_be_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    replay = ("--replay", "wire cancel asked", "--", *flawed("end-turn-to-a-cancel"))
    code, out, _ = conform(capsys, *replay)
    assert code == 1
    assert "FULL_COVERAGE         violated" in out
    assert "   1  accept a, and, when the model is asked,: a is active\n" in out
    assert "   2  cancel: RunComplete of a: finished\n" in out
    assert "  but a is answered end_turn: a prompt that is cancelled is answered cancelled\n" in out
    assert "  replay: turngate conform --acp --replay 'wire cancel asked' -- " in out


def test_one_scenario_says_nothing_of_what_was_not_tried(capsys: pytest.CaptureFixture[str]) -> None:
    """Not even why: what happens behind a busy session is not found out for one scenario."""
    _, out, _ = conform(capsys, "--replay", "wire prompt", "--json", "--", *flawed())
    told = json.loads(out)["properties"]
    assert told["FIFO"]["why"] == told["IDLE_CANCEL"]["why"]


def test_a_sound_agent_in_one_round(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = conform(capsys, *WIRE_ALONE, "--json", "--", *flawed())
    told = json.loads(out)
    jsonschema_rs.validate(json.loads(SCHEMA.read_text(encoding="utf-8")), told)
    assert (code, err, told["problems"]) == (3, "", [])  # no program was played: some things stay open
    verdicts = {each: said["verdict"] for each, said in told["properties"].items()}
    assert {*verdicts.values()} == {"holds", "unknown"}
    for each in ("FULL_COVERAGE", "NEVER_POISONED", "EXACTLY_ONE_COMPLETE", "LAST_WORD", "ISOLATION"):
        assert told["properties"][each]["checks"]["wire"]["scenarios"] > 0
    assert told["notes"] == ["the model is asked over OpenAI chat completions"]


def test_without_the_stub_only_the_wire_is_judged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "agent.py").write_text(ECHO, encoding="utf-8")
    code, out, _ = conform(
        capsys, *WIRE_ALONE, "--no-stub", "--json", "--", sys.executable, str(tmp_path / "agent.py")
    )
    told = json.loads(out)["properties"]
    assert code == 3  # it never says cancelled, and it may be that it was always done before
    assert told["FULL_COVERAGE"]["why"] == UNTESTED
    assert told["EXACTLY_ONE_COMPLETE"]["verdict"] == "holds"
    assert told["FIFO"]["verdict"] == "unknown"
    assert "stub" in told["FIFO"]["why"]
    assert (tmp_path / "home").read_text(encoding="utf-8") == str(tmp_path)  # its own settings are in force


ECHO = """
import json, os, pathlib, sys
pathlib.Path(os.environ["HOME"], "home").write_text(os.environ["HOME"])
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        result = {"protocolVersion": 1, "sessionId": str(asked["id"]), "stopReason": "end_turn"}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""
TWO_VERSIONS = ECHO.replace('"protocolVersion": 1', '"protocolVersion": 2')
NO_SESSIONS = ECHO.replace(
    'result = {"p', 'error = asked["method"] == "session/new"\n        result = {"p'
).replace(
    '"result": result',
    '**({"error": {"code": -32000, "message": "log in"}} if error else {"result": result})',
)
SILENT = "import sys; [None for line in sys.stdin]"
DIES = "import sys; print('it hurts', file=sys.stderr); sys.exit(4)"
ECHOES = "import sys; [print(line, end='', flush=True) for line in sys.stdin]"
TALKS = "while True: print('hello')"
FLOODS = "import os\nwhile True: os.write(1, b'hello\\n' * 10_000)"
LISTS = """
import sys
sys.stdin.readline()
print('{"jsonrpc": "2.0", "id": 1, "result": []}')
"""
THROWS = r"""
import sys
sys.stderr.write('file:///a/agent.mjs:7\nnew Agent();\n^\n\nTypeError: Agent is not a constructor\n')
sys.exit('    at file:///a/agent.mjs:7:1\n\nNode.js v20.20.2')
"""


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (DIES, "it died, with exit code 4 (it complains: it hurts)"),
        (SILENT, "it hangs: no answer to initialize within 3 s"),
        (ECHOES, 'it does not speak ACP: it printed \'{"jsonrpc"'),
        (TALKS, "it does not speak ACP: it printed 'hello'"),
        (FLOODS, "it does not speak ACP: it printed 'hello'"),
        (LISTS, "it answers initialize with []"),
        (THROWS, "it died, with exit code 1 (it complains: TypeError: Agent is not a constructor)"),
        ("print('hello')", "it does not speak ACP: it printed 'hello'"),
        (TWO_VERSIONS, "it does not speak version 1 of ACP: protocolVersion is 2"),
        (NO_SESSIONS, "it answers session/new with error -32000: log in"),
        (ECHO, "a prompt is answered end_turn, and the stub model at http://127.0.0.1:"),
    ],
    ids=[
        "dies",
        "hangs",
        "echoes",
        "talks on",
        "floods",
        "answers with a list",
        "throws",
        "talks",
        "speaks version 2",
        "wants a login",
        "knows no model",
    ],
)
def test_what_cannot_be_judged_gets_one_line(
    capsys: pytest.CaptureFixture[str], program: str, said: str
) -> None:
    code, out, err = conform(capsys, "--timeout", "0.5", "--", sys.executable, "-c", program)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(f"turngate: {said}")


def test_other_bad_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "agent"
    script.write_text("", encoding="utf-8")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for arguments, said in (
            (("--", "no-such-agent"), "there is no command no-such-agent"),
            (("--", str(script)), f"{script} cannot be run: Permission denied"),
            (("--stub-port", str(port), "--", "cat"), f"port {port} is already in use; choose another with"),
            (("--no-stub", "--stub-port", "1", "--", "cat"), "--stub-port and --home prepare a stub"),
            (("--workers", "2", "--", "cat"), "--acp takes '-- COMMAND...', and one worker"),
            (("a.py:A",), "--acp takes '-- COMMAND...', and one worker"),
            (("--doubt", "--", "cat"), "--doubt wraps an adapter, so it does not go with --acp"),
            (("--replay", "wire sleep", "--", "cat"), "'wire sleep' is no scenario; after 'wire' there is"),
            (
                ("--replay", "wire cancel now", "--", "cat"),
                "'wire cancel now' should be like 'wire cancel MOM",
            ),
        ):
            code, out, err = conform(capsys, *arguments)
            assert (code, out) == (2, "")
            assert said in err
    assert run(["conform", "--no-stub", "a.py:A"]) == 2
    assert "--stub-port, --no-stub and --home go with --acp" in capsys.readouterr().err


def test_an_agent_that_dies_later_is_not_judged_to_the_end(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    agent = tmp_path / "agent.py"
    said = Path(flawed()[1]).read_text(encoding="utf-8")
    dies = 'case "session/cancel":\n                sys.exit("no more")'
    agent.write_text(said.replace('case "session/cancel":', dies, 1), encoding="utf-8")
    code, out, _ = conform(capsys, *WIRE_ALONE, "--", sys.executable, str(agent))
    assert code == 3
    assert "exit code 1" in out
    assert "  ! no more\n" in out


def test_an_agent_that_dies_at_its_second_prompt_has_come_far_enough_to_be_judged(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    agent = tmp_path / "agent.py"
    said = Path(flawed()[1]).read_text(encoding="utf-8")
    dies = 'case "session/prompt":\n                if message["id"] > 3: sys.exit("no more")'
    agent.write_text(said.replace('case "session/prompt":', dies, 1), encoding="utf-8")
    code, out, err = conform(capsys, "--", sys.executable, str(agent))
    assert (code, err) == (3, "")
    assert "the subject could not be judged to the end: it died, with exit code 1" in out


def test_an_agent_that_dies_and_leaves_a_process_behind_does_not_keep_the_kit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """That process holds the standard output of the agent open, and is in no group of it."""
    agent = tmp_path / "agent.py"
    said = Path(flawed("dies-at-a-prompt")[1]).read_text(encoding="utf-8")
    leaves = f"""
    import subprocess
    from pathlib import Path
    stays = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path({str(tmp_path / "stays")!r}).write_text(str(stays.pid))
"""
    agent.write_text(said.replace("async def main() -> None:\n", f"async def main() -> None:{leaves}", 1))
    try:
        code, out, err = conform(capsys, "--", sys.executable, str(agent), "dies-at-a-prompt")
    finally:
        os.kill(int((tmp_path / "stays").read_text(encoding="utf-8")), signal.SIGKILL)
    assert (code, out) == (2, "")
    assert err == "turngate: it died, with exit code 1 (it complains: no more)\n"


def test_noise_is_noted_and_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = conform(capsys, "--replay", "wire cancel asked", "--", *flawed("prints-noise"))
    noise = "noted: lines on its standard output that are no messages, such as 'hello, I am an agent'"
    assert noise in " ".join(out.split())
    assert "violated" not in out


def test_it_has_a_home_of_its_own_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (mine := tmp_path / "mine").mkdir()
    (settings := tmp_path / "settings" / ".agent").mkdir(parents=True)
    (settings / "model").write_text("$STUB/v1", encoding="utf-8")
    agent = tmp_path / "agent.py"
    look = """
import pathlib
home = pathlib.Path(os.environ["HOME"])
assert str(home) != MINE and os.environ["XDG_CONFIG_HOME"] == str(home / ".config")
assert (home / ".agent" / "model").read_text() == os.environ["OPENAI_BASE_URL"]
assert os.environ["OPENAI_API_KEY"] == "turngate" and "AWS_SECRET" not in os.environ
pathlib.Path(MINE + ".seen").write_text(str(home.parent))
""".replace("MINE", repr(str(mine)))
    said = Path(flawed()[1]).read_text(encoding="utf-8")
    agent.write_text(said.replace("import uuid\n", f"import uuid\n{look}", 1), encoding="utf-8")
    for name, value in (("HOME", str(mine)), ("OPENAI_API_KEY", "secret"), ("AWS_SECRET", "secret")):
        monkeypatch.setenv(name, value)
    home = ("--home", str(tmp_path / "settings"))
    code, _, err = conform(capsys, *home, "--replay", "wire prompt", "--", sys.executable, str(agent))
    assert (code, err) == (3, "")  # one scenario is no verdict
    assert os.listdir(mine) == []
    folder = Path(Path(f"{mine}.seen").read_text(encoding="utf-8"))
    assert not folder.exists()
    assert processes_in(tmp_path) == []
