"""A client for a Turngate server: typed, async, calm when connections break; extra ``turngate[client]``.

::

    async with Client("http://127.0.0.1:8765") as client:
        print((await client.ask("session", "tea")).text)
        async for event in client.events():
            ...
"""

from turngate import OutcomeUnknown
from turngate.client._calls import Refused, Unreachable
from turngate.client._client import Client
from turngate.client._events import EventStream
from turngate.client._text import RemoteText
from turngate.client._types import Gap, RemoteCovered, RemoteEvent, RemoteRun, RemoteSession, Snapshot

__all__ = [
    "Client",
    "EventStream",
    "Gap",
    "OutcomeUnknown",
    "Refused",
    "RemoteCovered",
    "RemoteEvent",
    "RemoteRun",
    "RemoteSession",
    "RemoteText",
    "Snapshot",
    "Unreachable",
]
