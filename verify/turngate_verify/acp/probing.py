"""Finding out about an agent what its protocol leaves open, before it is judged."""

from __future__ import annotations

import asyncio
from typing import Literal, NamedTuple, TypeAlias

from turngate_verify.acp.agent import AgentGone
from turngate_verify.acp.rig import Prompt, Rig
from turngate_verify.conform.port import SubjectFailed

Policy: TypeAlias = Literal["queue", "fold", "interrupt", "refuse", "parallel", "unanswered", "unknown"]
IN_WORDS: dict[Policy, str] = {
    "queue": "waits for its turn",
    "fold": "joins the turn that is active",
    "interrupt": "ends the turn that is active",
    "refuse": "is refused",
    "parallel": "runs beside the turn that is active",
    "unanswered": "is not answered",
    "unknown": "did not meet the same fate each time",
}
_SETTLES = 2.0
_POLL = 0.01
_PROBES = 2


class Unusable(SubjectFailed):
    """The agent does not come to the point where it could be judged."""


class Probed(NamedTuple):
    """What was found out."""

    policy: Policy | None
    """What happens to a prompt behind a busy session; None if that was not tried."""
    notes: list[str]


async def probe(rig: Rig, *, has_policy: bool = True) -> Probed:
    """Have an agent answer one prompt; find out what happens to a prompt behind a busy session, if asked to.

    Raises Unusable if it does not answer, or never asks the stub model. Once it has answered, an agent that
    fails is judged, as far as it gets.
    """
    session = await rig.open_session()
    notes = await _first_answer(rig, session)
    if rig.agent.noise:
        notes.append(f"lines on its standard output that are no messages, such as {rig.agent.first_noise!r}")
    if not has_policy:
        return Probed(None, notes)
    try:
        seen: set[Policy] = {await _behind_a_busy_session(rig) for _ in range(_PROBES)}
    except AgentGone:  # whatever is tried next says why
        return Probed(None, notes)
    policy: Policy = seen.pop() if len(seen) == 1 else "unknown"
    open_ = "" if policy == "unanswered" else ": the protocol does not say what it should do"
    notes.append(f"a prompt behind a busy session {IN_WORDS[policy]}{open_}")
    return Probed(policy, notes)


async def _first_answer(rig: Rig, session: str) -> list[str]:
    """Have one prompt answered, whatever the agent offers to the model, and learn which calls are turns."""
    prompt = rig.prompt(session, "a", lambda call: call.finish(prompt.reply))
    await rig.agent.wait(prompt.request.is_answered, rig.setting.starts)
    if not rig.setting.has_stub:
        return []
    if not prompt.calls and rig.stub.apis:
        rig.stub.needs_tools = False
        prompt = rig.prompt(session, "b", lambda call: call.finish(prompt.reply))
        await rig.agent.wait(prompt.request.is_answered, rig.setting.starts)
    if not prompt.calls:
        answered = prompt.request.outcome or "not at all"
        raise Unusable(
            f"a prompt is answered {answered}, and the stub model at {rig.stub.url} was never asked for it; "
            "give the agent its settings with --home, or use --no-stub",
            rig.agent.failed("").conversation,
        )
    tools = "" if rig.stub.needs_tools else "; it offers the model no tools"
    return [f"the model is asked over {', '.join(rig.stub.apis)}{tools}"]


async def _behind_a_busy_session(rig: Rig) -> Policy:
    """Send a prompt while another is at work, and see what happens to both."""
    session = await rig.open_session()
    a = rig.prompt(session, "a", lambda call: None)
    try:
        if not await _until(lambda: bool(a.calls), rig, rig.setting.grace):
            return "unknown"
        b = rig.prompt(session, "b", lambda call: None)
        try:
            return await _policy(rig, a, b)
        finally:
            b.release()
            await _over(rig, b)
    finally:
        a.release()
        await _over(rig, a)


async def _policy(rig: Rig, a: Prompt, b: Prompt) -> Policy:
    await _until(lambda: a.is_answered or b.is_answered or bool(b.calls), rig, _SETTLES)
    if a.is_answered:
        return "interrupt"
    if b.is_answered:
        return "refuse"
    if b.calls:
        # A turn that was interrupted may be answered only now.
        await _until(lambda: a.is_answered, rig, _SETTLES)
        return "interrupt" if a.is_answered or not a.open_calls else "parallel"
    a.release()
    await _until(lambda: b.is_answered or bool(b.calls), rig, rig.setting.grace)
    if not b.calls:
        return "fold" if b.is_answered else "unanswered"
    await _until(lambda: a.is_answered, rig, _SETTLES)
    return "queue" if a.is_answered else "fold"


async def _over(rig: Rig, prompt: Prompt) -> None:
    await _until(lambda: prompt.is_answered, rig, rig.setting.grace)


async def _until(is_so: object, rig: Rig, seconds: float) -> bool:
    """Wait until something is so; return whether it is."""
    assert callable(is_so)
    until = asyncio.get_running_loop().time() + seconds
    while not is_so() and asyncio.get_running_loop().time() < until:
        rig.agent.check()
        await asyncio.sleep(_POLL)
    return bool(is_so())
