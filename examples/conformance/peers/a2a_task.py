"""a2a-sdk: a session is a context, a follow-up goes to the context's open task, a cancel cancels that task.

A turn that ends well leaves its task in input-required; a task that is over is followed by a new one.
Check it with: turngate conform examples/conformance/peers/a2a_task.py:A2ASubject
"""

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as a2a

from turngate_verify.conform import AsyncioSubject

CANCELED, FAILED = a2a.TaskState.TASK_STATE_CANCELED, a2a.TaskState.TASK_STATE_FAILED


class Executor(AgentExecutor):
    def __init__(self, subject: "A2ASubject") -> None:
        self.subject = subject

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        if not context.current_task:
            await event_queue.enqueue_event(a2a.Task(id=context.task_id, context_id=context.context_id))
        self.subject.task_of[context.context_id] = context.task_id
        await updater.start_work()
        await self.subject.runner(context.message.message_id)
        await updater.requires_input()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


class A2ASubject(AsyncioSubject):
    def start(self) -> None:
        self.task_of, self.store = dict[str, str](), InMemoryTaskStore()
        self.handler = DefaultRequestHandler(Executor(self), self.store, a2a.AgentCard(name="peer"))

    async def open_task(self, session: str) -> str:
        task = await self.store.get(self.task_of.get(session, ""), ServerCallContext())
        return task.id if task and task.status.state not in (CANCELED, FAILED) else ""

    async def do_accept(self, session: str, run: str) -> None:
        asked = a2a.Message(message_id=run, context_id=session, role=a2a.Role.ROLE_USER)
        asked.task_id = await self.open_task(session)
        asked.parts.append(a2a.Part(text=run))
        try:
            got = await self.handler.on_message_send(
                a2a.SendMessageRequest(message=asked), ServerCallContext()
            )
        except Exception as error:  # what the caller is told
            return self.completed(run, error=repr(error))
        return self.completed(
            run, cancelled=got.status.state == CANCELED, error="failed" * (got.status.state == FAILED) or None
        )

    async def do_cancel(self, session: str) -> None:
        if task := await self.open_task(session):
            await self.handler.on_cancel_task(a2a.CancelTaskRequest(id=task), ServerCallContext())
