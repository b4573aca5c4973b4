"""Compressed bodies: the gateway passes them on as they came, and reads a copy."""

import asyncio
import zlib

import zstandard

GZIP_WINDOW = 31


class UnreadableBodyError(Exception):
    """Raised when a body cannot be decompressed. It is forwarded all the same, without being recorded."""


class BodyTooLargeError(Exception):
    """Raised when a body is larger than the limit, after decompression too. The client gets a 413."""


DEFLATE_METHOD = 8
"""What the first four bits of zlib's header are; some servers send `deflate` without a header."""
MAX_PLAIN_BYTES = 64 * 2**20
"""How much of a compressed answer is read; what comes after it is passed on only."""
STEP_BYTES = 1 << 20
"""How much is decompressed at once; other requests run between two steps."""
ZSTD_SLICE_BYTES = 1 << 8
"""How much is given to zstd at once. It has no limit for what comes out: four bytes may hold 128 KiB."""


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
    A bomb is read up to a limit, step by step.
    """

    def __init__(self, encoding: str, *, max_bytes: int = MAX_PLAIN_BYTES) -> None:
        self._encoding = encoding
        self.is_plain = not encoding or encoding == "identity"
        self.is_readable = self.is_plain or encoding in {"gzip", "x-gzip", "deflate", "zstd"}
        """Whether everything that came so far could be read."""
        self._decompressor: _ZlibReader | _ZstdReader | None = None
        self._room = max_bytes
        self._unread = b""
        """What came and is still to be read."""
        self._has_ended = self._is_over = False
        self._is_silent = True
        """Whether the member that is being read has said nothing yet."""

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached, and what comes now is left out."""
        return self._room <= 0

    async def read_all(self, chunk: bytes) -> bytes:
        """Return all plain bytes of a chunk; other tasks run between its steps."""
        plain = self.read(chunk)
        if not self._unread:
            return plain
        pieces = [plain]
        while self._unread:
            await asyncio.sleep(0)
            pieces.append(self.read(b""))
        return b"".join(pieces)

    def read(self, chunk: bytes) -> bytes:
        """Return the plain bytes of a chunk, or the first of them: then the next call returns more."""
        if self.is_plain:
            return chunk
        plain, size, rest = list[bytes](), 0, self._unread + chunk
        try:
            while rest and size < STEP_BYTES and self._room > 0 and self.is_readable and not self._is_over:
                one = self._decompressor = self._decompressor or self._new_decompressor(rest)
                piece, rest = one.read(rest, min(STEP_BYTES, self._room))
                plain.append(piece[: self._room])
                size += len(piece)
                self._room -= len(piece)
                self._is_silent = one.is_ended or (self._is_silent and not piece)
                if one.is_ended:
                    self._has_ended, self._decompressor = True, None
        except (zlib.error, zstandard.ZstdError):
            # After the last member, there may be anything: clients do not read it either.
            self._is_over = self._has_ended and self._is_silent
            self.is_readable = self._is_over
        self._unread = rest if self._room > 0 and self.is_readable and not self._is_over else b""
        return b"".join(plain)

    def _new_decompressor(self, rest: bytes) -> "_ZlibReader | _ZstdReader":
        return _ZstdReader() if self._encoding == "zstd" else _ZlibReader(_window(self._encoding, rest))


class _ZlibReader:
    def __init__(self, window: int) -> None:
        self._object = zlib.decompressobj(window)

    @property
    def is_ended(self) -> bool:
        return self._object.eof

    def read(self, data: bytes, max_bytes: int) -> tuple[bytes, bytes]:
        """Return plain bytes, and what is still to be read."""
        plain = self._object.decompress(data, max_bytes)
        if len(plain) == max_bytes and not self._object.unconsumed_tail:
            plain += self._object.decompress(b"", max_bytes)  # the last bytes of the input may hold more
        return plain, self._object.unused_data if self._object.eof else self._object.unconsumed_tail


class _ZstdReader:
    def __init__(self) -> None:
        self._object = zstandard.ZstdDecompressor().decompressobj()

    @property
    def is_ended(self) -> bool:
        return self._object.eof

    def read(self, data: bytes, max_bytes: int) -> tuple[bytes, bytes]:
        """Return plain bytes, and what is still to be read; it may be more bytes, because it stops after a slice."""
        view, pieces, size, at = memoryview(data), list[bytes](), 0, 0
        while at < len(data) and size < max_bytes and not self._object.eof:
            pieces.append(self._object.decompress(view[at : at + ZSTD_SLICE_BYTES]))
            size += len(pieces[-1])
            at += ZSTD_SLICE_BYTES
        return b"".join(pieces), (self._object.unused_data if self._object.eof else b"") + data[at:]
