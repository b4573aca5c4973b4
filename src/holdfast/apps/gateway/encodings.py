"""Compressed bodies: the gateway passes them on as they came, and reads a copy."""

import zlib
from typing import Protocol

import zstandard

GZIP_WINDOW = 31


class UnreadableBodyError(Exception):
    """Raised when a body cannot be decompressed. It is forwarded all the same, without being recorded."""


class BodyTooLargeError(Exception):
    """Raised when a body is larger than the limit, after decompression too. The client gets a 413."""


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
                one = zlib.decompressobj(zlib.MAX_WBITS if encoding == "deflate" else GZIP_WINDOW)
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


class StreamDecompressor:
    """Reads a compressed answer as it arrives. What cannot be read is left out, and `is_readable` becomes false."""

    def __init__(self, encoding: str) -> None:
        self.is_plain = not encoding or encoding == "identity"
        self._decompressor: _Decompressor | None = None
        if encoding in {"gzip", "x-gzip"}:
            self._decompressor = zlib.decompressobj(GZIP_WINDOW)
        elif encoding == "deflate":
            self._decompressor = zlib.decompressobj()
        elif encoding == "zstd":
            self._decompressor = zstandard.ZstdDecompressor().decompressobj()

    @property
    def is_readable(self) -> bool:
        """Whether everything that came so far could be read."""
        return self.is_plain or self._decompressor is not None

    def read(self, chunk: bytes) -> bytes:
        """Return the plain bytes of a chunk."""
        if self.is_plain:
            return chunk
        if self._decompressor is None:
            return b""
        try:
            return self._decompressor.decompress(chunk)
        except (zlib.error, zstandard.ZstdError):
            self._decompressor = None
            return b""
