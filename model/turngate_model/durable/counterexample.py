"""A counterexample among processes: who did what, in what order, and what should have been."""

from __future__ import annotations

from typing import NamedTuple

from turngate_model.checker.counterexample import consequences
from turngate_model.checker.remembered import remembered
from turngate_model.durable.mechanism import DurableStep
from turngate_model.durable.records import NOBODY, Operation, Process, Worker, World
from turngate_model.durable.sessions import Sessions
from turngate_model.properties import AnyProperty


class DurableCounterexample(NamedTuple):
    """The shortest way to break a property."""

    property: AnyProperty
    what: str
    steps: tuple[str, ...]
    states: tuple[dict[str, str], ...] = ()
    """After each step, what the ledger holds and what the processes have in hand, in words."""

    def told(self) -> list[str]:
        """Return the steps in words."""
        return list(self.steps)


def seen(world: World, sessions: Sessions, called: list[int]) -> dict[str, str]:
    """Say what the ledger holds and what each process has in hand; ``called`` is what readers call them."""

    def who(worker: Worker) -> str:
        return f"P{called[worker - 1]}" if worker > NOBODY else "a process that is gone"

    ledger = world.ledger
    told = {f"ledger: {name}": said for name, said in remembered(sessions.held(ledger.session)).items()}
    if ledger.owner != NOBODY:
        told["ledger: owner"] = who(ledger.owner)
    told |= {f"ledger: holder of {run}": who(worker) for run, worker in ledger.holders}
    for number, process in sorted(zip(called, world.processes, strict=True)):
        told[f"P{number}"] = _process(process)
    abstract = sessions.abstract(ledger.session)
    for run, state in abstract.states.items():
        told[f"run {run}"] = f"{state}, covered" if run in abstract.covered else str(state)
    return told


def _process(process: Process) -> str:
    """Say what a process has in hand."""
    has = ["up" if process.up else "dead"]
    if process.given_up:
        has.append("given up for dead, and does not know")
    phases = {"due": "is to call the runner for", "running": "runs", "returned": "has the result of"}
    has += [f"{phases[call.phase]} {call.lead}" for call in process.calls]
    if process.loaded:
        has.append(f"has loaded the session to {_doing(process.loaded.operation)}")
    if process.unanswered:
        has.append("waits for an answer that is lost")
    return ", ".join(has)


_WITHOUT_OPERATION = {
    "comes back": "comes back, under a new name",
    "comes back as it was": "comes back, under its old name",
    "bury": "the dead process is given up",
    "everyone dies": "every process dies",
    "dies": "dies",
    "is given up": "is given up for dead, and lives",
    "notices": "notices that it was given up, and takes a new name",
    "goes on as it was": "notices that it was given up, and goes on under its old name",
    "learns": "asks, and learns that its step was saved",
    "cannot learn": "cannot learn what became of its step, and takes a new name",
    "is notified": "is notified of the cancel",
}


def told(step: DurableStep, sessions: Sessions, who: int) -> str:
    """Say a step in domain words; ``who`` is the process as the reader knows it."""
    process = f"P{who} " if who else ""
    if step.operation is None:
        return process + _WITHOUT_OPERATION[step.what]
    doing = _doing(step.operation)
    match step.what:
        case "loads":
            return f"{process}loads the session to {doing}, and others come first"
        case "calls":
            return f"{process}calls the runner for {step.operation.run}"
        case "too late":
            return f"{process}does not call the runner for {step.operation.run}: it has another name by now"
        case "is refused":
            return f"{process}wants to {doing}, and is refused: there is no such turn any more"
        case "has no lease":
            return f"{process}wants to {doing}, and is refused: its lease ran out"
        case "does it again":
            return f"{process}has no answer, and does it again: {doing}" + _seen(step, sessions)
    late = "saves what it had loaded for: " if step.what.startswith("saves late") else "saves: "
    lost = " (the answer is lost)" if step.what.endswith("unanswered") else ""
    return f"{process}{late}{doing}{lost}" + _seen(step, sessions)


def _doing(operation: Operation) -> str:
    match operation.name, operation.how:
        case (("accept" | "submit"), "queue"):
            return f"{operation.name} {operation.run} (queue)"
        case "enter", "dead":
            return f"enter {operation.run}, whose holder is dead"
        case "enter", "late":
            return f"enter {operation.run}, which its holder has not entered in time"
        case "fold", _:
            return f"take follow-ups into the turn of {operation.run}"
        case "finish", _:
            return f"finish the turn of {operation.run}"
        case "reap", _:
            return f"take over the turn of {operation.run}, whose process is dead"
        case _:
            return f"{operation.name} {operation.run}".rstrip()


def _seen(step: DurableStep, sessions: Sessions) -> str:
    """Say what the abstract session saw at a save."""
    events = [event for node, action in step.trail for event in sessions.events_of(node, action)]
    seen = consequences(tuple(events))
    if step.operation and step.operation.name == "reap":
        seen = seen.replace("runner failed", "lost") or f"the turn of {step.operation.run} begins again"
    return f"; {seen}" if seen else ""
