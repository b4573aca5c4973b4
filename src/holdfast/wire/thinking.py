"""Thinking that a model accepts only after the exact request that it was said in.

Newer Claude models bind each thinking block to the system text, the tools and all messages before it, and reject a
request in which any of them differs. Cache marks do not count. A prefix is identified by a chain of hashes: the hash of
the system text and tools, extended by the hash of each message.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, cast

from holdfast.core.conversation.json_values import encode_canonical_json
from holdfast.wire.json_reader import is_list, is_mapping

_HASH_CHARS = 32


def prefix_of_extras(system: object = None, tools: object = None) -> str:
    """Return the hash of a prefix without messages: its system text and its tools."""
    return _hash([_without_cache_marks(system) or None, _without_cache_marks(tools) or None])


def prefix_message_hash(native: Mapping[str, Any]) -> str:
    """Return the hash of a message without its cache marks."""
    return _hash(_without_cache_marks(native))


def extend_prefix(prefix: str, message_hashes: Iterable[str]) -> str:
    """Return the hash of a prefix with more messages."""
    for one in message_hashes:
        prefix = hashlib.sha256((prefix + one).encode()).hexdigest()[:_HASH_CHARS]
    return prefix


def prefix_hash(messages: Iterable[Mapping[str, Any]], *, system: object = None, tools: object = None) -> str:
    """Return the hash of a whole request; `validate` compares it with the prefix of each thinking block."""
    return extend_prefix(prefix_of_extras(system, tools), map(prefix_message_hash, messages))


def _hash(value: object) -> str:
    return hashlib.sha256(encode_canonical_json(value)).hexdigest()[:_HASH_CHARS]


def _without_cache_marks(value: object) -> object:
    """Return a message, a block or a list of them without cache marks; inputs of tools keep all their fields."""
    if is_list(value):
        return [_without_cache_marks(item) for item in value]
    if not is_mapping(value):
        return value
    return {
        key: _without_cache_marks(item) if key == "content" else item
        for key, item in cast("Mapping[str, object]", value).items()
        if key != "cache_control"
    }
