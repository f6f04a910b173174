"""The conformance kit drives the server over HTTP, as it would drive any other dispatcher."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from http_subject import HttpSubject, Place
from turngate_model import Property
from turngate_verify.conform import Conformance, Effort, check

pytestmark = pytest.mark.usefixtures("standing_clock")
INSIDE = {Property.REFINES, Property.NO_RESIDUE, Property.ON_RECORD}
NO_CALL = {Property.HELD, Property.AS_EDITED}
"""What the server has no call for: to hold and to edit what waits."""
SHOWN = {*Property} - INSIDE - NO_CALL


@pytest.fixture
def subject(caplog: pytest.LogCaptureFixture) -> Iterator[type[HttpSubject]]:
    caplog.set_level(logging.CRITICAL, logger="turngate")
    place = Place()
    yield type("Subject", (HttpSubject,), {"place": place})
    place.close()


def judged(subject: type[HttpSubject], effort: Effort) -> Conformance:
    result = check(subject, "turngate over HTTP", effort=effort)
    assert result.failed is None
    assert result.counterexamples == {}
    return result


def test_every_short_program_holds_over_http(subject: type[HttpSubject]) -> None:
    result = judged(subject, Effort(programs=100, examples=12))
    assert {each for each in SHOWN if result.verdict_of(each) == "holds"} >= SHOWN - {Property.FIFO}


@pytest.mark.deep
def test_many_programs_hold_over_http(subject: type[HttpSubject]) -> None:
    result = judged(subject, Effort(programs=600, examples=60))
    assert {each for each in SHOWN if result.verdict_of(each) == "holds"} == SHOWN
