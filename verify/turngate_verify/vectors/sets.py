"""The two sets of vectors: the full one, and the minimal one that refutes everything that can be refuted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from turngate_verify.conform.programs import written
from turngate_verify.vectors.generating import FULL, SHORT, Node, Scope, enters_at_once, nodes, vector_of
from turngate_verify.vectors.vector import BASIC, FEATURES, Vector, needs_of

_RANK = {name: rank for rank, name in enumerate((BASIC, *FEATURES))}


def full() -> list[Vector]:
    """Return the full set. A program that another one begins with is left out."""
    found: dict[tuple[bool, bool], dict[str, tuple[Node, Scope]]] = {}
    for scope in FULL:
        kind = found.setdefault((scope.two_phase, scope.messages), {})
        for node in _worth(scope):
            kind.setdefault(written(node.program), (node, scope))
    vectors = []
    for kind in found.values():
        begun = {written(node.program[:-1]) for node, _ in kind.values()}
        vectors += [vector_of(*kind[program]) for program in kind if program not in begun]
    return in_order(vectors)


@cache
def minimal() -> list[Vector]:
    """Return a small set that refutes every design and flaw, and none of whose vectors could be left out.

    Each is refuted by every property that it breaks first in some program, and by a vector that needs no more
    features than it must, so that a dispatcher with few features meets as many as it could.
    """
    pool = [(node, scope) for scope in SHORT for node in _worth(scope) if node.refutes]
    needs = [
        frozenset(needs_of(node.program, two_phase=scope.two_phase, messages=scope.messages))
        for node, scope in pool
    ]
    broken = {pair for node, _ in pool for pair in node.refutes.items()}
    wanted = {
        (pair, least)
        for pair in broken
        for least in _least(
            need for need, (node, _) in zip(needs, pool, strict=True) if pair in node.refutes.items()
        )
    }
    covers = [
        {(pair, least) for pair, least in wanted if pair in node.refutes.items() and need <= least}
        for need, (node, _) in zip(needs, pool, strict=True)
    ]
    chosen: list[int] = []
    while missing := wanted.difference(*(covers[nth] for nth in chosen)):
        chosen.append(
            max(range(len(pool)), key=lambda nth: (len(covers[nth] & missing), -_length(pool[nth])))
        )
    for nth in sorted(chosen, key=lambda nth: -_length(pool[nth])):
        rest = [each for each in chosen if each != nth]
        if not wanted.difference(*(covers[each] for each in rest)):
            chosen = rest
    return in_order([vector_of(*pool[nth]) for nth in chosen])


def in_order(vectors: Iterable[Vector]) -> list[Vector]:
    """Return vectors sorted by feature, shortest first."""
    return sorted(
        vectors,
        key=lambda each: (
            _RANK[each.feature],
            [_RANK[name] for name in each.needs],
            len(each.steps),
            written(each.program),
        ),
    )


def _worth(scope: Scope) -> Iterator[Node]:
    """Yield the nodes of a scope, but for those that show no more with two phases than with one."""
    return (node for node in nodes(scope) if not (scope.two_phase and enters_at_once(node.program)))


def _least(needs: Iterable[frozenset[str]]) -> set[frozenset[str]]:
    """Return those sets of features that contain none of the others."""
    each = set(needs)
    return {need for need in each if not any(other < need for other in each)}


def _length(found: tuple[Node, Scope]) -> int:
    return len(found[0].steps)
