"""Conversations in JSON lines files: our export, and the files of other programs.

Our export is a header, then one record with its time per line. Reading tolerates what crashes leave in such files:
NUL padding, a torn end, two records on a line, a record broken over several lines. What still cannot be read is
reported with line, size and reason; nothing is guessed.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, cast

from holdfast.core.conversation.json_values import encode_json, finite_json
from holdfast.core.history.codec import EVENT_TYPES
from holdfast.core.history.events import MessageAppended
from holdfast.errors import MalformedInputError, StoreUnavailableError
from holdfast.stores.base import JsonRecord, StoredRecord
from holdfast.stores.files import SQLITE_MAGIC, disk_remedy
from holdfast.text import pluralize
from holdfast.wire.formats import detect_format
from holdfast.wire.json_reader import is_list, is_mapping
from holdfast.wire.pydantic_ai import PydanticAI, is_pydantic_ai_message, split_messages
from holdfast.wire.responses import ROLELESS_ITEM_TYPES

EXPORT_HEADER = "holdfast.export"
EXPORT_SCHEMA = 1
_LAST_TIME_MS = 253_402_300_799_999
"""The end of the year 9999; stores keep times in 64 bits."""
MAX_JOINED_LINES = 1_000
"""A record may span this many lines; if it is still incomplete, its first line is reported as unreadable."""
MAX_JOINED_CHARS = 8_000_000
MAX_READ_IN_VAIN = 16
"""How many times the size of a file may be read in search of the ends of unfinished values."""
WINDOW_CHARS, LONGEST_TOKEN = 512, 16
"""How much of a line is read first: a line may hold many values, and each is read by itself."""

JsonlSource: TypeAlias = Literal["holdfast", "openai-chat", "pydantic-ai"]
_MESSAGE_LISTS = ("messages", "input", "contents")
"""The lists of messages in the requests of the providers."""
_BESIDE_MESSAGES = ("system", "instructions", "systemInstruction", "system_instruction", "tools")
"""What a request may have beside its messages, and an import leaves out."""
_DECODER = json.JSONDecoder(strict=False)
"""Accepts raw control characters inside strings."""
_HEAD = re.compile(r'\{\s*"(?:[^"\\]|\\.)*"\s*:')
_BETWEEN = re.compile(r"[ \t\r\n,]*")
_NULS = re.compile(b"\x00+")


@dataclass(frozen=True, slots=True)
class UnreadableLine:
    """A part of a file that could not be read."""

    line: int
    """From 1."""
    bytes: int
    reason: str


@dataclass(slots=True)
class LoadedConversation:
    """The content of one session: our own records, or messages."""

    name: str = ""
    format: str = "openai-chat"
    """The format of the messages."""
    records: list[tuple[int, int | None, JsonRecord]] = field(default_factory=list[tuple[int, int | None, JsonRecord]])
    """Line, time in milliseconds if known, and record."""
    messages: list[tuple[int, Mapping[str, object]]] = field(default_factory=list[tuple[int, Mapping[str, object]]])
    """Line and message."""


@dataclass(slots=True)
class LoadedFile:
    """What a file holds."""

    source: JsonlSource = "openai-chat"
    session: str = ""
    """The id under which it was exported, if the file says so."""
    conversations: list[LoadedConversation] = field(default_factory=list[LoadedConversation])
    losses: list[UnreadableLine] = field(default_factory=list[UnreadableLine])
    notes: list[str] = field(default_factory=list[str])
    """What was repaired in order to read it."""
    is_text_lost: bool = False
    """Whether bytes or numbers were replaced, so that what they stood for is lost."""


class _Piece(NamedTuple):
    """A line of the file, or a part of one."""

    line: int
    text: str


class _Item(NamedTuple):
    """A JSON value of the file."""

    line: int
    size: int
    value: object


def export_lines(session: str, name: str, records: Iterable[StoredRecord]) -> Iterator[str]:
    """Yield a log as lines: a header, then each record with its time.

    Every line is JSON, which other programs can read: NaN and infinity become null, as they are sent.
    """
    header = {"type": EXPORT_HEADER, "schema": EXPORT_SCHEMA, "data": {"session": session, "name": name}}
    yield encode_json(header).decode() + "\n"
    for stored in records:
        yield encode_json(finite_json({"timeMs": stored.time_ms, **stored.record})).decode() + "\n"


def load_file(path: Path) -> LoadedFile:
    """Return what a file holds; a pipe is read to its end, a device is refused, since it may have none."""
    try:
        if path.is_char_device() or path.is_block_device():
            raise StoreUnavailableError(str(path), "it is a device, not a file; name a file or a pipe")
        content = path.read_bytes()
    except OSError as error:
        raise StoreUnavailableError(str(path), f"{error.strerror or error}; {disk_remedy(error)}") from error
    return load_bytes(content, str(path))


def load_bytes(content: bytes, name: str = "input") -> LoadedFile:
    """Return the conversations that some bytes hold; raises if nothing can be read."""
    if content.startswith(SQLITE_MAGIC):
        # Short records are in it as they are, and would make a session of the wrong events.
        raise MalformedInputError(name, "it is a SQLite file; open it with --store, or save it with `holdfast recover`")
    found = LoadedFile()
    items = _items(content, found)
    if not items:
        problem = "nothing in it can be read as JSON" if found.losses else "it is empty"
        raise MalformedInputError(name, problem)
    source: JsonlSource | None = next((kind for item in items if (kind := _source(item.value))), None)
    if source is None or (source == "holdfast" and not any(_is_record(item.value) for item in items)):
        raise MalformedInputError(name, "it holds neither a Holdfast export nor chat messages nor pydantic-ai messages")
    found.source = source
    for item in items:
        actual = _source(item.value)
        if actual != source:
            what = (
                "neither a record nor a message" if actual is None else f"{actual} entry in a file of format {source}"
            )
            found.losses.append(UnreadableLine(item.line, item.size, what))
            continue
        value = finite_json(item.value)
        if value is not item.value:
            found.notes.append(f"line {item.line}: NaN, or a number too large for a float, became null")
            found.is_text_lost = True
        _add_value(found, item, cast("Mapping[str, object]", value))
    if not found.conversations:
        raise MalformedInputError(name, f"it holds no message: {found.losses[0].reason}")
    found.losses.sort(key=lambda loss: loss.line)
    for conversation in found.conversations:
        _set_format(conversation, name)
    return found


def _set_format(conversation: LoadedConversation, name: str) -> None:
    """Set the format that messages show; raise where a later line shows another one: no request can hold both."""
    shown = [(line, detect_format([message])) for line, message in conversation.messages]
    for line, _, record in conversation.records:
        data = record.get("data")
        if record.get("type") == MessageAppended.KIND and is_mapping(data):
            shown.append((line, cast("str | None", data.get("format"))))
    known = [(line, one) for line, one in shown if one is not None]
    for line, one in known:
        if one != known[0][1]:
            raise MalformedInputError(
                f"{name}, line {line}",
                f"its message is of format {one}, but that of line {known[0][0]} is {known[0][1]}; "
                "import the messages of each format as a session of their own",
            )
    if known and conversation.messages and conversation.format != PydanticAI.name:
        conversation.format = known[0][1]


def _add_value(found: LoadedFile, item: _Item, value: Mapping[str, object]) -> None:
    if found.source == "holdfast" and value["type"] == EXPORT_HEADER:
        data = cast("Mapping[str, object]", value["data"])
        found.session = found.session or str(data.get("session", ""))
        _first_conversation(found).name = str(data.get("name", ""))
    elif found.source == "holdfast":
        record = {key: content for key, content in value.items() if key != "timeMs"}
        time_ms = value.get("timeMs")
        if time_ms is not None and not (isinstance(time_ms, int) and 0 <= time_ms <= _LAST_TIME_MS):
            found.notes.append(f"line {item.line}: timeMs is not a time in milliseconds; the time before it was used")
            time_ms = None
        _first_conversation(found).records.append((item.line, time_ms, record))
    elif found.source == "pydantic-ai":
        conversation = _first_conversation(found)
        conversation.format = found.source
        messages = [cast("Mapping[str, object]", element) for element in split_messages([value])[0]]
        conversation.messages += [(item.line, message) for message in messages]
    elif (member := _list_of_messages(value)) is not None:
        listed = cast("Sequence[object]", value[member])
        messages = [(item.line, cast("Mapping[str, object]", one)) for one in listed if _is_message(one)]
        wrong = len(listed) - len(messages)
        if messages:
            found.conversations.append(LoadedConversation(messages=messages))
        elif not wrong:
            found.losses.append(UnreadableLine(item.line, item.size, f"its {member} are an empty list"))
        if wrong:
            found.losses.append(UnreadableLine(item.line, item.size, f"{wrong} of its messages have no role"))
        if left_out := [name for name in _BESIDE_MESSAGES if value.get(name)]:
            found.notes.append(f"line {item.line}: only messages are imported, not {' and '.join(left_out)}")
    else:
        _first_conversation(found).messages.append((item.line, value))


def _first_conversation(found: LoadedFile) -> LoadedConversation:
    if not found.conversations:
        found.conversations.append(LoadedConversation())
    return found.conversations[0]


def _source(value: object) -> JsonlSource | None:
    """Return the kind of file that holds values like this one."""
    if is_pydantic_ai_message(value):
        return "pydantic-ai"
    if not isinstance(value, dict):
        return None
    known = cast("dict[str, object]", value)
    if isinstance(known.get("type"), str) and isinstance(known.get("data"), dict):
        return "holdfast"
    return "openai-chat" if _is_message(known) or _list_of_messages(known) is not None else None


def _is_record(value: object) -> bool:
    """Return whether a value is a record of ours: messages of LangChain have a type and data too, but no schema."""
    return is_mapping(value) and ("schema" in value or value.get("type") in EVENT_TYPES)


def _list_of_messages(value: Mapping[str, object]) -> str | None:
    """Return the member that holds the messages of a request; None if there is none."""
    if _is_message(value):
        return None
    for name in _MESSAGE_LISTS:
        if is_list(listed := value.get(name)) and (name == "messages" or any(_is_message(one) for one in listed)):
            return name
    return None


def _is_message(value: object) -> bool:
    """Return whether a value is a message of any format, or an item of OpenAI Responses."""
    return is_mapping(value) and (isinstance(value.get("role"), str) or str(value.get("type")) in ROLELESS_ITEM_TYPES)


def _items(content: bytes, found: LoadedFile) -> list[_Item]:
    text = _text(content, found)
    try:
        whole = _DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        scanned = _scan(_pieces(text.encode("utf-8", "surrogatepass"), found), found)
        return [one for item in scanned for one in _members(item)]
    return _members(_Item(1, len(content), whole))


def _members(item: _Item) -> list[_Item]:
    """Return the members of a list as values, and any other value as it is: a whole history may be one list."""
    if not isinstance(item.value, list):
        return [item]
    values = cast("list[object]", item.value)
    return [_Item(item.line, item.size // max(1, len(values)), value) for value in values]


def _text(content: bytes, found: LoadedFile) -> str:
    encoding, name = "utf-8", "UTF-8"
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        found.notes.append("it was written in UTF-16")
        encoding, name = "utf-16", "UTF-16"
    content = content.removeprefix(b"\xef\xbb\xbf")
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        found.notes.append(f"bytes that are not {name} were replaced, the first at {error.start}")
        found.is_text_lost = True
        return content.decode(encoding, "replace")


def _pieces(content: bytes, found: LoadedFile) -> list[_Piece]:
    """Return the lines, split at NUL padding; only a line feed ends a line, never U+2028."""
    if b"\x00" in content:
        found.notes.append(f"{pluralize(content.count(0), 'byte')} of NUL padding skipped")
    pieces = [
        _Piece(number, part.decode("utf-8", "surrogatepass"))
        for number, line in enumerate(content.split(b"\n"), start=1)
        for part in ([part for part in _NULS.split(line) if part.strip()] if b"\x00" in line else [line])
    ]
    while pieces and not pieces[-1].text.strip():
        pieces.pop()
    return pieces


class _Attempt(NamedTuple):
    """The next value, or why it cannot be read."""

    text: str
    """The text that was read, from the start of the value."""
    end: int = 0
    value: object = None
    problem: str = ""
    read: int = 0
    """How many characters were read without finding a value."""
    is_open: bool = False
    """Whether more text could complete the value."""


def _scan(pieces: Sequence[_Piece], found: LoadedFile) -> Iterator[_Item]:
    """Yield every JSON value of the pieces, and record what cannot be read.

    The characters read without result are limited by the size of the file; otherwise a file of unfinished values
    would be read to its end from each of its lines.
    """
    left = MAX_READ_IN_VAIN * sum(len(piece.text) + 1 for piece in pieces)
    number, at = 0, 0
    while number < len(pieces):
        line, text = pieces[number]
        at = at or len(text) - len(text.lstrip())
        if at < len(text):
            attempt = _value(pieces, number, at, left)
            if attempt.problem:
                left -= attempt.read
                again = _restart(text, at) if left > 0 else None
                is_torn = again is None and number == len(pieces) - 1
                torn = f"the file ends in the middle of it ({attempt.problem})"
                reason = torn if is_torn else f"not JSON: {attempt.problem}"
                found.losses.append(UnreadableLine(line, _size(text[at:again]), reason))
                at = len(text) if again is None else again
            else:
                yield _Item(line, _size(attempt.text[: attempt.end]), attempt.value)
                used = attempt.text.count("\n", 0, attempt.end)
                number += used
                begun = attempt.text.rfind("\n", 0, attempt.end) + 1 if used else -at
                text = pieces[number].text
                at = cast("re.Match[str]", _BETWEEN.match(text, attempt.end - begun)).end()
        if at >= len(text):
            number, at = number + 1, 0


def _value(pieces: Sequence[_Piece], number: int, at: int, left: int) -> _Attempt:
    """Return the value that starts at a character of a piece and may continue on further lines."""
    first = _first_line(pieces[number].text, at)
    if not first.is_open:
        return first
    lines, chars = [first.text], len(first.text)
    # Each attempt reads from the start, so each takes twice as many lines as the one before.
    while len(lines) <= MAX_JOINED_LINES and chars <= min(left, MAX_JOINED_CHARS):
        more = pieces[number + len(lines) : number + min(2 * len(lines), MAX_JOINED_LINES + 1)]
        if not more:
            break
        for piece in more:
            lines.append(piece.text)
            chars += len(piece.text) + 1
            if chars > MAX_JOINED_CHARS:
                break
        attempt = _decoded("\n".join(lines))
        if not attempt.is_open:
            # The first line shows best what is wrong with a record, unless the error is not one of syntax.
            is_syntax = attempt.read < len(attempt.text)
            return attempt._replace(problem=first.problem) if attempt.problem and is_syntax else attempt
    return first._replace(read=chars)


def _first_line(line: str, at: int) -> _Attempt:
    """Return the value that starts at a character of a line, read to the end of that line at most."""
    size = WINDOW_CHARS
    while at + size < len(line):
        attempt = _decoded(line[at : at + size])
        # A number, a word or an escape at the end of the window may continue after it.
        if (attempt.read if attempt.problem else attempt.end) < size - LONGEST_TOKEN:
            return attempt
        size *= 2
    return _decoded(line[at:])


def _decoded(text: str) -> _Attempt:
    """Return the value at the start of a text."""
    try:
        value, end = _DECODER.raw_decode(text)
    except json.JSONDecodeError as error:
        is_open = error.msg.startswith("Unterminated string") or error.pos >= len(text)
        problem = f"{error.msg} at character {error.pos + 1}"
        return _Attempt(text, problem=problem, read=len(text) if is_open else error.pos, is_open=is_open)
    except (ValueError, RecursionError) as error:
        return _Attempt(text, problem=f"{type(error).__name__}: {error}", read=len(text))
    return _Attempt(text, end, value)


def _restart(text: str, at: int) -> int | None:
    """Return where the next record starts in a line whose first is torn: records of one file start alike."""
    head = _HEAD.match(text, at)
    again = text.find(head.group(), at + 1) if head else -1
    return again if again > 0 else None


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
