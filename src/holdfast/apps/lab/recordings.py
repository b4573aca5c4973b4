"""Recorded conversations in OpenAI's chat format, with annotations of each message.

Keys of a message that begin with `x_` are annotations: when it was recorded (`x_ts`), what the provider billed for it
(`x_usage`), a name by which questions refer to it (`x_id`), and whether a program wrote it and not the user (`x_meta`,
`x_attachment`). They are removed before anything is sent.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from holdfast.errors import MalformedInputError
from holdfast.testing.chat import JsonMessage
from holdfast.wire.json_reader import as_object, is_list, objects_in


@dataclass(frozen=True, slots=True)
class Probe:
    """A question about a conversation, and where its answer is."""

    question: str
    answer: str
    evidence: tuple[int, ...]
    """The indices of the messages that the answer needs."""


@dataclass(frozen=True, slots=True)
class RecordedCompaction:
    """A compaction that the recorded agent made by itself."""

    index: int
    """The messages before this index were replaced."""
    summary: str
    """The text that replaced them."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded conversation."""

    name: str
    messages: list[JsonMessage]
    times: list[float | None]
    """When each message was recorded, in seconds; None if unknown."""
    usage: list[Mapping[str, int] | None]
    """What the provider billed for each assistant turn."""
    probes: tuple[Probe, ...] = ()
    static: int | None = None
    """Tokens of system text and tools in every request; None if the recording does not say."""
    is_claude: bool = True
    """Whether the bills count tokens as Claude does."""
    notes: tuple[str, ...] = ()
    """What could not be converted from another format."""
    compactions: tuple[RecordedCompaction, ...] = ()
    """The agent's own compactions whose summary was recorded, the oldest first."""
    inserted: frozenset[int] = frozenset()
    """The indices of messages with the user's role that a program wrote."""

    @property
    def turns(self) -> list[int]:
        """The indices of the assistant's messages: each answers a request."""
        return [index for index, message in enumerate(self.messages) if message["role"] == "assistant" and index]


def read_recording(record: object, name: str = "session") -> Recording:
    """Return the recording in a record of a JSONL file; `name` is used if the record has no id."""
    fields = as_object(record)
    name, raw = str(fields.get("id", name)), fields.get("messages")
    if not is_list(raw):
        raise MalformedInputError(f"session {name!r}", "must be an object with a list of messages")
    native: list[JsonMessage] = []
    for index, message in enumerate(raw):
        said = as_object(message)
        if not isinstance(said.get("role"), str):
            raise MalformedInputError(f"session {name!r}: messages[{index}]", "must be an object with a role")
        native.append(said)
    return Recording(
        name,
        [{key: value for key, value in message.items() if not key.startswith("x_")} for message in native],
        [_seconds(message.get("x_ts")) for message in native],
        [_usage(message.get("x_usage")) for message in native],
        tuple(_probes(fields.get("probes"), [message.get("x_id") for message in native])),
        compactions=tuple(_compactions(fields.get("meta"), len(native))),
        inserted=frozenset(
            index for index, message in enumerate(native) if message.get("x_meta") or message.get("x_attachment")
        ),
    )


def concatenate(recordings: Sequence[Recording]) -> Recording:
    """Return recordings as one long one, with the system text of the first and distinct call ids.

    The questions are dropped, because unrelated conversations share no facts.
    """
    messages = [
        _with_prefixed_ids(message, f"s{number}_")
        for number, recording in enumerate(recordings)
        for message in recording.messages
        if not (number and message["role"] == "system")
    ]
    nothing: list[None] = [None] * len(messages)
    return Recording(f"{len(recordings)} sessions", messages, [*nothing], [*nothing], static=recordings[0].static)


def _with_prefixed_ids(message: JsonMessage, prefix: str) -> JsonMessage:
    changed: JsonMessage = json.loads(json.dumps(message))
    if isinstance(changed.get("tool_call_id"), str):
        changed["tool_call_id"] = f"{prefix}{changed['tool_call_id']}"
    for call in objects_in(changed.get("tool_calls")):
        if isinstance(call.get("id"), str):  # a call without one stays broken, as it was recorded
            call["id"] = f"{prefix}{call['id']}"
    return changed


def _probes(value: object, names: Sequence[object]) -> list[Probe]:
    """Return the questions whose evidence is complete."""
    places = {name: index for index, name in enumerate(names) if isinstance(name, str)}
    found: list[Probe] = []
    for fields in objects_in(value):
        named, question = fields.get("evidence"), fields.get("question")
        if isinstance(question, str) and is_list(named) and named and all(name in places for name in named):
            where = tuple(places[str(name)] for name in named)
            found.append(Probe(question, str(fields.get("answer", "")), where))
    return found


def _compactions(meta: object, length: int) -> list[RecordedCompaction]:
    """Return the recorded compactions that have a summary."""
    found: list[RecordedCompaction] = []
    for made in objects_in(as_object(meta).get("compactions")):
        index, summary = made.get("at_message"), made.get("summary")
        if isinstance(index, int) and 0 < index < length and isinstance(summary, str) and summary:
            found.append(RecordedCompaction(index, summary))
    return sorted(found, key=lambda one: one.index)


def _seconds(value: object) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        return datetime.fromisoformat(value).timestamp()
    except ValueError:
        return None


def _usage(value: object) -> Mapping[str, int] | None:
    if not isinstance(value, dict):
        return None
    return {key: item for key, item in as_object(cast("object", value)).items() if isinstance(item, int)}
