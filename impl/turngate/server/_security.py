"""Decides which requests are answered: under which name, from which page, and with which token.

1. Host: a page that has its own name lead to this machine (DNS rebinding) still sends that name. On loopback
   only names of loopback are answered; on other addresses also plain addresses and the names that were given.
2. Origin: a page of another origin is refused, whatever it asks for, unless that origin was given.
3. The bearer token, compared in constant time; for everything but the page and what is open.
"""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from turngate._errors import counted
from turngate.server._problems import Problem

if TYPE_CHECKING:
    from starlette.types import Scope

    from turngate.server._limits import Limits

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True)
class Security:
    """What a request must meet.

    token      what must be presented; None: nothing
    hosts      names that the server answers under; None: all of them
    addresses  whether it answers under plain addresses, too
    origins    other origins whose pages may call it; these get CORS headers
    """

    token: str | None = None
    hosts: frozenset[str] | None = LOOPBACK
    addresses: bool = False
    origins: frozenset[str] = frozenset()

    def check(self, scope: Scope, limits: Limits, *, is_open: bool) -> str | None:
        """Refuse a request, or return the other origin that it comes from and may come from."""
        headers: dict[bytes, bytes] = {}
        size = 0
        for name, value in scope["headers"]:
            size += len(name) + len(value)
            headers[name] = value
        if size > limits.header_limit:
            raise Problem(
                "too-large", f"headers have at most {counted(limits.header_limit, 'byte')} (header_limit)"
            )
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self.hosts is not None and not self._is_ours(host):
            raise Problem("unknown-host", "the Host header names another server; see --allow-host")
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        foreign = bool(origin) and origin.partition("://")[2] != host
        if foreign and origin not in self.origins:
            raise Problem("forbidden-origin")
        preflight = foreign and scope["method"] == "OPTIONS"
        if self.token is not None and not (is_open or preflight):
            self._check_token(headers.get(b"authorization", b""))
        return origin if foreign else None

    def _is_ours(self, host: str) -> bool:
        assert self.hosts is not None
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return name in self.hosts or (self.addresses and _is_address(name))

    def _check_token(self, authorization: bytes) -> None:
        assert self.token is not None
        scheme, _, presented = authorization.partition(b" ")
        right = hmac.compare_digest(presented.strip(), self.token.encode())
        if not right or scheme.lower() != b"bearer":
            raise Problem("unauthorized", www_authenticate='Bearer realm="turngate"')


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def for_address(host: str, *, token: str | None, names: frozenset[str], origins: frozenset[str]) -> Security:
    """Return what a server on this address holds requests to."""
    if "*" in names:
        return Security(token, None, origins=origins)
    local = is_loopback(host)
    own = f"[{host}]" if ":" in host else host.lower()
    return Security(token, LOOPBACK | {own} | names, addresses=not local, origins=origins)
