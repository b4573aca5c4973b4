"""Compressed bodies are read up to the limit, and no further."""

import gzip
import zlib

import pytest
import zstandard

from holdfast.apps.gateway.encodings import BodyTooLargeError, UnreadableBodyError, decompressed

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
