"""Whose requests a server takes: those to a name of its own, and none that another site's page makes.

A page of another site can make a reader's browser send requests to a server on the reader's own machine. It cannot
read the answers, but could make work, so such requests are refused (`Origin`, `Sec-Fetch-Site`); nor can it come by a
name of its own that leads to this machine (DNS rebinding), for the names that the server answers to are known (`Host`).
"""

from __future__ import annotations

from collections.abc import Set
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

LOOPBACK = frozenset({"localhost", "ip6-localhost"})
READING = ("GET", "HEAD")


class Caller(NamedTuple):
    """What a request's head says of where it is from: its method and three of its headers, empty where they are not."""

    method: str
    host: str
    origin: str
    site: str


def refused(caller: Caller, allowed: Set[str]) -> tuple[int, str] | None:
    """The status and the sentence for a request that is not taken; `allowed`: names of this server besides its
    addresses and localhost, `*` for all."""
    if not _known(caller.host, allowed):
        return 400, "the host must be a name of this server (--allowed-host); got another"
    foreign = caller.site == "cross-site" or (caller.origin and _place(caller.origin) != caller.host)
    if foreign and caller.method not in READING:
        return 403, "a request must not come from another site's page"
    return None


def _known(host: str, allowed: Set[str]) -> bool:
    """Whether a name is one of this server's. An address is: no other site has it as its name."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name in LOOPBACK | allowed or "*" in allowed:
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _place(origin: str) -> str | None:
    """The host and port of an origin; None for what is none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None
