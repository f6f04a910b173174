"""The end of a closed world: every run completes, and nothing may be owed or left over."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from turngate import State, TurngateError
from turngate_model import Property
from turngate_verify.world.expecting import expect
from turngate_verify.world.followers import CompletionsFollower, MessagesFollower, TextFollower
from turngate_verify.world.onlookers import read_text

if TYPE_CHECKING:
    from turngate_verify.world.world import World

_MOST_ROUNDS = 200
"""A world that has not ended after this many rounds counts as endless."""


def finish(world: World) -> None:
    """Let runners, writes and time go on, close the dispatcher, and check the world before and after that."""
    come_to_rest(world)
    world.check()
    for abstract in world.monitor.sessions.values():
        world.monitor.violations += abstract.owed()
    closing = world.close()
    come_to_rest(world, closing)
    world.check()
    _expect_all_complete(world)
    if not world.monitor.violations:
        # After a violation, what is left over may only be a consequence of it.
        _expect_nothing_left(world, closing)
    for session in world.monitor.sessions:
        _expect_right_messages(world, session)
    _expect_one_answer(world)
    if not world.monitor.claimed:
        _expect_right_streams(world)
    world.monitor.raise_what_is_broken()


def come_to_rest(world: World, closing: asyncio.Task[None] | None = None) -> None:
    """Run callbacks and resume what waits, one by one, until nothing waits or the close has ended."""
    for _ in range(_MOST_ROUNDS):
        world.loop.settle()
        if (closing is not None and closing.done()) or not _go_on(world):
            break


def _go_on(world: World) -> bool:
    """Let one runner, write, left-over task or timer that waits go on; return False if none waits."""
    for player in world.runner.players.values():
        if player.cleans_up:
            player.cleaned_up()
        else:
            player.tell("finish", None)
        return True
    for door in world.store.waiting:
        if not door.done():
            door.set_result(None)
            return True
    for left in world.runner.left:
        if left.waits:
            left.act()
            return True
    if world.loop.next_timer() is not None:
        world.pass_time(3_600.0)
        return True
    return False


def end_tasks(world: World) -> None:
    """Cancel every task of a world that may be broken until it ends, so that none complains later."""
    for _ in range(100):
        left = [task for task in world.loop.tasks if not task.done()]
        if not left:
            break
        for player in world.runner.players.values():
            player.swallows = 0
        for task in left:
            task.cancel()
        with suppress(Exception):
            world.loop.settle()
    for task in world.loop.tasks:
        if task.done() and not task.cancelled():
            task.exception()


def _expect_all_complete(world: World) -> None:
    """Expect that every run is complete, and that the dispatcher holds no session."""
    for run in world.runs.values():
        if run.state is not State.COMPLETE:
            owed = f"{run.run_id} is {run.state} when the dispatcher is closed: it is owed a RunComplete"
            world.monitor.violate(Property.EXACTLY_ONE_COMPLETE, owed)
    if sessions := [*world.dispatcher._sessions.cores.values()]:
        held = f"the dispatcher holds {sessions} of quiet sessions: it should hold nothing"
        world.monitor.violate(Property.NO_RESIDUE, held)


def _expect_nothing_left(world: World, closing: asyncio.Task[None]) -> None:
    """Expect that the close and the recording have ended, and every task has ended well."""
    expect(closing.done(), "the dispatcher does not close")
    expect(world.monitor.ended, "the recording has no end")
    left = [task.get_name() for task in world.loop.tasks if not task.done()]
    expect(not left, f"tasks are left behind: {', '.join(left)}")
    for task in world.loop.tasks:
        _expect_ended_well(world, task)


def _expect_ended_well(world: World, task: asyncio.Task[Any]) -> None:
    """Expect that a task raised nothing but a refusal, and that its exception was retrieved."""
    unseen = task._log_traceback  # read first, because asking for the exception resets it
    exc = None if task.cancelled() else task.exception()
    if exc is not None:
        name = task.get_name()
        expect(task in world.waits or not unseen, f"no one retrieved what {name} has raised: {exc!r}")
        expect(isinstance(exc, TurngateError), f"{name} died of {exc!r}")


def _expect_one_answer(world: World) -> None:
    """Expect waiting callers, handles and the dispatcher to agree with what was published."""
    monitor = world.monitor
    for task, run_id in world.waits.items():
        told = task.done() and not task.cancelled() and not task.exception()
        if told and task.result() != monitor.published.get(run_id):
            other = f"who waited for {run_id} was told {task.result()}: it should be what was published"
            monitor.violate(Property.TERMINAL_IS_FINAL, other)
    for seq, told_of in monitor.called_back.items():
        if not monitor.claimed:
            expect(len(told_of) == 1, f"the done callback of the run with sequence {seq} got {told_of}")
    for run_id, complete in monitor.published.items():
        if told_of := monitor.called_back.get(complete.seq, []):
            expect(monitor.claimed or told_of == [complete], f"{run_id} called back with {told_of}")
        if run_id in world.runs and world.runs[run_id].complete != complete:
            changed = f"the handle of {run_id} does not say what was published: it should never change"
            monitor.violate(Property.TERMINAL_IS_FINAL, changed)
        kept = run_id in world.dispatcher._completions
        if kept and world.loop.call(world.dispatcher.wait(run_id)) != complete:
            changed = f"the outcome of {run_id} is not what was published: it should never change"
            monitor.violate(Property.TERMINAL_IS_FINAL, changed)


def _expect_right_streams(world: World) -> None:
    """Expect a stream of a complete run to give what its turn has written, from any offset."""
    monitor = world.monitor
    for run_id, complete in monitor.published.items():
        if run_id in world.runs:
            should = monitor.should_stream(complete)
            for start in (0, 1, len(should)):
                text = read_text(world.loop, world.dispatcher, run_id, start)
                expect(text in (None, should[start:]), f"a stream of {run_id} from {start} gives {text!r}")
    for follower in world.followers:
        follower.read_rest(world.loop)
        if isinstance(follower, TextFollower) and follower.run.complete is not None:
            follower.expect_text(monitor.should_stream(follower.run.complete))
        elif isinstance(follower, CompletionsFollower):
            expect(not follower.wrong, "; ".join(follower.wrong))
            told = {complete.seq: complete for complete in monitor.published.values()}
            for complete in follower.read_so_far:
                expect(complete == told[complete.seq], f"among the completions is {complete}")
        elif isinstance(follower, MessagesFollower):
            wrong = follower.wrong_about(world.loop.call(world.store.list(follower.session)))
            expect(not wrong, wrong)


def _expect_right_messages(world: World, session: str) -> None:
    """Expect the store to agree with each RunComplete: a prompt and a reply, or nothing."""
    monitor = world.monitor
    messages = world.loop.call(world.store.list(session))
    users = Counter(message.run_id for message in messages if message.role == "user")
    replies = Counter(message.id for message in messages if message.role == "assistant")
    reasons = {message.id: message.finish_reason for message in messages}
    kept = {message.id: message.data for message in messages}
    for run_id, complete in monitor.published.items():
        if complete.session_id != session:
            continue
        if run_id in world.runs and not monitor.claimed:
            world.messages_of(run_id)
        if run_id in monitor.active and complete.message_id is not None:
            once = users[run_id] == 1 and replies[complete.message_id] == 1
            if not once or (complete.cancelled and reasons[complete.message_id] != "canceled"):
                wrong = f"{run_id} should have one user message and one reply that says how it ended"
                monitor.violate(Property.ON_RECORD, wrong)
            should = monitor.should_keep(complete)
            data = kept.get(complete.message_id)
            expect(monitor.claimed or data == should, f"beside the reply to {run_id} is {data}, not {should}")
        elif run_id in monitor.entered - monitor.active and users[run_id]:
            wrong = f"{run_id} was dropped from the queue, and should leave no message"
            monitor.violate(Property.ON_RECORD, wrong)
