"""Streams of a gateway over bare sockets, which allocate almost nothing."""

import socket
from contextlib import ExitStack
from urllib.parse import urlsplit


def opened(sockets: ExitStack, url: str, sessions: list[str]) -> list[socket.socket]:
    """Open streams of these sessions, and return them once their heads have arrived."""
    place, found = urlsplit(url), []
    for session in sessions:
        one = sockets.enter_context(socket.create_connection((place.hostname, place.port)))
        one.sendall(f"GET /sessions/{session}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        found.append(one)
    for one in found:
        heard(one, b"retry:")
    return found


def heard(stream: socket.socket, text: bytes) -> None:
    """Read from a stream until this text has arrived."""
    got = b""
    while text not in got:
        part = stream.recv(65536)
        assert part, got
        got += part
