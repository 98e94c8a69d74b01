"""The listening socket."""

import socket

from rnnsearch.serve.server import _listen


def test_accepted_connections_do_not_wait_for_acknowledgements():
    """asyncio turns Nagle's algorithm off where the socket names its protocol."""
    with _listen("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP
