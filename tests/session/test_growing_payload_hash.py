"""The hash of a request that continues the last one is the hash of the whole request."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from holdfast.session.request import GrowingPayloadHash, payload_hash

Changes = list[tuple[int, list[bytes], bytes, bool]]
CHANGES = st.lists(
    st.tuples(
        st.integers(0, 6),
        st.lists(st.binary(max_size=4), max_size=3),
        st.sampled_from([b"", b"system", b"tools"]),
        st.booleans(),
    )
)


@given(CHANGES)
def test_a_hash_that_grows_is_always_that_of_all_messages(changes: Changes) -> None:
    growing, hashes = GrowingPayloadHash(), list[str]()

    for kept, added, extras, is_hashed in changes:
        del hashes[kept:]
        growing.cut(len(hashes))
        hashes += [hashlib.sha256(text).hexdigest() for text in added]
        if is_hashed:
            assert growing.of(hashes, extras) == payload_hash(hashes, extras)
