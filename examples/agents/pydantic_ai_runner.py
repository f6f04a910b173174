"""pydantic-ai behind Turngate: `Dispatcher(runner(Agent("provider:model", tools=[...])))`.

The text streams as the provider sends it. Follow-ups are folded in at each node of the run. What the turn
added to pydantic-ai's messages is kept with its text, so Turngate's history is the only one; a tool call
that a cancel left without its return is given one.

A tool that is not `async def` runs in a thread, and no cancel stops a thread: it goes on after its turn is
over.
"""

from pydantic_ai import Agent, ModelMessage, ModelMessagesTypeAdapter, ModelRequest, ModelResponse, TextPart
from pydantic_ai.messages import UserPromptPart, repair_messages
from pydantic_graph import End

from turngate import Runner, Turn
from turns import earlier, in_peace


def runner(agent: Agent[None, str]) -> Runner:
    """Return a runner that has the agent answer each turn."""
    return lambda turn: in_peace(turn, answer(agent, turn))


async def answer(agent: Agent[None, str], turn: Turn) -> None:
    """Go from node to node, take in at each what has been sent meanwhile, and keep the result."""
    async with agent.iter(turn.run.prompt, message_history=await past(turn)) as run:
        try:
            async for node in run:
                for follow_up in [] if isinstance(node, End) else await turn.fold():
                    run.enqueue(follow_up.prompt)
                if Agent.is_model_request_node(node):
                    async with node.stream(run.ctx) as stream:
                        async for text in stream.stream_text(delta=True, debounce_by=None):
                            turn.write(text)
        finally:
            new = run.new_messages()
            taken = sum(isinstance(part, UserPromptPart) for message in new for part in message.parts)
            new += [ModelRequest.user_text_prompt(each.prompt) for each in turn.runs[taken:]]
            turn.keep(ModelMessagesTypeAdapter.dump_python(repair_messages(new), mode="json"))


async def past(turn: Turn) -> list[ModelMessage]:
    """Return what earlier turns kept; of one that kept nothing there are its prompts and its text."""
    messages: list[ModelMessage] = []
    for each in await earlier(turn):
        if each.data is not None:
            messages += ModelMessagesTypeAdapter.validate_python(each.data)
        else:
            messages += [ModelRequest.user_text_prompt(prompt.text) for prompt in each.prompts]
            messages += [ModelResponse([TextPart(each.text)])] if each.text else []
    return messages
