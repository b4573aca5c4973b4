"""Signals that a provider compacts the conversation by itself.

They come in a stream of events, or stay in a response as a part of their own. The session records each as an
observation; it changes no context, because the session compacts on its own account.
"""

from collections.abc import Iterator, Mapping

from holdfast.wire.json_reader import is_list, is_mapping

THREAD_COMPACTED, COMPACTION_DELTA, COMPACTION_CONTROL, COMPACTION_PART = (
    "agent.thread_context_compacted",
    "compaction_delta",
    "compactionControl",
    "compaction",
)
_CONTROL_KEYS = frozenset({COMPACTION_CONTROL, "compaction_control"})
_PART_TYPES = frozenset({COMPACTION_PART, "compaction_summary"})
_PLAIN_KEYS = frozenset({"role", "content", "tool_calls", "tool_call_id", "name"})
"""Without a list as content, a message of these keys alone holds no part of a provider's own."""


def stream_signals(event: object) -> Iterator[str]:
    """Yield the signals in one event of a provider's stream: an object as JSON, or one of its SDK."""
    dump = getattr(event, "model_dump", None)
    event = dump(mode="json", warnings=False) if callable(dump) else event
    if not is_mapping(event):
        return
    kind = event.get("type")
    if kind == THREAD_COMPACTED:
        yield THREAD_COMPACTED
    parts = [event, *(event.get(key) for key in ("delta", "content_block", "item"))]
    types = [part.get("type") for part in parts if is_mapping(part)]
    if COMPACTION_DELTA in types:
        yield COMPACTION_DELTA
    if any(isinstance(one, str) and one in _PART_TYPES for one in types):
        yield COMPACTION_PART
    if not _CONTROL_KEYS.isdisjoint(event):
        yield COMPACTION_CONTROL


def message_signals(native: Mapping[str, object]) -> Iterator[str]:
    """Yield the signals that a recorded response or item holds; a summary in a request is the client's own."""
    if native.get("role") == "user" or native.get("kind") == "request":
        return
    if native.keys() <= _PLAIN_KEYS and isinstance(native.get("content"), str):
        return  # as in most messages
    parts = [native, *_listed(native.get("content")), *_listed(native.get("parts"))]
    types = (part.get("part_kind") or part.get("type") for part in parts if is_mapping(part))
    if any(isinstance(one, str) and one in _PART_TYPES for one in types):
        yield COMPACTION_PART


def _listed(value: object) -> list[object]:
    return list(value) if is_list(value) else []
