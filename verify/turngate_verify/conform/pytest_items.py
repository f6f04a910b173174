"""The tests that the pytest plugin makes from an adapter in a test module: one per property."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from turngate_model.checker.counterexample import Counterexample
from turngate_model.properties import AnyProperty
from turngate_verify.conform.lines import Command
from turngate_verify.conform.port import Features, SubjectFactory
from turngate_verify.conform.result import Conformance, Effort, FlakyFinding, judged
from turngate_verify.conform.suites import check

SUMMARY = "turngate conform"
"""The name under which each test keeps the verdict on its subject, for the end of the run."""


def is_subject(obj: object) -> bool:
    """Return whether an object of a test module is an adapter, as a class or as a command."""
    kind = type(obj)  # not isinstance: it asks the object, and a module may hold proxies that raise then
    if issubclass(kind, Command):
        return True
    if not issubclass(kind, type) or not isinstance(getattr(obj, "features", None), Features):
        return False
    needed = ("accept", "enter", "cancel", "clear", "fold", "finish", "fail", "observe", "close")
    return (
        getattr(obj, "__test__", True) is True
        and not obj.__module__.startswith("turngate_verify.")
        and not inspect.isabstract(obj)
        and all(hasattr(obj, each) for each in needed)
    )


def collected(collector: Any, name: str, obj: Any) -> SubjectTests | None:
    """Return the tests of an object of a test module if it is an adapter, otherwise None."""
    if not isinstance(collector, pytest.Module) or not is_subject(obj):
        return None
    tests: SubjectTests = SubjectTests.from_parent(collector, name=name)
    tests.make = obj
    return tests


class SubjectTests(pytest.Collector):
    """The tests of one adapter. They share one run of the suite, which the first of them starts."""

    make: SubjectFactory
    _result: Conformance | None = None
    said: str = ""
    """The test that has reported why the subject could not be judged to the end."""

    def collect(self) -> Iterator[pytest.Item]:
        """Yield one test per property."""
        features = getattr(self.make, "features", Features())
        if isinstance(self.make, Command):  # its features are known when it runs
            features = Features(crash=True)
        for each in judged(features):
            test: PropertyTest = PropertyTest.from_parent(self, name=str(each))
            test.property = each
            yield test

    @property
    def result(self) -> Conformance:
        """The result of the suite, which runs when the first test asks for it."""
        if self._result is None:
            effort = getattr(self.make, "effort", None)
            self._result = check(
                self.make, self.target, effort=effort if isinstance(effort, Effort) else None
            )
        return self._result

    @property
    def target(self) -> str:
        """What ``turngate conform`` calls this subject."""
        if isinstance(self.make, Command):
            return str(self.make)
        path = self.path
        return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{self.name}"


class Violated(Exception):
    """The property of a test does not hold."""

    def __init__(self, example: Counterexample, command: str) -> None:
        super().__init__(example.what)
        self.example = example
        self.command = command


class Flaky(Exception):
    """The property of a test was broken once, and not again."""

    def __init__(self, finding: FlakyFinding, command: str) -> None:
        super().__init__(finding.example.what)
        self.finding = finding
        self.command = command


class RacesNotTried(Exception):
    """The effort requires races, and none were tried."""


class Unjudged(Exception):
    """The subject could not be judged to the end."""


class PropertyTest(pytest.Item):
    """One property of one adapter."""

    property: AnyProperty

    def runtest(self) -> None:
        """Fail if the property is violated or flaky, and skip if it is unknown."""
        assert isinstance(self.parent, SubjectTests)
        result = self.parent.result
        self.user_properties.append((SUMMARY, f"{self.parent.target}: {result.summary}"))
        if example := result.counterexamples.get(self.property):
            raise Violated(example, result.replay_command(self.property))
        if finding := result.flaky.get(self.property):
            raise Flaky(finding, result.replay_command(self.property))
        if (why := result.not_shown.get(self.property)) or not result.failed:
            if why := why or result.why_unknown(self.property):
                pytest.skip(f"{self.property} is unknown: {why}")
            if result.lacks_races:
                raise RacesNotTried
            return
        if self.parent.said:
            raise Unjudged(f"see {self.parent.said}")
        self.parent.said = self.nodeid
        raise Unjudged("\n".join([result.failed.what, *(f"  {line}" for line in result.failed.conversation)]))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the program, the property with its sentence, and how to replay it."""
        wrong = excinfo.value
        if isinstance(wrong, Violated):
            return "\n".join([*_told(wrong.example), f"  replay: {wrong.command}"])
        if isinstance(wrong, Flaky):
            again = [f"  {number:2}  {step}" for number, step in enumerate(wrong.finding.again, 1)]
            flaky = "  flaky: played again, the same program did not break it:"
            return "\n".join([*_told(wrong.finding.example), flaky, *again, f"  replay: {wrong.command}"])
        if isinstance(wrong, RacesNotTried):
            return (
                "races were not tried, and the effort requires them: see mid_flight, and the feature bursts"
            )
        if isinstance(wrong, Unjudged):
            return f"the subject could not be judged to the end: {wrong}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Say where the test is."""
        assert self.parent is not None
        return self.path, None, f"{self.parent.name}: {self.property}"


def _told(example: Counterexample) -> list[str]:
    """Return the property with its sentence, what happened, and what should have."""
    steps = [f"  {number:2}  {step}" for number, step in enumerate(example.told(), 1)]
    said = f"{example.property}: {example.property.sentence}"
    return [said, *steps, f"  but {example.what}"]
