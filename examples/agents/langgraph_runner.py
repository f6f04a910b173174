"""LangGraph behind Turngate: `Dispatcher(runner(init_chat_model("provider:model"), [tools...]))`.

The text streams as the provider sends it. Follow-ups are folded in where the agent node is about to ask the
provider. The messages of the turn are kept with its text, so Turngate's history is the only one:
checkpoints live as long as the turn, and tell how far it came when it is cancelled. A tool call that a
cancel left without its return is given one.

A tool that is not `async def` runs in a thread, and no cancel stops a thread: it goes on after its turn is
over.
"""

from collections.abc import Sequence
from typing import Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    HumanMessage,
    ToolMessage,
    messages_from_dict,
    messages_to_dict,
)
from langchain_core.tools import BaseTool
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.runtime import Runtime

from turngate import Runner, Turn
from turns import earlier, in_peace


class Context(TypedDict):
    """What the nodes are given beside the messages."""

    turn: Turn


def runner(model: BaseChatModel, tools: Sequence[BaseTool]) -> Runner:
    """Return a runner that has an agent with these tools answer each turn."""
    provider = model.bind_tools(tools)

    async def agent(state: MessagesState, runtime: Runtime[Context]) -> dict[str, Any]:
        joining = [HumanMessage(run.prompt) for run in await runtime.context["turn"].fold()]
        return {"messages": [*joining, await provider.ainvoke([*state["messages"], *joining])]}

    graph = StateGraph(MessagesState, Context).add_node("agent", agent).add_node("tools", ToolNode(tools))
    graph.add_edge(START, "agent").add_edge("tools", "agent").add_conditional_edges("agent", tools_condition)
    compiled = graph.compile(checkpointer=InMemorySaver())
    return lambda turn: in_peace(turn, answer(compiled, turn))


async def answer(graph: Any, turn: Turn) -> None:
    """Stream what the agent says, and keep the result."""
    history = await past(turn)
    start = {"messages": [*history, HumanMessage(turn.run.prompt)]}
    config = {"configurable": {"thread_id": turn.run.run_id}}
    streamed = {"context": {"turn": turn}, "stream_mode": "messages", "durability": "sync"}
    said = ""
    try:
        async for chunk, _ in graph.astream(start, config, **streamed):
            if isinstance(chunk, AIMessageChunk):
                turn.write(chunk.text)
                said += chunk.text
    finally:
        new = how_far(await graph.checkpointer.aget_tuple(config))[len(history) :]
        await graph.checkpointer.adelete_thread(turn.run.run_id)
        taken = sum(isinstance(message, HumanMessage) for message in new)
        new += [HumanMessage(run.prompt) for run in turn.runs[taken:]]
        unfinished = said.removeprefix("".join(each.text for each in new if isinstance(each, AIMessage)))
        turn.keep(messages_to_dict([*new, *([AIMessage(unfinished)] if unfinished else [])]))


def how_far(saved: CheckpointTuple | None) -> list[AnyMessage]:
    """Return the messages of a raw checkpoint, also those not applied yet, each tool call with a return."""
    messages = [*saved.checkpoint["channel_values"].get("messages", [])] if saved else []
    for _, channel, value in (saved and saved.pending_writes) or []:
        messages += value if channel == "messages" else []
    calls = {call["id"] for each in messages if isinstance(each, AIMessage) for call in each.tool_calls}
    calls -= {each.tool_call_id for each in messages if isinstance(each, ToolMessage)}
    return messages + [ToolMessage("cancelled before it returned", tool_call_id=call) for call in calls]


async def past(turn: Turn) -> list[Any]:
    """Return what earlier turns kept; of one that kept nothing there are its prompts and its text."""
    messages: list[Any] = []
    for each in await earlier(turn):
        asked = [HumanMessage(prompt.text) for prompt in each.prompts]
        said = [AIMessage(each.text)] if each.text else []
        messages += [*asked, *said] if each.data is None else messages_from_dict(each.data)
    return messages
