"""The tie where sessions share places: several sessions at once, on every step within bounds.

As in ``comparison.py``, the mechanism with its judges and the relation over plain values take every step
from every state that the explorer reaches. Here a state is that of all sessions, with the line and the free
places.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from turngate_model.abstract_session import AbstractSession
from turngate_model.checker.bounds import NAMES
from turngate_model.checker.explorer import CLOSE
from turngate_model.checker.nodes import BUDGETED, Nodes
from turngate_model.checker.steps import Shared, at_rest, take
from turngate_model.lifecycle import successor
from turngate_model.mechanism import Action, Mechanism
from turngate_model.model_session import ModelRun, ModelSession
from turngate_model.proof.comparison import (
    Came,
    Compared,
    Tables,
    Taken,
    count_completes,
    differences,
    is_plain,
    lifted,
    told,
)
from turngate_model.proof.consequences import of_cancel, of_sound_state, of_state, of_step
from turngate_model.proof.invariant import INVARIANT
from turngate_model.proof.paths import Path
from turngate_model.proof.places_kept import of_line, of_places
from turngate_model.proof.progress import of_progress, of_waiting
from turngate_model.proof.readings import Finite
from turngate_model.proof.relation import Relation
from turngate_model.proof.steps import Step, steps_of
from turngate_model.proof.terms import Sort
from turngate_model.proof.vocabulary import NOTHING, SIGNATURE, World
from turngate_model.properties import Property


class PlacesBounds(NamedTuple):
    """How much to compare: sessions, prompts in all, runs in one session, cancels, and places."""

    sessions: int
    prompts: int
    runs: int
    cancels: int
    limit: int


TWO_SESSIONS = PlacesBounds(2, 2, 1, 1, 1)
IN_LINE = PlacesBounds(3, 3, 1, 0, 1)
"""The fewest sessions of which two can be in line, without cancels."""
WITH_QUEUES = PlacesBounds(2, 3, 2, 1, 1)
IN_LONG_LINE = PlacesBounds(3, 3, 1, 1, 1)


class Held(NamedTuple):
    """All sessions of one state, each with the abstract session beside it, and what they share."""

    sessions: tuple[tuple[ModelSession, AbstractSession], ...]
    shared: Shared

    def lifted(self, bounds: PlacesBounds) -> Tables:
        """Return the state as answers of the vocabulary."""
        reading = Finite(_sessions_of(bounds))
        tables: Tables = {
            name: dict.fromkeys(reading.tuples(*symbol.arguments), NOTHING[symbol.result])
            for name, symbol in SIGNATURE.items()
        }
        for nth, (how, what) in enumerate(self.sessions):
            of_one = lifted(how, what, bounds.runs)
            for name, symbol in SIGNATURE.items():
                for arguments, answer in of_one[name].items():
                    there = (
                        nth if sort is Sort.SESSION else nth * bounds.runs + each
                        for each, sort in zip(arguments, symbol.arguments, strict=True)
                    )
                    tables[name][tuple(there)] = answer
        self._lift_places(tables)
        return tables

    def _lift_places(self, tables: Tables) -> None:
        held, abstract = self.shared.places, self.shared.abstract_places
        assert held is not None
        assert abstract is not None
        waiting = [int(each) for each in abstract.waiting]
        for name, order, members in (("before", "in_line", [*held.line]), ("earlier", "waiting", waiting)):
            for session, other in tables[name]:
                both = session in members and other in members
                tables[name][session, other] = both and members.index(session) < members.index(other)
            for (session,) in tables[order]:
                tables[order][session,] = session in members
        for (session,) in tables["called"]:
            tables["called"][session,] = session in abstract.called
        single = {"free": held.free, "calls": len(abstract.called), "limited": True, "limit": abstract.limit}
        for name, value in single.items():
            tables[name][()] = value


def _sessions_of(bounds: PlacesBounds) -> tuple[int, ...]:
    return tuple(session for session in range(bounds.sessions) for _ in range(bounds.runs))


def states(bounds: PlacesBounds) -> Iterator[tuple[Held, list[tuple[int, Action]]]]:
    """Yield every state within bounds, with every step of it, budget or not."""
    nodes = Nodes(Mechanism, successor, refine=False, turns_limit=bounds.limit)
    first: tuple[tuple[int, ...], int, int] = ((nodes.empty,) * bounds.sessions, nodes.at_first, 0)
    seen, todo, known = {first}, [first], set[Any]()
    while todo:
        here, shared, used = todo.pop()
        accepted = sum(nodes.runs[node] for node in here)
        steps = [
            (nth, action)
            for nth, node in enumerate(here)
            for action in _actions(nodes, node, shared, nth, bounds)
        ]
        if (here, shared) not in known:
            known.add((here, shared))
            held = tuple((nodes.held(node), nodes.abstract(node)) for node in here)
            yield Held(held, nodes.shared(shared)), steps
        for nth, action in steps:
            spent = used + (action.name in BUDGETED)
            if spent > bounds.cancels or (action.name == "accept" and accepted == bounds.prompts):
                continue
            edge = nodes.step(here[nth], shared, nth, action, _new_run(action, nodes.runs[here[nth]]))
            following = ((*here[:nth], edge.target, *here[nth + 1 :]), edge.shared, spent)
            if following not in seen:
                seen.add(following)
                todo.append(following)


def _actions(nodes: Nodes, node: int, shared: int, nth: int, bounds: PlacesBounds) -> Iterator[Action]:
    known = nodes.runs[node]
    if known < bounds.runs:
        yield from (Action("caller", "accept", NAMES[known], mode) for mode in Mechanism.modes)
    yield from nodes.actions(node, shared, nth)
    yield CLOSE


def _new_run(action: Action, known: int) -> ModelRun | None:
    return ModelRun(action.run, known + 1) if action.name == "accept" else None


def _by_mechanism(
    held: Held, tables: Tables, nth: int, action: Action, bounds: PlacesBounds
) -> tuple[tuple[int, Taken], Came]:
    """Take a step by the plain code of the model."""
    how, what = held.sessions[nth][0].copy(), held.sessions[nth][1].copy()
    run = _new_run(action, len(what.states))
    came = take(Mechanism, how, what, held.shared, action, run, session=nth)
    broken = {each.property for each in (*came.violations, *at_rest(Mechanism, how, what, refine=False))}
    sessions = (*held.sessions[:nth], (how, what), *held.sessions[nth + 1 :])
    after = Held(sessions, came.shared).lifted(bounds)
    for name in ("completes", "outcome"):
        after[name] = dict(tables[name])
    count_completes(after, came.events, nth * bounds.runs)
    about = NAMES[nth * bounds.runs + NAMES.index(action.run)] if action.run else ""
    return (nth, Taken(action.name, action.how, about)), Came(told(after), frozenset(broken))


class _Relation:
    """Takes steps by the relation, over plain values."""

    def __init__(self, kind: type[Relation], bounds: PlacesBounds) -> None:
        self.kind, self.bounds = kind, bounds
        self.reading = Finite(_sessions_of(bounds))

    def takes(self, held: Held, world: World) -> Iterator[tuple[tuple[int, Taken], Step, Path]]:
        """Yield every step that can be taken, in every session."""
        for nth in range(self.bounds.sessions):
            for step in steps_of(self.kind):
                for about in self._abouts(step, nth, len(held.sessions[nth][1].states)):
                    for path in step.paths(self.kind, self.reading, world, nth, about):
                        yield (nth, _named(step, about)), step, path

    def _abouts(self, step: Step, nth: int, known: int) -> Iterator[tuple[Any, ...]]:
        first = nth * self.bounds.runs
        if step.name == "accept":
            if known < self.bounds.runs:
                yield (first + known, known + 1)
            return
        domains = {Sort.RUN: range(first, first + self.bounds.runs), Sort.BOOL: (True, False)}
        abouts: list[tuple[Any, ...]] = [()]
        for sort in step.about:
            abouts = [(*about, value) for about in abouts for value in domains[sort]]
        yield from abouts

    def came(self, nth: int, path: Path) -> Came:
        """Return what came of a path."""
        reading = self.reading
        idle = self.kind(Path(reading, path.world, [], []))
        after = of_state(reading, path.world, nth, idle.can_go_on(nth), SIGNATURE)
        broken = {each.property for each in path.obligations if not is_plain(each.holds)}
        broken |= {Property(each.property) for each in after if not is_plain(each.holds)}
        return Came(told(reading.tables(path.world)), frozenset(broken))

    def breaks_of_state(self, world: World) -> Iterator[str]:
        """Yield what should hold of every state, and does not."""
        reading = self.reading
        for clause in INVARIANT:
            if not is_plain(clause.says(reading, world)):
                yield f"clause {clause.name}"
        idle = self.kind(Path(reading, world, [], []))
        for nth in range(self.bounds.sessions):
            for each in (
                *of_sound_state(reading, world, nth),
                *of_waiting(reading, world, nth),
                *of_places(reading, world, nth, idle.can_call(nth)),
            ):
                if not is_plain(each.holds):
                    yield f"{each.property}: {each.says}"
        if sum(bool(world["called"](nth)) for nth in range(self.bounds.sessions)) != world["calls"]():
            yield "the count of the calls"

    def breaks_of_step(self, nth: int, world: World, step: Step, path: Path) -> Iterator[str]:
        """Yield what should hold of every step, and does not."""
        worlds = (self.reading, world, path.world, nth)
        for each in (
            *of_step(*worlds, step),
            *of_progress(*worlds, step),
            *of_line(*worlds, step),
            *(of_cancel(*worlds) if step.name == "cancel" else ()),
        ):
            if not is_plain(each.holds):
                yield f"{each.property}: {each.says}"


def _named(step: Step, about: tuple[Any, ...]) -> Taken:
    stored = {True: "ok", False: "fails"}[about[1]] if step.about[1:] == (Sort.BOOL,) else ""
    return Taken(step.name, step.how or stored, NAMES[about[0]] if about else "")


def compare_places(*all_bounds: PlacesBounds, kind: type[Relation] = Relation) -> Compared:
    """Compare the relation with the mechanism on every state and step within each of the bounds."""
    result = Compared(None)
    for bounds in all_bounds:
        relation = _Relation(kind, bounds)
        for held, steps in states(bounds):
            result.states += 1
            result.difference = _compare_state(relation, held, steps, result)
            if result.difference:
                return result
    return result


def _compare_state(relation: _Relation, held: Held, steps: list[tuple[int, Action]], result: Compared) -> str:
    tables = held.lifted(relation.bounds)
    world = relation.reading.world_of(tables)
    for broken in relation.breaks_of_state(world):
        return f"{broken} does not hold in {held}"
    wanted = dict(_by_mechanism(held, tables, nth, action, relation.bounds) for nth, action in steps)
    found: dict[tuple[int, Taken], Came] = {}
    for which, step, path in relation.takes(held, world):
        if step.name == "again" and which not in wanted:
            continue  # of the complete runs the explorer has one accepted again, for they are all alike
        came = relation.came(which[0], path)
        if found.setdefault(which, came) != came:
            return f"{which} leads to two states from {held}"
        result.paths[str(step), ", ".join(path.trail)] += 1
        for broken in relation.breaks_of_step(which[0], world, step, path):
            return f"{broken} does not hold of {which} from {held}"
    if found.keys() != wanted.keys():
        return f"only one side can take {sorted(found.keys() ^ wanted.keys())} from {held}"
    for which, came in wanted.items():
        result.steps += 1
        if difference := differences(came, found[which]):
            return f"{which} from {held}: {difference}"
    return ""
