"""The listening socket."""

import socket

from rnnsearch.serve.server import _listen


def test_socket_names_its_protocol_so_that_asyncio_disables_nagles_algorithm():
    with _listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
