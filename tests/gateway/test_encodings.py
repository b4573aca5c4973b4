"""Compressed bodies are read up to the limit, and no further."""

import asyncio
import gzip
import zlib
from itertools import pairwise

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from holdfast.apps.gateway import encodings
from holdfast.apps.gateway.encodings import (
    MAX_PLAIN_BYTES,
    BodyTooLargeError,
    StreamDecompressor,
    UnreadableBodyError,
    decompressed,
)

PACKED = {
    "gzip": gzip.compress(b"x" * 1_000),
    "deflate": zlib.compress(b"x" * 1_000),
    "zstd": zstandard.compress(b"x" * 1_000),
}


@pytest.mark.parametrize("encoding", PACKED)
def test_a_body_as_large_as_the_limit_is_read_and_one_byte_more_is_too_large(encoding: str) -> None:
    assert decompressed(PACKED[encoding], encoding, max_bytes=1_000) == b"x" * 1_000
    for limit in (999, 998, 10):
        with pytest.raises(BodyTooLargeError):
            decompressed(PACKED[encoding], encoding, max_bytes=limit)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_body_that_is_cut_short_is_not_read_as_a_shorter_one(encoding: str) -> None:
    with pytest.raises(UnreadableBodyError, match=f"the {encoding} body is cut short"):
        decompressed(PACKED[encoding][:-4], encoding, max_bytes=1_000)


WORDS = [b"data: one\n\n", b"", b"data: two\n\n", b"x" * 70_000]


def without_header(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


STREAMS = {
    "one gzip member": ("gzip", gzip.compress(b"".join(WORDS))),
    "a gzip member for each piece": ("x-gzip", b"".join(map(gzip.compress, WORDS))),
    "a zstd frame for each piece": ("zstd", b"".join(map(zstandard.compress, WORDS))),
    "a gzip member and padding": ("gzip", gzip.compress(b"".join(WORDS)) + bytes(8)),
    "deflate": ("deflate", zlib.compress(b"".join(WORDS))),
    "deflate without a header": ("deflate", without_header(b"".join(WORDS))),
}


@given(name=st.sampled_from(sorted(STREAMS)), cuts=st.sets(st.integers(0, 300)))
def test_a_compressed_stream_is_read_to_its_end_however_it_is_packed_and_cut(name: str, cuts: set[int]) -> None:
    encoding, packed = STREAMS[name]
    places = [0, *sorted(cut for cut in cuts if 0 < cut < len(packed)), len(packed)]
    decompressor = StreamDecompressor(encoding)

    plain = [decompressor.read(packed[start:stop]) for start, stop in pairwise(places)]

    assert (b"".join(plain), decompressor.is_readable) == (b"".join(WORDS), True)


def test_a_request_in_deflate_without_a_header_is_read() -> None:
    assert decompressed(without_header(b"x" * 1_000), "deflate", max_bytes=1_000) == b"x" * 1_000


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd", "br"])
def test_a_stream_that_is_damaged_or_packed_otherwise_is_no_longer_readable(encoding: str) -> None:
    decompressor = StreamDecompressor(encoding)

    assert (decompressor.read(b"\x00\xffnot packed at all"), decompressor.is_readable) == (b"", False)
    assert decompressor.read(gzip.compress(b"more")) == b""


BOMB_BYTES = 80 * 2**20


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
async def test_a_bomb_is_read_in_steps_up_to_its_limit_and_others_run_between_them(encoding: str) -> None:
    pack = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstandard.compress}[encoding]
    bomb = pack(bytes(BOMB_BYTES))
    decompressor, turns = StreamDecompressor(encoding), 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    plain = await decompressor.read_all(bomb)
    counting.cancel()

    assert (len(plain), plain.strip(b"\0"), decompressor.is_readable) == (MAX_PLAIN_BYTES, b"", True)
    assert turns >= (8 if encoding == "zstd" else 60)  # zstd writes whole blocks
    assert await decompressor.read_all(pack(b"more")) == b""


@given(name=st.sampled_from(sorted(STREAMS)), cut=st.integers(0, 300))
def test_a_stream_that_is_longer_than_one_step_is_read_to_its_end(name: str, cut: int) -> None:
    encoding, packed = STREAMS[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encodings, "STEP_BYTES", 1_000)
        decompressor = StreamDecompressor(encoding)
        first = asyncio.run(decompressor.read_all(packed[:cut]))
        plain = first + asyncio.run(decompressor.read_all(packed[cut:]))

    assert (plain, decompressor.is_readable) == (b"".join(WORDS), True)
