"""Who may talk to the server: names, origins, tokens, sizes; and that nothing said to it is logged."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from dataclasses import fields
from typing import Any

import pytest

import turngate.server._serving as serving_module
from dispatching import in_loop
from serving import served, serving, small
from surroundings import ROOT
from turngate import Dispatcher, Turn
from turngate.server import Limits, asgi_app
from turngate.server._app import App, backend_of
from turngate.server._problems import TITLES
from turngate.server._security import for_address, is_loopback

LIMITS = (ROOT / "docs" / "reference" / "limits.md").read_text(encoding="utf-8")

LOCAL = for_address("127.0.0.1", token=None, names=frozenset({"agent.example"}), origins=frozenset())


async def quick(turn: Turn) -> str:
    return "ok"


def local(**changed: Any) -> App:
    security = for_address(
        **{"host": "127.0.0.1", "token": None, "names": frozenset(), "origins": frozenset(), **changed}
    )
    return App(backend_of(Dispatcher(quick)), security, Limits(), owns=True, finish=0)


async def status(url: str, *headers: str, method: str = "GET", path: str = "/v1/sessions") -> tuple[int, str]:
    """Send a request by hand, for clients mend what is wrong with it; return status and all of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    head = "\r\n".join([f"{method} {path} HTTP/1.1", *headers, "Connection: close", "", ""])
    writer.write(head.encode("latin-1"))
    answer = (await reader.read()).decode("latin-1")
    writer.close()
    return int(answer.split()[1]), answer


@in_loop
async def test_only_names_of_this_machine_are_answered() -> None:
    async with serving(local(names=frozenset({"agent.example"}))) as url:
        port = url.rpartition(":")[2]
        for host in (
            f"127.0.0.1:{port}",
            f"localhost:{port}",
            "LOCALHOST",
            "[::1]:1",
            "[::1]",
            "agent.example:80",
        ):
            assert (await status(url, f"Host: {host}"))[0] == 200, host
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil", "", "10.0.0.1", "[::2]"):
            code, answer = await status(url, f"Host: {host}")
            assert (code, "unknown-host" in answer) == (421, True), host
            assert (await status(url, f"Host: {host}", path="/"))[0] == 421


@in_loop
async def test_pages_of_other_origins_are_refused_unless_they_were_given() -> None:
    async with serving(local(origins=frozenset({"https://app.example"}))) as url:
        host = f"Host: {url[7:]}"
        assert (await status(url, host, f"Origin: {url}"))[0] == 200
        for origin in ("http://evil.example", "null", "http://127.0.0.1", f"{url}.evil"):
            for method in ("GET", "POST", "OPTIONS"):
                path = "/v1/sessions" if method == "GET" else "/v1/sessions/s/cancel"
                code, answer = await status(url, host, f"Origin: {origin}", method=method, path=path)
                assert (code, "forbidden-origin" in answer) == (403, True)
                assert "access-control" not in answer
        given = "Origin: https://app.example"
        code, answer = await status(url, host, given)
        assert code == 200
        assert "access-control-allow-origin: https://app.example\r\n" in answer
        code, answer = await status(url, host, given, method="OPTIONS", path="/v1/sessions/s/runs")
        assert code == 204
        assert "Authorization" in answer


@in_loop
async def test_with_a_token_everything_but_the_page_and_the_probes_asks_for_it() -> None:
    async with served(quick, token="s3cret-√") as (_, http):
        for path in ("/healthz", "/readyz", "/", "/app.js", "/style.css"):
            assert (await http.get(path)).status_code == 200, path
        for path in ("/v1/sessions", "/v1/events", "/v1/runs/r", "/metrics", "/openapi.json", "/nothing"):
            for given in (None, "Bearer", "Bearer wrong", "Basic s3cret", "Bearer s3cret-√x", "s3cret-√"):
                headers = {} if given is None else {b"Authorization": given.encode()}
                answer = await http.get(path, headers=headers)
                assert answer.status_code == 401, (path, given)
                assert answer.headers["www-authenticate"].startswith("Bearer")
        headers = {b"Authorization": "bearer s3cret-√".encode()}
        assert (await http.get("/v1/sessions", headers=headers)).status_code == 200
        described = (await http.get("/openapi.json", headers=headers)).json()
        assert described["security"] == [{"token": []}]
        assert "401" in described["paths"]["/v1/sessions"]["get"]["responses"]
        assert described["paths"]["/healthz"]["get"]["security"] == []


@in_loop
async def test_headers_have_a_limit() -> None:
    async with served(quick, limits=small(header_limit=1_000)) as (url, _):
        code, answer = await status(url, "Host: x", f"X-Long: {'x' * 1_000}")
        assert (code, "too-large" in answer) == (413, True)
        code, _ = await status(url, "Host: x", f"X-Long: {'x' * 100_000}")
        assert code in (400, 413)  # uvicorn reads no further, if it does not come at once


@in_loop
async def test_a_silent_connection_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_module, "HEADER_TIMEOUT", 0.1)
    async with served(quick, limits=small(body_timeout=0.1)) as (url, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"GET / HTTP/1.1\r\nHo")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""  # closed without an answer
        writer.close()
        monkeypatch.undo()  # from here on, a slow machine has time for the head
        head = ("Host: x", "Content-Type: application/json", "Content-Length: 5")
        code, answer = await status(url, *head, method="POST", path="/v1/sessions/s/runs")
        assert (code, "body_timeout" in answer) == (400, True)


@in_loop
async def test_nor_is_the_rest_of_a_later_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that asks once, and then sends a byte now and then, does not keep the connection."""
    monkeypatch.setattr(serving_module, "HEADER_TIMEOUT", 0.3)
    async with served(quick) as (url, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b'"alive"}')
        ended = asyncio.ensure_future(reader.read())
        writer.write(b"GET /healthz HTTP/1.1\r\nX: ")
        while not ended.done():
            writer.write(b"x")
            await asyncio.sleep(0.01)
        assert ended.exception() is not None or ended.result() == b""
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        # One that comes in pieces, in time, is answered, and so is the next.
        monkeypatch.undo()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        for _ in range(3):
            for piece in (b"GET /healthz HT", b"TP/1.1\r\nHo", b"st: x\r\n\r\n"):
                writer.write(piece)
                await asyncio.sleep(0)
            await reader.readuntil(b'"alive"}')
        writer.close()


def test_uvicorn_is_set_up_not_to_wait_for_ever() -> None:
    """Slow clients are dropped, and nothing of a request goes into its log."""
    settings = serving_module.config(local(), "127.0.0.1", 0)
    assert settings.http is serving_module.HttpProtocol
    assert (settings.timeout_keep_alive, serving_module.HEADER_TIMEOUT) == (10, 20)
    assert settings.h11_max_incomplete_event_size == 2 * Limits().header_limit
    assert settings.limit_concurrency == 2 * Limits().streams_limit + 1_000
    assert (settings.access_log, settings.log_level) == (False, "warning")


def test_every_limit_is_documented_with_its_default_and_its_answer() -> None:
    table = LIMITS.partition("\n## Server\n")[2]
    told = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \| ([^|]+) \|$", table, re.MULTILINE))
    assert [*told] == [field.name for field in fields(Limits)]
    for name, answer in told.items():
        said = re.search(rf"^ *{name} .*$", Limits.__doc__ or "", re.MULTILINE)  # 3.13 takes indents away
        assert said is not None, name
        for status, problem in re.findall(r"(\d{3}) `([\w-]+)`", answer):
            assert f"{status} {problem}" in said[0]
            assert TITLES[problem][0] == int(status)


@in_loop
async def test_no_prompt_and_no_token_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with served(quick, token="s3cret") as (_, http):
        headers = {"Authorization": "Bearer s3cret"}
        for sent in ({"prompt": "classified"}, {"prompt": "classified", "when_busy": "x"}, {"prompt": 1}):
            await http.post("/v1/sessions/s/runs", json=sent, headers=headers)
        await http.get("/v1/sessions", headers={"Authorization": "Bearer s3cre"})
        await http.post("/v1/sessions/s/runs", content=b"{classified", headers=headers)
    ours = [
        record.getMessage() for record in caplog.records if record.name.startswith(("turngate", "uvicorn"))
    ]
    assert not any(re.search("classified|s3cre", line) for line in ours)


def test_what_is_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "")))


def test_on_other_addresses_plain_addresses_are_names_too() -> None:
    elsewhere = for_address("0.0.0.0", token="t", names=frozenset({"agent.example"}), origins=frozenset())
    assert elsewhere._is_ours("192.168.1.7:8765")
    assert elsewhere._is_ours("agent.example")
    assert not elsewhere._is_ours("evil.example")
    assert for_address("0.0.0.0", token="t", names=frozenset({"*"}), origins=frozenset()).hosts is None


def test_limits_and_tokens_that_cannot_be() -> None:
    for wrong in ({"body_limit": 0}, {"heartbeat": 0}, {"ring_events": 1.5}, {"wait_limit": float("nan")}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Limits(**wrong)
    with pytest.raises(ValueError, match="token"):
        asgi_app(quick, token="")
