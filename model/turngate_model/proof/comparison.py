"""The tie: the relation and the mechanism, held to each other on every step within bounds.

A proof is about what was written down for the solver. This holds it to the
Python that everything else is held to. From every session state that the
explorer reaches, every step is taken twice: by the mechanism with the abstract
session beside it, and by the relation over plain values. Both must have the
same steps, lead to the same states, and object to the same properties.

The known-bad designs are compared too: on the sound mechanism nobody objects,
so only they show that the judge objects where the abstract session does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from turngate_model.abstract_session import AbstractSession
from turngate_model.checker.bounds import NAMES
from turngate_model.checker.explorer import CLOSE
from turngate_model.checker.nodes import BUDGETED, Nodes
from turngate_model.checker.steps import Shared, at_rest, take
from turngate_model.designs import DESIGNS, NOT_IN_DESIGNS
from turngate_model.history import Complete, Event
from turngate_model.lifecycle import successor
from turngate_model.mechanism import Action, Mechanism
from turngate_model.model_session import ModelRun, ModelSession, ModelTurn
from turngate_model.proof.consequences import (
    of_cancel,
    of_idle_cancel,
    of_sound_state,
    of_state,
    of_step,
)
from turngate_model.proof.flawed import FLAWED, Flawed
from turngate_model.proof.invariant import INVARIANT
from turngate_model.proof.paths import Path
from turngate_model.proof.progress import of_progress, of_waiting
from turngate_model.proof.readings import Finite
from turngate_model.proof.relation import Relation
from turngate_model.proof.steps import Step, steps_of
from turngate_model.proof.terms import Phase, Record, Sort, State, Value
from turngate_model.proof.vocabulary import ABSTRACT, World
from turngate_model.properties import Property

Tables: TypeAlias = dict[str, dict[tuple[int, ...], Value]]
_PHASES = {"": Phase.RUNNING, "paused": Phase.RUNNING}


class Taken(NamedTuple):
    """A step, as both sides are to tell it: which one it is, and about which run."""

    name: str
    how: str
    run: str


class Came(NamedTuple):
    """What came of a step: the state that it leads to, and what it breaks."""

    facts: dict[tuple[str, tuple[int, ...]], Value]
    broken: frozenset[Property]


@dataclass
class Compared:
    """What a comparison came to."""

    design: str | None
    states: int = 0
    steps: int = 0
    objections: Counter[Property] = field(default_factory=Counter)
    """How often both sides have objected, to what."""
    paths: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often each path of each step was taken."""
    difference: str = ""
    """Where the two differ: nothing, if they agree."""


def sessions(
    design: type[Mechanism], prompts: int, cancels: int, without: frozenset[str]
) -> Iterator[tuple[ModelSession, AbstractSession, list[Action]]]:
    """Yield every session state within bounds, with every step of it, budget or not: as the explorer does."""
    nodes = Nodes(design, successor, refine=False)
    modes = [mode for mode in design.modes if mode not in without]
    seen = {(nodes.empty, 0)}
    todo, told = [(nodes.empty, 0)], set()
    while todo:
        node, used = todo.pop()
        known = nodes.runs[node]
        accepts = [Action("caller", "accept", NAMES[known], mode) for mode in modes if known < prompts]
        steps = [
            *accepts,
            *(each for each in nodes.actions(node, nodes.at_first, 0) if each.name not in without),
        ]
        if "close" not in without:
            steps.append(CLOSE)
        if node not in told:
            told.add(node)
            yield nodes.held(node), nodes.abstract(node), steps
        for action in steps:
            spent = used + (action.name in BUDGETED)
            if spent <= cancels:
                run = ModelRun(action.run, known + 1) if action.name == "accept" else None
                following = (nodes.step(node, nodes.at_first, 0, action, run).target, spent)
                if following not in seen:
                    seen.add(following)
                    todo.append(following)


# The mechanism's side.


def lifted(how: ModelSession, what: AbstractSession, runs: int, *, by_lead: bool = False) -> Tables:
    """Return a session and the abstract session beside it as answers of the vocabulary."""
    return _lifted_mechanism(how, what, runs, by_lead) | lifted_abstract(what, runs)


def _lifted_mechanism(how: ModelSession, what: AbstractSession, runs: int, by_lead: bool) -> Tables:
    names = NAMES[:runs]
    turns = {turn.lead.name: turn for turn in how.turns}
    place = {run.name: at for at, run in enumerate(how.queue)}
    held = {run.name: run.seq for run in how.in_flight}
    halves = [
        (names.index(run.name), names.index((half.runs[0] if by_lead else run).name), bool(half.mark))
        for half in how.unfinished
        for run in half.runs
    ]

    def of_runs(members: Any) -> dict[tuple[int, ...], Value]:
        return {(at,): name in members for at, name in enumerate(names)}

    def of_pairs(holds: Any) -> dict[tuple[int, ...], Value]:
        return {(a, b): holds(names[a], names[b]) for a in range(runs) for b in range(runs)}

    return {
        "accepted": of_runs({run.name for run in how.accepted}),
        "foldable": of_runs(how.foldable),
        "singled_out": of_runs(how.singled_out),
        "entering": of_runs({run.name for run in how.entering}),
        "queue": of_runs(place),
        "ahead": of_pairs(lambda a, b: a in place and b in place and place[a] < place[b]),
        "active": of_runs({how.active}),
        "busy": {(0,): bool(how.active)},
        "phase": {(at,): _phase(turns.get(name)) for at, name in enumerate(names)},
        "interrupted": of_runs({name for name, turn in turns.items() if turn.cancelled}),
        "folded": of_pairs(lambda a, b: b in turns and a in {run.name for run in turns[b].folded}),
        "seq": {(at,): held.get(name, at + 1) for at, name in enumerate(names)},
        "mark": {(0,): how.mark},
        "next": {(0,): len(what.states) + 1},
        "pending": {(0,): how.pending + sum(half.mark for half in how.unfinished if not half.runs)},
        "halves": {(0,): len(how.unfinished)},
        "half": {
            (a, b): any(each[:2] == (a, b) for each in halves) for a in range(runs) for b in range(runs)
        },
        "half_says": {(at,): any(b == at and said for _, b, said in halves) for at in range(runs)},
    }


def _phase(turn: ModelTurn | None) -> Value:
    if turn is None:
        return Phase.NONE
    assert not turn.waits, "the relation knows no places"
    return _PHASES.get(turn.writing) or Phase(turn.writing)


def lifted_abstract(what: AbstractSession, runs: int) -> Tables:
    """Return an abstract session as answers of the vocabulary."""
    names = NAMES[:runs]
    order = {name: at for at, name in enumerate(what.states)}

    def of_runs(members: Any) -> dict[tuple[int, ...], Value]:
        return {(at,): name in members for at, name in enumerate(names)}

    return {
        "state": {
            (at,): State(what.states[name]) if name in what.states else State.UNBORN
            for at, name in enumerate(names)
        },
        "covered": of_runs(what.covered),
        "cleared": of_runs(what.cleared),
        "may_fold": of_runs(what.foldable),
        "record": {
            (at,): Record(what.record[name]) if name in what.record else Record.NOTHING
            for at, name in enumerate(names)
        },
        "in_turn": of_runs(what.turn),
        "lead": of_runs({what.lead}),
        "running": {(0,): what.running},
        "older": {
            (a, b): names[a] in order and names[b] in order and order[names[a]] < order[names[b]]
            for a in range(runs)
            for b in range(runs)
        },
        "completes": {
            (at,): int(name in what.states and State(what.states[name]) is State.COMPLETE)
            for at, name in enumerate(names)
        },
        "outcome": of_runs(()),
    }


def told(tables: Tables) -> dict[tuple[str, tuple[int, ...]], Value]:
    """Return the answers that mean something: others nobody will ever ask for."""
    return {
        (name, arguments): answer
        for name, table in tables.items()
        for arguments, answer in table.items()
        if _means_something(tables, name, arguments)
    }


def _means_something(tables: Tables, name: str, arguments: tuple[int, ...]) -> bool:
    if name == "ahead":
        return all(bool(tables["queue"][each,]) for each in arguments)
    if name == "seq":
        return tables["state"][arguments] not in (State.UNBORN, State.COMPLETE)
    return name != "half_says" or bool(tables["half"][arguments * 2])


class MechanismSide:
    """Takes steps by the plain code of the model."""

    def __init__(self, design: type[Mechanism], runs: int, kind: type[Relation]) -> None:
        self.design = design
        self.runs = runs
        self.kind = kind
        self.by_lead = issubclass(kind, Flawed) and kind.by_lead

    def take(self, how: ModelSession, what: AbstractSession, action: Action) -> tuple[Taken, Came]:
        """Take a step of a session, and return which one it was and what came of it."""
        before = lifted(how, what, self.runs, by_lead=self.by_lead)
        how, what = how.copy(), what.copy()
        run = ModelRun(action.run, len(what.states) + 1) if action.name == "accept" else None
        came = take(self.design, how, what, Shared(), action, run)
        broken = {
            each.property for each in (*came.violations, *at_rest(self.design, how, what, refine=False))
        }
        after = lifted(how, what, self.runs, by_lead=self.by_lead)
        for name in ("completes", "outcome"):
            after[name] = dict(before[name])
        _count_completes(after, came.events)
        tables = {name: after[name] for name in self.kind.symbols}
        return self._named(action), Came(told(tables), frozenset(broken))

    def _named(self, action: Action) -> Taken:
        about = action.run if action.name != "resume" or self.kind.resumes else ""
        return Taken(action.name, "" if action.name == "resume" else action.how, about[:1])


def _count_completes(tables: Tables, events: tuple[Event, ...]) -> None:
    for event in events:
        if isinstance(event, Complete):
            at = (NAMES.index(event.run),)
            number = tables["completes"][at]
            assert isinstance(number, int)
            tables["completes"][at] = number + 1
            tables["outcome"][at] = event.cancelled


# The relation's side.


class RelationSide:
    """Takes steps by the relation, over plain values."""

    def __init__(self, kind: type[Relation], runs: int, without: frozenset[str] = frozenset()) -> None:
        self.kind = kind
        self.reading = Finite((0,) * runs, kind.symbols)
        self.steps = [step for step in steps_of(kind) if step.name not in without and step.how not in without]

    def takes(self, tables: Tables, known: int) -> Iterator[tuple[Taken, Step, Path]]:
        """Yield every step that can be taken, however it goes."""
        world = self.reading.world_of({name: tables[name] for name in self.kind.symbols})
        for step in self.steps:
            for about in self.abouts(step, known):
                for path in step.paths(self.kind, self.reading, world, 0, about):
                    yield self.named(step, about), step, path

    def abouts(self, step: Step, known: int) -> Iterator[tuple[Any, ...]]:
        """Yield what a step may be about, where so many runs have been accepted."""
        if step.name == "accept":
            if known < len(self.reading.runs):
                yield (known, known + 1)
            return
        domains = {Sort.RUN: self.reading.runs, Sort.BOOL: (True, False)}
        abouts: list[tuple[Any, ...]] = [()]
        for sort in step.about:
            abouts = [(*about, value) for about in abouts for value in domains[sort]]
        yield from abouts

    def named(self, step: Step, about: tuple[Any, ...]) -> Taken:
        """Return which step it is, in the words of both sides."""
        stored = {True: "ok", False: "fails"}[about[1]] if step.about[1:] == (Sort.BOOL,) else ""
        return Taken(step.name, step.how or stored, NAMES[about[0]] if about else "")

    def came(self, before: World, step: Step, path: Path) -> Came:
        """Return what came of a path."""
        idle = self.kind(Path(self.reading, path.world, [], []))
        after = [*of_state(self.reading, path.world, 0, idle.can_go_on(0), self.kind.symbols)]
        if step.name == "cancel":
            kept = {name: each for name, each in self.kind.symbols.items() if name not in ABSTRACT}
            after.append(of_idle_cancel(self.reading, before, path.world, 0, kept))
        broken = {each.property for each in path.obligations if not _plain(each.holds)}
        broken |= {Property(each.property) for each in after if not _plain(each.holds)}
        return Came(told(self.reading.tables(path.world)), frozenset(broken))

    def breaks_of_sound(self, before: World, step: Step, path: Path) -> Iterator[str]:
        """Yield what should hold of every step of the sound mechanism and does not."""
        for each in (
            *of_step(self.reading, before, path.world, 0, step),
            *of_progress(self.reading, before, path.world, 0, step),
            *(of_cancel(self.reading, before, path.world, 0) if step.name == "cancel" else ()),
        ):
            if not _plain(each.holds):
                yield f"{each.property}: {each.says}"

    def breaks_of_state(self, world: World) -> Iterator[str]:
        """Yield the clauses and consequences that should hold of every sound state and do not."""
        for clause in INVARIANT:
            if not _plain(clause.says(self.reading, world)):
                yield f"clause {clause.name}"
        for each in (*of_sound_state(self.reading, world, 0), *of_waiting(self.reading, world, 0)):
            if not _plain(each.holds):
                yield f"{each.property}: {each.says}"


def _plain(formula: Any) -> bool:
    assert isinstance(formula, bool), formula
    return formula


# Both.


def compare(design: str | None = None, prompts: int = 3, cancels: int = 2) -> Compared:
    """Compare the relation with the mechanism, or with a design, on every state and step within bounds."""
    result = Compared(design)
    kind: type[Relation] = FLAWED[design] if design else Relation
    mechanism = DESIGNS[design].mechanism if design else Mechanism
    without = NOT_IN_DESIGNS if design else frozenset()
    left = MechanismSide(mechanism, prompts, kind)
    right = RelationSide(kind, prompts, without)
    for how, what, actions in sessions(mechanism, prompts, cancels, without):
        result.states += 1
        result.difference = _compare_session(left, right, (how, what, actions), result)
        if result.difference:
            break
    return result


def _compare_session(
    left: MechanismSide,
    right: RelationSide,
    session: tuple[ModelSession, AbstractSession, list[Action]],
    result: Compared,
) -> str:
    how, what, actions = session
    tables = lifted(how, what, left.runs, by_lead=left.by_lead)
    world = right.reading.world_of(tables)
    if result.design is None:
        for broken in right.breaks_of_state(world):
            return f"{broken} does not hold in {how}"
    wanted = dict(left.take(how, what, action) for action in actions)
    found: dict[Taken, Came] = {}
    for taken, step, path in right.takes(tables, len(what.states)):
        if taken.name == "again" and taken not in wanted:
            continue  # of the complete runs the explorer has one accepted again, for they are all alike
        came = right.came(world, step, path)
        if found.setdefault(taken, came) != came:
            return f"{taken} leads to two states from {how}"
        result.paths[str(step), ", ".join(path.trail)] += 1
        if result.design is None:
            for broken in right.breaks_of_sound(world, step, path):
                return f"{broken} does not hold of {taken} from {how}"
    if found.keys() != wanted.keys():
        return f"only one side can take {sorted(found.keys() ^ wanted.keys())} from {how}"
    for taken, came in wanted.items():
        result.steps += 1
        result.objections.update(came.broken)
        if difference := differences(came, found[taken]):
            return f"{taken} from {how}: {difference}"
    return ""


def differences(wanted: Came, found: Came) -> str:
    """Say how two tellings of a step differ; nothing, if they do not.

    The abstract session asks what is declared only of a move that nothing else is wrong with.
    """
    for fact, value in wanted.facts.items():
        if found.facts.get(fact) != value:
            return f"{fact} is {value} for the mechanism and {found.facts.get(fact)} for the relation"
    if found.facts.keys() != wanted.facts.keys():
        return "they speak of different facts"
    undeclared = frozenset({Property.DECLARED_MOVE})
    alone = found.broken == undeclared
    if wanted.broken - undeclared != found.broken - undeclared or (
        wanted.broken & undeclared and not found.broken & undeclared
    ):
        return f"the mechanism breaks {sorted(wanted.broken)}, the relation {sorted(found.broken)}"
    if alone and not wanted.broken:
        return "only the relation breaks DECLARED_MOVE"
    return ""
