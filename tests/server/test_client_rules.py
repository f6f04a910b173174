"""The rules by which the client sends a call again, one by one: a list of answers, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx2
import pytest

import turngate
from answering import Answer, Answers, Sent, foreign, problem, said
from stepping import in_steps
from turngate import Attachment, DispatcherClosed, NotWaiting, OutcomeUnknown, SessionBusy, TurngateError
from turngate.client import Client, Refused, Unreachable

NOTHING_SENT = [httpx2.ConnectError("refused"), httpx2.ConnectTimeout("slow"), httpx2.PoolTimeout("full")]
LOST = [
    httpx2.ReadError("cut"),
    httpx2.ReadTimeout("silent"),
    httpx2.WriteError("cut"),
    httpx2.RemoteProtocolError("cut"),
    lambda: httpx2.Response(200, headers={"content-encoding": "gzip"}, stream=httpx2.ByteStream(b"no gzip")),
    lambda: httpx2.Response(200, text='{"covered": ['),
    foreign(502),
    foreign(503),
    foreign(504),
]
DONE = said({"covered": ["r"]}, "a")
SESSION: dict[str, Any] = {
    "session_id": "s", "cursor": "c", "phase": "quiet", "since": None, "accepted": [], "settling": [],
    "active": None, "queued": [], "folded": [], "covered": False, "text": "",
}  # fmt: skip
LOOKED = said(SESSION, "a")
"""What tells the client which life the server is in."""
RUN = {
    "run_id": "r", "session_id": "s", "seq": 1, "state": "accepted", "prompt": "tea", "complete": None,
    "held": False, "data": None,
}  # fmt: skip


def tried(
    script: Callable[[Client], Awaitable[Any]], *answers: Answer, patience: float = 30.0
) -> tuple[Any, list[Sent]]:
    """Return what a script for a client comes to, or what it raises, and what was sent."""
    answering = Answers(*answers)

    async def main(_: object) -> Any:
        async with Client("http://server", patience=patience, transport=answering) as client:
            try:
                return await script(client)
            except TurngateError as raised:
                return raised

    return in_steps(main), answering.sent


async def cancel(client: Client) -> list[str]:
    return await client.cancel("s", key="k")


async def look_and_cancel(client: Client) -> list[str]:
    await client.session("s")
    return await client.cancel("s", key="k")


async def look(client: Client) -> str | None:
    return (await client.session("s")).phase


def keyed(sent: list[Sent]) -> list[tuple[str | None, str | None]]:
    """Return the key and the life of every call that changes something."""
    return [(each.key, each.life) for each in sent if each.method != "GET"]


def test_a_call_goes_out_once_with_its_key_and_the_life_that_is_known() -> None:
    answer, sent = tried(cancel, DONE)
    assert answer == ["r"]
    assert sent == [Sent(0, "POST", "/v1/sessions/s/cancel", "k", None, None)]
    answer, sent = tried(look_and_cancel, LOOKED, DONE)
    assert answer == ["r"]
    assert sent[0] == Sent(0, "GET", "/v1/sessions/s", None, None, None)
    assert keyed(sent) == [("k", "a")]


def test_a_call_without_a_key_of_the_caller_has_one_of_its_own() -> None:
    async def twice(client: Client) -> None:
        await client.cancel("s")
        await client.cancel("s")

    _, sent = tried(twice, DONE)
    one, other = (each.key for each in sent)
    assert one is not None
    assert other is not None
    assert one != other


@pytest.mark.parametrize("nothing", NOTHING_SENT)
def test_a_call_that_was_never_sent_is_sent_as_a_new_one(nothing: Exception) -> None:
    answer, sent = tried(cancel, nothing, nothing, nothing, DONE)
    assert answer == ["r"]
    assert keyed(sent) == [("k", None)] * 4
    assert [each.at for each in sent] == [0, 0.1, 0.3, 0.7]


@pytest.mark.parametrize("lost", LOST)
def test_a_call_whose_answer_is_lost_is_sent_again_in_the_same_life(lost: Answer) -> None:
    answer, sent = tried(look_and_cancel, LOOKED, lost, lost, DONE)
    assert answer == ["r"]
    assert keyed(sent) == [("k", "a")] * 3


@pytest.mark.parametrize("lost", LOST)
def test_a_call_whose_answer_is_lost_is_not_sent_again_when_the_life_is_unknown(lost: Answer) -> None:
    answer, sent = tried(cancel, lost, DONE)
    assert isinstance(answer, OutcomeUnknown)
    assert str(answer) == (
        "POST v1/sessions/s/cancel was sent, but its answer was lost; it may have been carried out"
    )
    assert isinstance(answer.__cause__, Unreachable | Refused)
    assert len(sent) == 1


def test_an_answer_that_names_the_life_is_too_late_for_a_call_in_doubt() -> None:
    cut = httpx2.Response(200, text="{", headers={"turngate-key-life": "a"})
    answer, sent = tried(cancel, cut, DONE)
    assert isinstance(answer, OutcomeUnknown)
    assert len(sent) == 1


@pytest.mark.parametrize("lost", [*NOTHING_SENT, *LOST, problem(503, "shutting-down")])
def test_a_look_is_sent_again_at_will(lost: Answer) -> None:
    answer, sent = tried(look, lost, lost, LOOKED)
    assert answer == "quiet"
    assert [(each.method, each.key, each.life) for each in sent] == [("GET", None, None)] * 3


def test_pauses_double_up_to_two_seconds_until_patience_ends() -> None:
    answer, sent = tried(look, httpx2.ConnectError("refused"), patience=10.0)
    assert isinstance(answer, Unreachable)
    assert str(answer) == "no answer within 10 s: refused"
    assert isinstance(answer.__cause__, httpx2.ConnectError)
    assert [each.at for each in sent] == [0, 0.1, 0.3, 0.7, 1.5, 3.1, 5.1, 7.1, 9.1]


def test_a_call_is_sent_again_at_the_very_end_of_patience_and_not_later() -> None:
    _, sent = tried(look, httpx2.ConnectError("refused"), patience=0.1)
    assert len(sent) == 2
    _, sent = tried(look, httpx2.ConnectError("refused"), patience=0.09)
    assert len(sent) == 1


def test_a_loss_without_a_message_is_reported_by_its_type() -> None:
    answer, _ = tried(look, httpx2.ReadTimeout(""), patience=0.0)
    assert str(answer) == "no answer within 0 s: ReadTimeout"


def test_at_the_end_of_patience_a_call_that_may_have_been_carried_out_is_in_doubt() -> None:
    answer, _ = tried(look_and_cancel, LOOKED, httpx2.ReadError("cut"), patience=1.0)
    assert isinstance(answer, OutcomeUnknown)
    answer, _ = tried(look_and_cancel, LOOKED, httpx2.ReadError("cut"), *NOTHING_SENT, patience=1.0)
    assert isinstance(answer, OutcomeUnknown)
    answer, _ = tried(look_and_cancel, LOOKED, *NOTHING_SENT, patience=1.0)
    assert isinstance(answer, Unreachable)


@pytest.mark.parametrize("status", [408, 500, 501, 505, 599])
def test_a_stranger_that_failed_in_between_leaves_a_change_in_doubt(status: int) -> None:
    answer, sent = tried(look_and_cancel, LOOKED, foreign(status), DONE)
    assert isinstance(answer, OutcomeUnknown)
    assert isinstance(answer.__cause__, Refused)
    assert len(sent) == 2
    answer, sent = tried(look, foreign(status), LOOKED)
    assert isinstance(answer, Refused)
    assert (answer.status, answer.name, len(sent)) == (status, "unknown", 1)


@pytest.mark.parametrize("status", [302, 400, 401, 404, 407, 409, 499, 600])
def test_a_stranger_that_refuses_has_let_nothing_through(status: int) -> None:
    for script, answers in ((look, ()), (look_and_cancel, (LOOKED,))):
        answer, sent = tried(script, *answers, foreign(status), DONE)
        assert isinstance(answer, Refused)
        assert (answer.status, answer.name) == (status, "unknown")
        assert str(answer).startswith(f"{status} unknown: ")
        assert len(sent) == len(answers) + 1


def test_a_persistent_proxy_error_is_raised_when_patience_ends() -> None:
    answer, _ = tried(look, foreign(502), patience=1.0)
    assert isinstance(answer, Refused)
    assert (answer.status, answer.name) == (502, "unknown")


def test_a_server_that_shuts_down_is_left_alone_with_changes() -> None:
    answer, sent = tried(look_and_cancel, LOOKED, problem(503, "shutting-down"), DONE)
    assert isinstance(answer, DispatcherClosed)
    assert len(sent) == 2
    answer, sent = tried(look, problem(503, "shutting-down"), patience=1.0)
    assert isinstance(answer, DispatcherClosed)
    assert len(sent) == 4


def test_a_ledger_that_is_away_has_done_nothing() -> None:
    away = problem(503, "ledger-unavailable")
    for script, answers in ((look, ()), (cancel, ()), (look_and_cancel, (LOOKED,))):
        answer, sent = tried(script, *answers, away, away, LOOKED if script is look else DONE)
        assert answer in ("quiet", ["r"])
        assert len(sent) == len(answers) + 3
        answer, sent = tried(script, *answers, away, patience=1.0)
        assert isinstance(answer, Refused)
        assert answer.name == "ledger-unavailable"


@pytest.mark.parametrize("name", ["malformed", "invalid", "unsupported-media-type", "too-large"])
def test_what_every_sending_is_refused_for_was_never_carried_out(name: str) -> None:
    answer, sent = tried(look_and_cancel, LOOKED, httpx2.ReadError("cut"), problem(400, name), DONE)
    assert isinstance(answer, Refused)
    assert answer.name == name
    assert len(sent) == 3


@pytest.mark.parametrize(
    "refused",
    [
        problem(401, "unauthorized"),
        problem(503, "shutting-down"),
        problem(403, "forbidden-origin"),
        foreign(401),
        foreign(500),
    ],
)
def test_a_refusal_of_the_repetition_alone_says_nothing_of_the_call(refused: Answer) -> None:
    answer, sent = tried(look_and_cancel, LOOKED, httpx2.ReadError("cut"), refused, DONE)
    assert isinstance(answer, OutcomeUnknown)
    assert isinstance(answer.__cause__, Refused | DispatcherClosed)
    assert len(sent) == 3


def test_a_refusal_that_a_dispatcher_raises_is_the_answer_to_every_sending() -> None:
    answer, _ = tried(look_and_cancel, LOOKED, httpx2.ReadError("cut"), problem(409, "session-busy"), DONE)
    assert isinstance(answer, SessionBusy)
    assert str(answer) == "the reason"


@pytest.mark.parametrize("name", ["aardvark", "zebra"])
def test_a_refusal_of_the_server_itself_is_no_proxys(name: str) -> None:
    for status in (500, 502):
        for script, answers in ((look, ()), (look_and_cancel, (LOOKED,))):
            answer, sent = tried(script, *answers, problem(status, name), DONE)
            assert isinstance(answer, Refused)
            assert (answer.status, answer.name) == (status, name)
            assert len(sent) == len(answers) + 1


def test_no_change_is_tried_again_with_a_server_that_shuts_down() -> None:
    scripts: list[Callable[[Client], Awaitable[Any]]] = [
        lambda client: client.clear_queue("s"),
        lambda client: client.edit("r", prompt="tea"),
        lambda client: client.hold("s"),
    ]
    for script in scripts:
        answer, sent = tried(script, problem(503, "shutting-down"), DONE)
        assert isinstance(answer, DispatcherClosed)
        assert len(sent) == 1


# Servers of another life.


def test_a_server_of_another_life_that_has_done_nothing_is_asked_in_its_own() -> None:
    another = problem(503, "outcome-unknown", "b")
    answer, sent = tried(look_and_cancel, LOOKED, another, httpx2.ReadError("cut"), DONE)
    assert answer == ["r"]
    assert keyed(sent) == [("k", "a"), ("k", "b"), ("k", "b")]
    assert [each.at for each in sent] == [0, 0, 0.1, 0.3]


@pytest.mark.parametrize(
    "answers",
    [
        (LOOKED, httpx2.ReadError("cut"), problem(503, "outcome-unknown", "b")),  # the first life may have
        (LOOKED, problem(503, "outcome-unknown", "a")),  # it is the same life
        (LOOKED, problem(503, "outcome-unknown")),  # it does not say which
        (said(SESSION), problem(503, "outcome-unknown", "b")),  # nor did the first
    ],
)
def test_what_nothing_can_tell_is_unknown(answers: tuple[Answer, ...]) -> None:
    answer, sent = tried(look_and_cancel, *answers, DONE)
    assert isinstance(answer, OutcomeUnknown)
    assert str(answer) == "the reason"
    assert len(sent) == len(answers)


def test_an_answer_that_names_no_life_does_not_make_the_client_forget_it() -> None:
    async def looks(client: Client) -> list[str]:
        await client.session("s")
        return await look_and_cancel(client)

    _, sent = tried(looks, LOOKED, said(SESSION), DONE)
    assert keyed(sent) == [("k", "a")]
    assert [each.life for each in sent if each.method == "GET"] == [None, None]  # a look is bound to none


async def cancel_twice(client: Client) -> tuple[Any, Any]:
    """Cancel under one key twice; meanwhile, the client hears of another life."""
    outcomes: list[Any] = []
    for _ in range(2):
        try:
            outcomes.append(await client.cancel("s", key="k"))
        except TurngateError as raised:
            outcomes.append(raised)
        with suppress(Unreachable):
            await client.session("s")
    return outcomes[0], outcomes[1]


async def look_and_cancel_twice(client: Client) -> tuple[Any, Any]:
    await client.session("s")
    return await cancel_twice(client)


IN_B = said(SESSION, "b")


def test_a_key_of_the_caller_stays_in_the_life_that_it_was_first_sent_in() -> None:
    for script, before in ((look_and_cancel_twice, (LOOKED,)), (cancel_twice, ())):
        (one, other), sent = tried(script, *before, DONE, IN_B, DONE, IN_B)
        assert one == other == ["r"]
        assert keyed(sent) == [("k", "a" if before else None), ("k", "a")]


def test_a_key_in_doubt_stays_in_doubt_when_it_is_used_again() -> None:
    (one, other), sent = tried(
        look_and_cancel_twice, LOOKED, foreign(500), IN_B, httpx2.ConnectError("gone"), patience=0.0
    )
    assert isinstance(one, OutcomeUnknown)
    assert isinstance(other, OutcomeUnknown)
    assert keyed(sent) == [("k", "a"), ("k", "a")]
    (_, other), sent = tried(
        look_and_cancel_twice, LOOKED, foreign(500), IN_B, problem(503, "outcome-unknown", "b"), IN_B
    )
    assert isinstance(other, OutcomeUnknown)
    assert keyed(sent) == [("k", "a"), ("k", "a")]


def test_a_key_that_is_refused_again_still_belongs_to_its_first_life() -> None:
    async def three_times(client: Client) -> None:
        await look_and_cancel_twice(client)
        await client.cancel("s", key="k")

    _, sent = tried(three_times, LOOKED, DONE, IN_B, problem(409, "key-conflict"), IN_B, DONE)
    assert keyed(sent) == [("k", "a")] * 3


@pytest.mark.parametrize(
    "first", [(httpx2.ConnectError("gone"),), (problem(409, "session-busy"),), (foreign(404),)]
)
def test_a_key_that_was_not_carried_out_is_free_for_another_life(first: tuple[Answer, ...]) -> None:
    (one, other), sent = tried(look_and_cancel_twice, LOOKED, *first, IN_B, DONE, IN_B, patience=0.0)
    assert isinstance(one, TurngateError)
    assert not isinstance(one, OutcomeUnknown)
    assert other == ["r"]
    assert keyed(sent) == [("k", "a"), ("k", "b")]


def test_of_many_keys_the_oldest_are_forgotten() -> None:
    async def many(client: Client) -> None:
        await client.session("s")
        for number in range(1_000):
            await client.cancel("s", key=f"{number}")
        answering.answers = [IN_B, said({"covered": []}, "b")]
        await client.session("s")
        await client.cancel("s", key="0")
        await client.cancel("s", key="one more")
        await client.cancel("s", key="0")
        await client.cancel("s", key="1")

    answering = Answers(LOOKED, said({"covered": []}, "a"))

    async def main(_: object) -> None:
        async with Client("http://server", transport=answering) as client:
            await many(client)

    in_steps(main)
    assert keyed(answering.sent)[-4:] == [("0", "a"), ("one more", "b"), ("0", "b"), ("1", "b")]


def test_an_answer_does_not_move_a_key_into_another_life() -> None:
    (_, other), sent = tried(
        look_and_cancel_twice, LOOKED, said({"covered": []}, "b"), IN_B, said({"covered": []}, "b"), IN_B
    )
    assert other == []
    assert keyed(sent) == [("k", "a"), ("k", "a")]


# Prompts.


def test_a_prompt_is_sent_again_in_any_life() -> None:
    async def send(client: Client) -> str:
        await client.session("s")
        return (await client.submit("s", "tea", run_id="r")).prompt

    answer, sent = tried(send, LOOKED, httpx2.ReadError("cut"), foreign(502), said(RUN, "b"))
    assert answer == "tea"
    assert keyed(sent) == [("r", None)] * 3
    answer, sent = tried(send, LOOKED, httpx2.ReadError("cut"), patience=1.0)
    assert isinstance(answer, OutcomeUnknown)
    assert len(sent) > 3


def test_a_prompt_that_interrupts_is_bound_to_a_life() -> None:
    async def send(client: Client) -> str:
        return (await client.submit("s", "tea", run_id="r", when_busy="interrupt")).prompt

    answer, sent = tried(send, httpx2.ReadError("cut"), said(RUN))
    assert isinstance(answer, OutcomeUnknown)
    assert keyed(sent) == [("r", None)]


def test_a_run_id_that_was_bound_to_no_life_can_be_bound_to_any() -> None:
    async def send(client: Client) -> None:
        await client.submit("s", "tea", run_id="r")
        await client.session("s")
        await client.submit("s", "tea", run_id="r", when_busy="interrupt")

    _, sent = tried(send, said(RUN, "a"), IN_B, said(RUN, "b"))
    assert keyed(sent) == [("r", None), ("r", "b")]


@pytest.mark.parametrize("run_id", ["käse", " r", 'r"'[::-1], "r\n"])
def test_a_run_id_that_a_header_cannot_carry_is_in_the_body_alone(run_id: str) -> None:
    async def send(client: Client) -> None:
        await client.submit("s", "tea", run_id=run_id, when_busy="interrupt")
        await client.submit("s", "tea", run_id=run_id, when_busy="interrupt")

    _, sent = tried(send, said(RUN, "a"), said(RUN, "b"))
    assert keyed(sent) == [(None, None), (None, "a")]


@pytest.mark.parametrize("key", ["käse", " k", '"k', "k\n"])
def test_a_key_that_a_header_cannot_carry_is_refused_before_anything_is_sent(key: str) -> None:
    answering = Answers(DONE)

    async def main(_: object) -> None:
        async with Client("http://server", transport=answering) as client:
            with pytest.raises(ValueError, match="must be printable ASCII"):
                await client.cancel("s", key=key)

    in_steps(main)
    assert not answering.sent


# What an answer says.

BY_NAME = {
    "empty-prompt": turngate.EmptyPrompt,
    "key-conflict": turngate.KeyConflict,
    "not-running": turngate.NotRunning,
    "outcome-unknown": turngate.OutcomeUnknown,
    "queue-full": turngate.QueueFull,
    "run-conflict": turngate.RunConflict,
    "session-busy": turngate.SessionBusy,
    "shutting-down": turngate.DispatcherClosed,
    "unknown-run": turngate.UnknownRun,
}


@pytest.mark.parametrize("name", BY_NAME)
def test_what_a_dispatcher_raises_is_raised_here_too(name: str) -> None:
    answer, _ = tried(cancel, problem(409, name))
    assert type(answer) is BY_NAME[name]
    assert str(answer) == "the reason"


def test_not_waiting_has_the_state_of_the_run() -> None:
    answer, _ = tried(cancel, problem(409, "not-waiting", state="active"))
    assert isinstance(answer, NotWaiting)
    assert answer.state is turngate.State.ACTIVE
    for name in ("aardvark", "zebra"):
        answer, _ = tried(cancel, problem(409, name, state="active"))
        assert isinstance(answer, Refused)
    for odd in ({}, {"state": "asleep"}):
        answer, _ = tried(cancel, problem(409, "not-waiting", **odd))
        assert isinstance(answer, Refused)
        assert (answer.status, answer.name) == (409, "not-waiting")


def test_a_refusal_has_a_status_a_name_and_a_reason() -> None:
    answer, _ = tried(cancel, problem(413, "too-large"))
    assert isinstance(answer, Refused)
    assert (answer.status, answer.name, str(answer)) == (413, "too-large", "413 too-large: the reason")
    bare = httpx2.Response(
        403,
        json={"type": "urn:turngate:problem:odd"},
        headers={"content-type": "application/problem+json; charset=utf-8"},
    )
    answer, _ = tried(cancel, bare)
    assert str(answer) == "403 odd: Forbidden"


@pytest.mark.parametrize(
    "body", [b'{"type": "urn:turn', b"[]", b'"urn:turngate:problem:odd"', b"{}", b'{"type": "about:blank"}']
)
def test_a_refusal_that_is_not_of_a_turngate_server_is_a_strangers(body: bytes) -> None:
    head = {"content-type": "application/problem+json"}
    answer, _ = tried(cancel, httpx2.Response(409, headers=head, content=body))
    assert str(answer) == "409 unknown: Conflict"
    ours = b'{"type": "urn:turngate:problem:session-busy"}'
    answer, _ = tried(cancel, httpx2.Response(409, headers={"content-type": "text/plain"}, content=ours))
    assert str(answer) == "409 unknown: Conflict"


def test_an_answer_that_is_not_json_is_reported_as_such() -> None:
    answer, _ = tried(look, httpx2.Response(200, text="<p>welcome</p>"), patience=0.0)
    assert isinstance(answer, Unreachable)
    assert str(answer) == "the answer is not JSON: it was cut short, or it is not from a Turngate server"


def test_a_prompt_is_asked_and_waited_for() -> None:
    done = {
        "session_id": "s", "run_id": "r", "seq": 1, "text": "hot", "error": None, "cancelled": False,
        "message_id": None, "folded_into": None, "outcome": "finished",
    }  # fmt: skip

    async def ask(client: Client) -> str:
        assert repr(client) == "<Client of http://server/>"
        return (await client.ask("s", "tea", run_id="r")).text

    answer, sent = tried(ask, said(RUN), said(RUN), said({**RUN, "state": "complete", "complete": done}))
    assert answer == "hot"
    assert [each.path for each in sent[1:]] == ["/v1/runs/r?wait=20.0"] * 2


def test_messages_come_page_by_page() -> None:
    def page(number: int, following: str | None) -> Answer:
        message = {"id": f"m{number}", "session_id": "s", "run_id": "r", "role": "user", "text": "tea"}
        return said({"messages": [{**message, "finish_reason": None, "data": None}], "next": following})

    async def messages(client: Client) -> list[str]:
        return [each.id for each in await client.messages("s", after="m0")]

    answer, sent = tried(messages, page(1, "m1"), page(2, None))
    assert answer == ["m1", "m2"]
    assert [each.path.partition("?")[2] for each in sent] == ["limit=100&after=m0", "limit=100&after=m1"]


def test_attachments_go_out_as_text_or_in_base64() -> None:
    answering = Answers(said(RUN))

    async def main(_: object) -> None:
        async with Client("http://server/", "secret", transport=answering) as client:
            await client.submit("s", "tea", attachments=["txt", Attachment("n", "image/png", b"\0")])

    in_steps(main)
    (request,) = answering.requests
    assert request.url == "http://server/v1/sessions/s/runs"
    assert request.headers["authorization"] == "Bearer secret"
    assert b'"text":"txt"' in request.content
    assert b'"base64":"AA=="' in request.content
