"""The events of an answer, read from its bytes once it is whole or cut.

Nearly every event of a stream is a piece of text. Reading each as an object of its own is most of the work, so runs of
them are read as one event with the whole text.
"""

import re
from contextlib import suppress
from typing import Literal

import msgspec
import orjson

from holdfast.apps.gateway.client_body import read_json
from holdfast.wire.answers import Wire
from holdfast.wire.json_reader import is_list

_ONE_LINE_EVENT = re.compile(rb"^data: ?(\{.*)", re.MULTILINE)
CLOSING_EVENTS = 2
"""How many events at the end of a stream are no pieces of text: the reason why it ends, and what it cost."""


class _TextDelta(msgspec.Struct, forbid_unknown_fields=True):
    content: str


class _TextChoice(msgspec.Struct):
    delta: _TextDelta
    index: Literal[0]
    finish_reason: None
    message: None = None


class _TextEvent(msgspec.Struct):
    """An event of OpenAI chat that has one piece of text, and nothing else that an answer is made of."""

    choices: tuple[_TextChoice]
    usage: None = None


_TEXT_EVENTS = msgspec.json.Decoder(list[_TextEvent])


def answer_events(wire: Wire, raw: bytes) -> list[object]:
    """Return the events of an answer: those of a stream, or the JSON of a response without one."""
    start = raw[:64].lstrip()
    if start.startswith((b"{", b"[")):
        with suppress(ValueError):
            whole = read_json(raw)
            return list(whole) if is_list(whole) else [whole]
        return []
    # Nearly every event is one line: reading all of them at once takes a third of the time.
    lines: list[bytes] = _ONE_LINE_EVENT.findall(raw)
    with suppress(ValueError):
        return _chat_events(lines) if wire == "openai-chat" else orjson.loads(_array(lines))
    found: list[object] = []
    for event in raw.replace(b"\r\n", b"\n").split(b"\n\n"):
        data = b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
        with suppress(ValueError):
            found.append(read_json(data))
    return found


def _chat_events(lines: list[bytes]) -> list[object]:
    """Return the events of a chat stream, with the text between the first and the last ones as one event."""
    try:
        pieces = _TEXT_EVENTS.decode(_array(lines[1:-CLOSING_EVENTS]))
    except msgspec.MsgspecError:  # there are calls, thinking or something new
        pieces = []
    if not pieces:
        return orjson.loads(_array(lines))
    first, joined, *last = orjson.loads(_array([*lines[:2], *lines[-CLOSING_EVENTS:]]))
    joined["choices"][0]["delta"]["content"] = "".join([piece.choices[0].delta.content for piece in pieces])
    return [first, joined, *last]


def _array(values: list[bytes]) -> bytes:
    return b"[%s]" % b",".join(values)
