"""openai-agents behind Turngate: `Dispatcher(runner(Agent(name="...", tools=[...])))`.

The text streams as the provider sends it. Follow-ups are folded in when tools have returned: the run stops
before it asks the provider again, takes them in, and goes on. The items of the turn are kept beside its
text, so Turngate's history is the only one: give the run no session of its own. A tool call that a cancel
left without its output is given one.

A tool that is not `async def` runs in a thread, and no cancel stops a thread: it goes on after its turn is
over.
"""

from typing import Any

from agents import Agent, RunResultStreaming
from agents import Runner as Agents

from turngate import Runner, Turn
from turns import earlier, in_peace


def runner(agent: Agent[None]) -> Runner:
    """Return a runner that has the agent answer each turn."""
    return lambda turn: in_peace(turn, answer(agent, turn))


async def answer(agent: Agent[None], turn: Turn) -> None:
    """Go on as long as there is something to take in, and keep the result."""
    history = await past(turn)
    items: list[Any] = [{"role": "user", "content": turn.run.prompt}]
    result = Agents.run_streamed(agent, history + items)
    try:
        while await stopped_to_fold(result, turn, items):
            state = result.to_state()
            for each in turn.waiting():  # one that is refused raises, and has a turn of its own
                state.add_input(each.prompt)
            items += [{"role": "user", "content": each.prompt} for each in await turn.fold()]
            result = Agents.run_streamed(agent, state)
    finally:
        last = {item["call_id"]: item["type"] for item in items if "call_id" in item}
        output = {"type": "function_call_output", "output": "cancelled before it returned"}
        items += [{**output, "call_id": call} for call, kind in last.items() if kind == "function_call"]
        turn.keep(items)


async def stopped_to_fold(result: RunResultStreaming, turn: Turn, items: list[Any]) -> bool:
    """Stream and note what the run does; stop it when tools have returned and a follow-up waits to join."""
    said = ""
    try:
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                turn.write(event.data.delta)
                said += event.data.delta
            elif event.type == "run_item_stream_event":
                items.append(event.item.to_input_item())
                said = "" if event.name == "message_output_created" else said
                if event.name == "tool_output" and turn.waiting():
                    result.cancel("after_turn")
    finally:
        items += [{"role": "assistant", "content": said}] if said else []
    return result.final_output is None


async def past(turn: Turn) -> list[Any]:
    """Return what earlier turns kept; of one that kept nothing there are its prompts and its text."""
    items: list[Any] = []
    for each in await earlier(turn):
        asked = [{"role": "user", "content": prompt.text} for prompt in each.prompts]
        said = [{"role": "assistant", "content": each.text}] if each.text else []
        items += each.data or asked + said
    return items
