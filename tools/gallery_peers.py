"""The peers of the gallery, as peers.toml tells of them, with the versions that are pinned."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "examples/conformance/peers"
RESULTS = ROOT / FOLDER / "results.json"
"""What the kit said of each peer, as far as the page tells of it."""
HISTORY = ROOT / FOLDER / "history.json"
"""What the judge said of the history that was recorded over HTTP."""
HISTORY_OF = "langgraph-api"
"""The peer that it was recorded of."""


class Peer(NamedTuple):
    """One peer, used in one way."""

    key: str
    name: str
    package: str
    subject: tuple[str, ...]
    """The last arguments of the command that checks it."""
    effort: tuple[str, ...]
    """The options of that command."""
    driven: str
    """How it is driven, in a few sentences that follow its documentation."""
    documentation: dict[str, str]
    version: str
    remarks: dict[str, str]
    """What its documentation or its maintainers say about a finding, by property."""
    not_judged: dict[str, str]
    """The properties that cannot be judged through its adapter, and why."""

    @property
    def adapter(self) -> str:
        """Where its adapter is."""
        return next(part for part in self.subject if part.startswith(FOLDER)).split(":")[0]


def peers() -> list[Peer]:
    """Return the peers in the order of the page."""
    told = tomllib.loads((ROOT / FOLDER / "peers.toml").read_text(encoding="utf-8"))
    versions = pinned()
    return [_peer(each, told["efforts"], versions) for each in told["peer"]]


def _peer(told: dict[str, Any], efforts: dict[str, list[str]], versions: dict[str, str]) -> Peer:
    others = {"remarks": {}, "not_judged": {}, "version": versions[told["package"]]}
    return Peer(
        **others | told | {"effort": tuple(efforts[told["effort"]]), "subject": tuple(told["subject"])}
    )


def read_results() -> dict[str, dict[str, Any]]:
    """Return what the kit said of each peer when it was checked last."""
    results: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return results


def read_history() -> dict[str, Any]:
    """Return what the judge said of the history that was recorded last."""
    results: dict[str, Any] = json.loads(HISTORY.read_text(encoding="utf-8"))
    return results


def pinned() -> dict[str, str]:
    """Return the pinned version of every package that the peers need."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    python = (each.split("==") for each in groups["gallery"])
    node = json.loads((ROOT / FOLDER / "package.json").read_text(encoding="utf-8"))["dependencies"]
    versions = {name.split("[")[0]: version for name, version in python}
    return versions | {name: version.rpartition("@")[2] for name, version in node.items()}
