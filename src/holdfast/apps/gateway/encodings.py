"""Compressed bodies: the gateway passes them on as they came, and reads a copy."""

import zlib
from typing import Protocol

import zstandard

GZIP_WINDOW = 31


class UnreadableBodyError(Exception):
    """Raised when a body cannot be decompressed. It is forwarded all the same, without being recorded."""


class BodyTooLargeError(Exception):
    """Raised when a body is larger than the limit, after decompression too. The client gets a 413."""


DEFLATE_METHOD = 8
"""What the first four bits of zlib's header are; some servers send `deflate` without a header."""


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def decompressed(body: bytes, encoding: str, *, max_bytes: int) -> bytes:
    """Return a body without its encoding; a bomb is noticed before it takes more memory than the limit."""
    if not encoding or encoding == "identity":
        return body
    pieces: list[bytes] = []
    room = max_bytes
    try:
        if encoding == "zstd":
            with zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=True) as reader:
                pieces.append(reader.read(max_bytes + 1))
        elif encoding in {"gzip", "x-gzip", "deflate"}:
            rest = body
            while rest and room >= 0:
                one = zlib.decompressobj(_window(encoding, rest))
                pieces.append(one.decompress(rest, room + 1))
                room -= len(pieces[-1])
                if room >= 0 and not one.eof:
                    raise UnreadableBodyError(f"the {encoding} body is cut short")
                rest = one.unused_data
        else:
            raise UnreadableBodyError(f"unknown content-encoding {encoding!r:.40}")
    except (zlib.error, zstandard.ZstdError) as error:
        raise UnreadableBodyError(f"the {encoding} body is damaged: {error}") from error
    plain = b"".join(pieces)
    if len(plain) > max_bytes:
        raise BodyTooLargeError
    return plain


def _window(encoding: str, body: bytes) -> int:
    """Return which header zlib expects before a body: that of gzip, its own, or none."""
    if encoding != "deflate":
        return GZIP_WINDOW
    return zlib.MAX_WBITS if body[0] & 0x0F == DEFLATE_METHOD else -zlib.MAX_WBITS


class StreamDecompressor:
    """Reads a compressed answer as it arrives. What cannot be read is left out, and `is_readable` becomes false.

    An answer may be several members or frames after each other: some servers end one with each piece that they send.
    """

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self.is_plain = not encoding or encoding == "identity"
        self.is_readable = self.is_plain or encoding in {"gzip", "x-gzip", "deflate", "zstd"}
        """Whether everything that came so far could be read."""
        self._decompressor: _Decompressor | None = None
        self._has_ended = self._is_over = False
        self._is_silent = True
        """Whether the member that is being read has said nothing yet."""

    def read(self, chunk: bytes) -> bytes:
        """Return the plain bytes of a chunk."""
        if self.is_plain:
            return chunk
        plain, rest = list[bytes](), b"" if self._is_over else chunk
        try:
            while rest and self.is_readable:
                one = self._decompressor = self._decompressor or self._new_decompressor(rest)
                plain.append(one.decompress(rest))
                rest = one.unused_data if one.eof else b""
                self._is_silent = one.eof or (self._is_silent and not plain[-1])
                if one.eof:
                    self._has_ended, self._decompressor = True, None
        except (zlib.error, zstandard.ZstdError):
            # After the last member, there may be anything: clients do not read it either.
            self._is_over = self._has_ended and self._is_silent
            self.is_readable = self._is_over
        return b"".join(plain)

    def _new_decompressor(self, rest: bytes) -> _Decompressor:
        if self._encoding == "zstd":
            return zstandard.ZstdDecompressor().decompressobj()
        return zlib.decompressobj(_window(self._encoding, rest))
