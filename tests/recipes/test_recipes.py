"""The recipes of examples/agents/: each is cancelled at every moment, and answers the next prompt rightly."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
import types

import pytest

from conversing import FIRST, FOLLOW_UP, SECOND, SESSION, Recipe, begin, go_on, see_it_answered, sweep
from scripted import Heard, Malformed, Script, check
from surroundings import ROOT, insist_on_package
from turngate import Dispatcher

PACKAGES = {
    "pydantic_ai": "pydantic_ai",
    "openai_agents": "agents",
    "langgraph": "langgraph",
    "claude_agent": "claude_agent_sdk",
}
FOLDING = ["pydantic_ai", "openai_agents", "langgraph"]
PARTS = 4


def recipe(name: str) -> Recipe:
    """Return a recipe whose library is installed."""
    insist_on_package(PACKAGES[name])
    scripted = importlib.import_module(f"of_{name}")
    return Recipe(scripted.make, scripted.LEAVES)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("follow_up", [False, True], ids=["alone", "with-a-follow-up"])
@pytest.mark.parametrize("name", PACKAGES)
def test_a_cancel_after_any_step_leaves_a_session_that_answers(name: str, follow_up: bool, part: int) -> None:
    steps, cancels = sweep(recipe(name), follow_up=follow_up, part=part, parts=PARTS)
    assert cancels >= 2 * (steps // PARTS) > 0


@pytest.mark.deep
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", PACKAGES)
def test_so_do_two_cancels_after_any_two_steps(name: str, part: int) -> None:
    sweep(recipe(name), follow_up=True, part=part, parts=PARTS, every_gap=True)


@pytest.mark.parametrize("name", FOLDING)
def test_a_follow_up_joins_the_turn_where_the_library_has_a_place_for_it(name: str) -> None:
    tried = recipe(name)
    told = go_on(tried, begin(tried), follow_up=True)
    assert told.follow_up is not None
    assert told.follow_up.folded_into == told.second.run_id
    assert told.follow_up.text == told.second.text == f"let me see. answer to: {FOLLOW_UP}"


def test_claude_answers_a_follow_up_in_a_turn_of_its_own() -> None:
    tried = recipe("claude_agent")
    told = go_on(tried, begin(tried), follow_up=True)
    assert told.follow_up is not None
    assert told.follow_up.folded_into is None
    assert (told.second.text, told.follow_up.text) == (
        f"let me see. answer to: {SECOND}",
        f"answer to: {FOLLOW_UP}",
    )


@pytest.mark.parametrize("name", FOLDING)
def test_a_tool_in_a_thread_goes_on_after_its_turn_is_over(name: str) -> None:
    tried = recipe(name)
    script, begun, let_go, ended = Script(), threading.Event(), threading.Event(), threading.Event()

    def look_up(subject: str) -> str:
        begun.set()
        let_go.wait()
        script.looked_up.append(subject)
        ended.set()
        return f"all about {subject}"

    async def main() -> None:
        async with Dispatcher(tried.make(script, look_up)) as d:
            run = await d.submit(SESSION, SECOND)
            await asyncio.to_thread(begun.wait)
            await d.cancel(SESSION)
            complete = await run
            assert complete.cancelled
            assert not ended.is_set()
            let_go.set()
            await asyncio.to_thread(ended.wait)
            await see_it_answered(d, script)

    asyncio.run(main())
    assert script.looked_up == ["cake", "soup"]


LONGEST = 50


@pytest.mark.parametrize("name", [*(f"{name}_runner" for name in PACKAGES), "turns"])
def test_a_recipe_can_be_seen_at_once(name: str) -> None:
    source = (ROOT / "examples" / "agents" / f"{name}.py").read_text(encoding="utf-8")
    code = source[
        min(source.index(f"\n{word} ") for word in ("def", "class", "async") if f"\n{word} " in source) :
    ]
    assert sum(bool(line.strip()) for line in code.splitlines()) <= LONGEST


# The sweeps must be able to fail.

SPOILED = [
    ("pydantic_ai", "repair_messages(new)", "new", "unprocessed tool calls"),
    ("pydantic_ai", "turn.runs[taken:]", "turn.runs", "twice"),
    ("pydantic_ai", "turn.runs[taken:]", "[]", "look up cake"),
    ("openai_agents", 'if kind == "function_call"', "if False", "no return"),
    ("langgraph", "for call in calls]", "for call in []]", "no return"),
    ("claude_agent", "await claude.interrupt()", "pass", "went on"),
    ("claude_agent", "if not turn.covered:", "if True:", "went on"),
    ("claude_agent", "*transcript.missed.values(), ", "", "look up cake"),
]


@pytest.mark.parametrize(("name", "what", "instead", "noticed"), SPOILED)
def test_a_recipe_that_is_spoiled_is_found_out(
    name: str, what: str, instead: str, noticed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    insist_on_package(PACKAGES[name])
    source = (ROOT / "examples" / "agents" / f"{name}_runner.py").read_text(encoding="utf-8")
    assert what in source
    spoiled = types.ModuleType(f"{name}_runner")
    exec(source.replace(what, instead), spoiled.__dict__)
    tried = recipe(name)
    monkeypatch.setattr(sys.modules[f"of_{name}"], "runner", spoiled.runner)
    with pytest.raises(AssertionError, match=noticed):
        sweep(tried, follow_up=False)


# The script must be able to refuse.

USER, CALL, RETURN = Heard("user", FIRST), Heard("call", "c"), Heard("return", "c")


@pytest.mark.parametrize(
    "history",
    [
        [],
        [USER, CALL],
        [USER, CALL, Heard("user", SECOND)],
        [USER, CALL, Heard("assistant", "well"), RETURN],
        [USER, RETURN],
        [USER, CALL, RETURN, RETURN],
        [USER, CALL, RETURN, CALL, RETURN],
        [USER, USER],
        [USER, Heard("assistant", "well")],
    ],
    ids=str,
)
def test_the_script_refuses_a_history_that_no_provider_would_take(history: list[Heard]) -> None:
    with pytest.raises(Malformed):
        check(history)
    check([USER, CALL, RETURN, Heard("assistant", "well"), Heard("user", SECOND)])
