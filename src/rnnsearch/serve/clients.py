"""Limits per client, whom the address identifies: connections, abandoned requests, and attempts to guess an API key.

`server.Connection` counts connections in `ConnectionCounts`, `admission.AdmissionControl` counts requests in
`AbandonedRequests`, `service.Service` counts wrong keys in `WrongKeys`. Behind a proxy, all clients have its address.
Tests: `tests/serve/test_clients.py`.
"""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict
from ipaddress import IPv6Address, ip_address

WRONG_KEYS_PER_SECOND = 1.0
MAX_WRONG_KEYS = 10  # at once
MAX_ABANDONED = 20  # at once
ABANDONED_PER_SECOND = 4.0
MAX_ADDRESSES = 10_000  # addresses that have sent wrong keys or abandoned requests, the latest ones
NETWORK_BITS = 64  # of an IPv6 address: one client has all addresses of such a network


def client_of(address: str) -> str:
    """Return the identity of the client with an address: the address itself or, of IPv6, its network."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:  # no address, as in tests
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return hex(int(parsed) >> NETWORK_BITS)


class ConnectionCounts:
    """Numbers of open connections, in total and by client."""

    def __init__(self) -> None:
        self._by_client = Counter[str]()

    def add(self, client: str, max_total: int, max_per_client: int) -> bool:
        """Count a connection and return True, or return False if there are too many."""
        if self._by_client.total() >= max_total or self._by_client[client] >= max_per_client:
            return False
        self._by_client[client] += 1
        return True

    def remove(self, client: str) -> None:
        """Count a connection no longer."""
        self._by_client[client] -= 1
        if not self._by_client[client]:
            del self._by_client[client]


class AbandonedRequests:
    """Finds clients that disconnect before most of their responses: their requests cause work for nothing."""

    def __init__(self) -> None:
        self._free_times: OrderedDict[str, float] = OrderedDict()  # when all abandoned requests are forgotten

    def has_too_many(self, client: str) -> bool:
        """Return True if a client has abandoned too many requests."""
        return self._free_times.get(client, 0.0) - time.monotonic() > MAX_ABANDONED / ABANDONED_PER_SECOND

    def count(self, client: str) -> None:
        """Count an abandoned request."""
        start = max(time.monotonic(), self._free_times.pop(client, 0.0))
        # Limited, so that a client is soon like others when it has stopped.
        max_seconds = 2 * MAX_ABANDONED / ABANDONED_PER_SECOND
        self._free_times[client] = min(start + 1 / ABANDONED_PER_SECOND, time.monotonic() + max_seconds)
        if len(self._free_times) > MAX_ADDRESSES:
            self._free_times.popitem(last=False)

    def compensate(self, client: str) -> None:
        """Forget an abandoned request, because the client has waited for a response."""
        if client in self._free_times:
            self._free_times[client] -= 1 / ABANDONED_PER_SECOND
            if self._free_times[client] <= time.monotonic():
                del self._free_times[client]


class WrongKeys:
    """Limits how fast a client can guess API keys.

    Keys that were accepted from a client stay accepted, so that others behind the same proxy do not notice.
    """

    def __init__(self) -> None:
        self._free_times: OrderedDict[str, float] = OrderedDict()  # when all wrong keys of a client are forgotten
        self._known_keys: set[tuple[str, str]] = set()

    def retry_after(self, client: str) -> int:
        """Return the seconds after which a client may try another key; 0 for now."""
        seconds = self._free_times.get(client, 0.0) - time.monotonic() - (MAX_WRONG_KEYS - 1) / WRONG_KEYS_PER_SECOND
        return max(0, math.ceil(seconds))

    def is_known(self, client: str, key: str) -> bool:
        """Return True if this key was accepted from this client before."""
        return (client, key) in self._known_keys

    def count(self, client: str) -> None:
        """Count a wrong key."""
        start = max(time.monotonic(), self._free_times.pop(client, 0.0))
        self._free_times[client] = start + 1 / WRONG_KEYS_PER_SECOND
        if len(self._free_times) > MAX_ADDRESSES:
            self._free_times.popitem(last=False)

    def accept(self, client: str, key: str) -> None:
        """Remember a key that was accepted."""
        if len(self._known_keys) >= MAX_ADDRESSES:
            self._known_keys.clear()
        self._known_keys.add((client, key))
