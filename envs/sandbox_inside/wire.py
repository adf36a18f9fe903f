"""Frames on a file descriptor: four bytes of length (big endian), then so many bytes."""

from __future__ import annotations

import os
import struct

READY, STDOUT, STDERR, VERDICT, SEEN = b"r", b"o", b"e", b"v", b"s"
"""The letter that an answer of the supervisor begins with."""
MAX_FRAME_BYTES = 64 << 20


class PeerGone(Exception):
    """The other end was closed in the middle of, or before, a frame."""


def send_frame(fd: int, *pieces: bytes | memoryview) -> None:
    """Write one frame, given in pieces. Raises `PeerGone` if nobody reads."""
    size = sum(map(len, pieces))
    if size > MAX_FRAME_BYTES:
        raise ValueError(f"{size} bytes are more than a frame of {MAX_FRAME_BYTES} holds")
    parts = [memoryview(piece) for piece in (struct.pack(">I", size), *pieces)]
    try:
        while parts:
            n_written = os.writev(fd, parts)
            while parts and n_written >= len(parts[0]):
                n_written -= len(parts.pop(0))
            if parts:
                parts[0] = parts[0][n_written:]
    except (BrokenPipeError, ConnectionResetError):
        raise PeerGone from None


def receive_frame(fd: int) -> bytes:
    """Read one frame, and not a byte more. Raises `PeerGone` at the end of the stream."""
    (size,) = struct.unpack(">I", _read_exactly(fd, 4))
    if size > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {size} bytes is announced; {MAX_FRAME_BYTES} are allowed")
    return _read_exactly(fd, size)


def _read_exactly(fd: int, size: int) -> bytes:
    pieces = bytearray()
    while len(pieces) < size:
        try:
            piece = os.read(fd, min(size - len(pieces), 1 << 20))
        except ConnectionResetError:
            piece = b""
        if not piece:
            raise PeerGone
        pieces += piece
    return bytes(pieces)
