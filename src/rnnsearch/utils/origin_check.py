"""Protection against cross-site requests and DNS rebinding, for both servers (`serve` and `runtime`).

A page of another site can make a browser send requests to a server on the reader's machine. It cannot read the
responses, but it could start work. Such requests are rejected by their `Origin` and `Sec-Fetch-Site` headers, unless
the owner of the server has allowed the origin. A page that reaches this machine under its own domain name (DNS
rebinding) is rejected by its `Host` header.

`serve/admission.py` and `runtime/serve.py` call `rejection` for every request; see docs/threats.md. This module must
import only the standard library. Tests: tests/serve/test_admission.py, tests/runtime/test_serve.py.
"""

from __future__ import annotations

from collections.abc import Set
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

LOOPBACK_NAMES = frozenset({"localhost", "ip6-localhost"})
"""Host names of this machine."""
DEFAULT_PORTS = {"http": 80, "https": 443}
"""Ports of URLs without one, by scheme."""
SAFE_METHODS = ("GET", "HEAD")
"""Methods that change nothing."""


class RequestOrigin(NamedTuple):
    """Method and origin headers of a request; a missing header is an empty string."""

    method: str
    """HTTP method."""
    host: str
    """Header `Host`."""
    origin: str
    """Header `Origin`."""
    fetch_site: str
    """Header `Sec-Fetch-Site`."""


def rejection(
    request: RequestOrigin, allowed_hosts: Set[str], allowed_origins: Set[str] = frozenset()
) -> tuple[int, str] | None:
    """Return the status and message to reject a request with, or None to accept it.

    Args:
        request: Method and origin headers of the request.
        allowed_hosts: Host names of this server in addition to its addresses and localhost; "*" allows any.
        allowed_origins: Origins of other pages and of browser extensions that may use this server; "*" allows any.
    """
    if not is_own_host(request.host, allowed_hosts):
        return 400, "the host must be a name of this server (see --allowed-host); got another one"
    is_other_origin = request.origin != "" and not _is_same_host(request.origin, request.host)
    is_cross_site = request.fetch_site == "cross-site" or is_other_origin
    is_allowed = "*" in allowed_origins or request.origin.lower() in allowed_origins
    if is_cross_site and not is_allowed and request.method not in SAFE_METHODS:
        return 403, "requests from pages of other sites are not accepted"
    return None


def is_own_host(host: str, allowed_hosts: Set[str]) -> bool:
    """Return True if the name is an address, a loopback name, or allowed."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name in LOOPBACK_NAMES | allowed_hosts or "*" in allowed_hosts:
        return True
    # No site can have an IP address as its domain name, so an address is always safe.
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_same_host(origin: str, host: str) -> bool:
    """Return True if an origin has the name and the port of a `Host` header; the port of its scheme may be omitted."""
    try:
        page = urlsplit(origin.lower())
        server = urlsplit(f"//{host.lower()}")
        default_port = DEFAULT_PORTS.get(page.scheme)
        is_same_port = (page.port or default_port) == (server.port or default_port)
    except ValueError:
        return False
    return bool(page.hostname) and page.hostname == server.hostname and is_same_port
