"""The name of a message and of a request: a hash of what they say, whatever the order of their keys.

A request's hash is made of its messages' hashes, so that naming the next one costs what is new in it.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping


def message_hash(native: Mapping[str, object]) -> str:
    """Return the hash of a message in our canonical encoding: sorted keys, no spaces, ASCII."""
    text = json.dumps(native, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def payload_hash(message_hashes: Iterable[str], *, system: object = None, tools: object = None) -> str:
    """Return the hash of a request, from the hashes of its messages and what travels beside them."""
    beside = json.dumps([system, tools], sort_keys=True, separators=(",", ":"), default=str)
    whole = hashlib.sha256(beside.encode())
    for one in message_hashes:
        whole.update(bytes.fromhex(one))
    return whole.hexdigest()
