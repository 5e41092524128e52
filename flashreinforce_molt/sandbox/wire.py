"""Messages between the parts of the sandbox: a length, a JSON header, and the bytes that the header announces."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

_LENGTH = struct.Struct(">II")

Message = tuple[dict[str, Any], bytes]


def pack(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """One message as bytes."""
    text = json.dumps(header).encode("ascii")
    return _LENGTH.pack(len(text), len(payload)) + text + payload


def receive(connection: socket.socket) -> Message | None:
    """Wait for one message; None at the end of the stream."""
    lengths = _exactly(connection, _LENGTH.size)
    if lengths is None:
        return None
    header_bytes, payload_bytes = _LENGTH.unpack(lengths)
    header, payload = _exactly(connection, header_bytes), _exactly(connection, payload_bytes)
    if header is None or payload is None:
        return None
    return json.loads(header), payload


class Inbox:
    """Messages from bytes that arrive in pieces, from a side that is not trusted."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete now. Raises ValueError on anything that is not one."""
        self._buffer += data
        messages: list[Message] = []
        while len(self._buffer) >= _LENGTH.size:
            header_bytes, payload_bytes = _LENGTH.unpack_from(self._buffer)
            end = _LENGTH.size + header_bytes + payload_bytes
            if end > self.max_bytes:
                raise ValueError(f"a message of {end} bytes, more than {self.max_bytes}")
            if len(self._buffer) < end:
                break
            split = _LENGTH.size + header_bytes
            header = json.loads(self._buffer[_LENGTH.size : split])
            if not isinstance(header, dict):
                raise ValueError("a message without a header")
            messages.append((header, bytes(self._buffer[split:end])))
            del self._buffer[:end]
        return messages


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(min(count - len(data), 1 << 16))
        if not piece:
            return None
        data += piece
    return bytes(data)
