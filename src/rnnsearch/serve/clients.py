"""Limits per client, whom the address identifies: connections, abandoned requests, and attempts to guess an API key.

`server.Connection` counts connections in `ConnectionCounts`, `admission.AdmissionControl` counts abandoned requests in
`LeakyBuckets`, `service.Service` counts wrong keys in `WrongKeys`. Behind a proxy, all clients have its address.
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


class LeakyBuckets:
    """Number of events of each client, which are forgotten at a constant rate."""

    def __init__(self, capacity: int, per_second: float, max_level: float = math.inf) -> None:
        """Start with empty buckets.

        Args:
            capacity: Number of events at which a bucket is full.
            per_second: Number of events of a client that are forgotten per second.
            max_level: Maximum number of events that are remembered, so that a client is soon like others when it has
                stopped.
        """
        self._capacity = capacity
        self._per_second = per_second
        self._max_level = max_level
        self._empty_times: OrderedDict[str, float] = OrderedDict()  # when all events of a client are forgotten

    def level(self, client: str) -> float:
        """Return the number of events that are not forgotten yet."""
        return self._per_second * max(0.0, self._empty_times.get(client, 0.0) - time.monotonic())

    def seconds_until_free(self, client: str) -> float:
        """Return the seconds until another event fits into a bucket; 0 if one fits now."""
        return max(0.0, self.level(client) + 1 - self._capacity) / self._per_second

    def is_full(self, client: str) -> bool:
        """Return True if no further event fits into a bucket."""
        return self.seconds_until_free(client) > 0

    def add(self, client: str) -> None:
        """Count an event."""
        self._set_level(client, min(self.level(client) + 1, self._max_level))

    def remove(self, client: str) -> None:
        """Forget an event."""
        if client in self._empty_times:
            self._set_level(client, self.level(client) - 1)

    def _set_level(self, client: str, level: float) -> None:
        # The latest clients are at the end.
        self._empty_times.pop(client, None)
        if level > 0:
            self._empty_times[client] = time.monotonic() + level / self._per_second
        if len(self._empty_times) > MAX_ADDRESSES:
            self._empty_times.popitem(last=False)


def abandoned_requests() -> LeakyBuckets:
    """Return the requests whose clients disconnected before the response: they cause work for nothing."""
    return LeakyBuckets(MAX_ABANDONED, ABANDONED_PER_SECOND, max_level=2.0 * MAX_ABANDONED)


class WrongKeys:
    """Limits how fast a client can guess API keys.

    Keys that were accepted from a client stay accepted, so that others behind the same proxy do not notice.
    """

    def __init__(self) -> None:
        self._attempts = LeakyBuckets(MAX_WRONG_KEYS, WRONG_KEYS_PER_SECOND)
        self._known_keys: set[tuple[str, str]] = set()

    def retry_after(self, client: str) -> int:
        """Return the seconds after which a client may try another key; 0 for now."""
        return math.ceil(self._attempts.seconds_until_free(client))

    def is_known(self, client: str, key: str) -> bool:
        """Return True if this key was accepted from this client before."""
        return (client, key) in self._known_keys

    def count(self, client: str) -> None:
        """Count a wrong key."""
        self._attempts.add(client)

    def accept(self, client: str, key: str) -> None:
        """Remember a key that was accepted."""
        if len(self._known_keys) >= MAX_ADDRESSES:
            self._known_keys.clear()
        self._known_keys.add((client, key))
