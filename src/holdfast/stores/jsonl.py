"""Conversations in files of JSON lines: our own export, and what others write.

Our export is a header and then one record a line, with its time. Reading is patient, because such files are
found after crashes: padding of NULs, a torn end, two records on a line, a record broken over several lines. What
still cannot be read is reported, by line, size and reason, and nothing is guessed.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, cast

from holdfast.errors import MalformedInputError, StoreUnavailableError
from holdfast.stores.base import Record, StoredRecord
from holdfast.stores.packing import written
from holdfast.wire.pydantic_ai import elements, is_pydantic_ai

HEADER = "holdfast.export"
HEADER_SCHEMA = 1
MAX_JOINED_LINES = 1_000
"""Over so many lines a record is looked for before its first line is given up."""
MAX_JOINED_CHARS = 8_000_000

Source: TypeAlias = Literal["holdfast", "openai-chat", "pydantic-ai"]
_DECODER = json.JSONDecoder(strict=False)
"""Lets raw control characters stand inside strings."""
_HEAD = re.compile(r'\{\s*"(?:[^"\\]|\\.)*"\s*:')
_CLOSING = re.compile(r'["}\]]')
"""Without one of these a line ends neither a string nor a record."""
_NULS = re.compile(b"\x00+")


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that could not be read."""

    line: int
    """Counted from 1."""
    bytes: int
    reason: str


@dataclass(slots=True)
class Conversation:
    """What one session is to be made of: our own records, or messages."""

    name: str = ""
    format: str = "openai-chat"
    """Of the messages."""
    records: list[tuple[int, int | None, Record]] = field(default_factory=list[tuple[int, int | None, Record]])
    """Line, time in milliseconds if it is known, and record."""
    messages: list[tuple[int, Mapping[str, object]]] = field(default_factory=list[tuple[int, Mapping[str, object]]])
    """Line and message."""


@dataclass(slots=True)
class Loaded:
    """What a file holds."""

    source: Source = "openai-chat"
    session: str = ""
    """The id it was exported under, if it says so."""
    conversations: list[Conversation] = field(default_factory=list[Conversation])
    losses: list[Loss] = field(default_factory=list[Loss])
    notes: list[str] = field(default_factory=list[str])
    """What was mended in order to read it."""


class _Piece(NamedTuple):
    """Some text of the file."""

    line: int
    text: str


class _Item(NamedTuple):
    """A JSON value of the file."""

    line: int
    size: int
    value: object


def export_lines(session: str, name: str, records: Iterable[StoredRecord]) -> Iterator[str]:
    """Yield a log as lines: a header, then each record with its time."""
    header = {"type": HEADER, "schema": HEADER_SCHEMA, "data": {"session": session, "name": name}}
    yield written(header).decode() + "\n"
    for stored in records:
        yield written({"timeMs": stored.time_ms, **stored.record}).decode() + "\n"


def load_file(path: Path) -> Loaded:
    """Return what a file holds."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StoreUnavailableError(str(path), f"{error.strerror or error}; check the path") from error
    return loaded(content, str(path))


def loaded(content: bytes, name: str = "input") -> Loaded:
    """Return the conversations that some bytes hold; raises where there is nothing to be read in them."""
    found = Loaded()
    items = _items(content, found)
    if not items:
        problem = "nothing in it can be read as JSON" if found.losses else "it is empty"
        raise MalformedInputError(name, problem)
    source: Source | None = next((kind for item in items if (kind := _source(item.value))), None)
    if source is None:
        raise MalformedInputError(name, "it holds neither a Holdfast export nor chat messages nor pydantic-ai messages")
    found.source = source
    for item in items:
        actual = _source(item.value)
        if actual != source:
            what = "neither a record nor a message" if actual is None else f"{actual} in a file of {source}"
            found.losses.append(Loss(item.line, item.size, what))
        else:
            _take(found, item, cast("Mapping[str, object]", item.value))
    found.losses.sort(key=lambda loss: loss.line)
    return found


def _take(found: Loaded, item: _Item, value: Mapping[str, object]) -> None:
    """Put a value that is of the right kind where it belongs."""
    if found.source == "holdfast" and value["type"] == HEADER:
        data = cast("Mapping[str, object]", value["data"])
        found.session = found.session or str(data.get("session", ""))
        _open(found).name = str(data.get("name", ""))
    elif found.source == "holdfast":
        record = {key: content for key, content in value.items() if key != "timeMs"}
        time_ms = value.get("timeMs")
        _open(found).records.append((item.line, time_ms if isinstance(time_ms, int) else None, record))
    elif found.source == "pydantic-ai":
        conversation = _open(found)
        conversation.format = found.source
        messages = [cast("Mapping[str, object]", element) for element in elements([value])[0]]
        conversation.messages += [(item.line, message) for message in messages]
    elif "messages" in value:
        listed = cast("Sequence[object]", value["messages"])
        messages = [(item.line, cast("Mapping[str, object]", one)) for one in listed if _is_message(one)]
        found.conversations.append(Conversation(messages=messages))
        wrong = len(listed) - len(messages)
        if wrong:
            found.losses.append(Loss(item.line, item.size, f"{wrong} of its messages have no role"))
    else:
        _open(found).messages.append((item.line, value))


def _open(found: Loaded) -> Conversation:
    if not found.conversations:
        found.conversations.append(Conversation())
    return found.conversations[0]


def _source(value: object) -> Source | None:
    """Return who writes values like this one."""
    if is_pydantic_ai(value):
        return "pydantic-ai"
    if not isinstance(value, dict):
        return None
    known = cast("dict[str, object]", value)
    if isinstance(known.get("type"), str) and isinstance(known.get("data"), dict):
        return "holdfast"
    return "openai-chat" if _is_message(known) or isinstance(known.get("messages"), list) else None


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(cast("dict[str, object]", value).get("role"), str)


def _items(content: bytes, found: Loaded) -> list[_Item]:
    text = _text(content, found)
    try:
        whole = _DECODER.decode(text.strip())
    except (ValueError, RecursionError):
        return _spread(_scan(_pieces(text.encode("utf-8", "surrogatepass"), found), found))
    return _spread([_Item(1, len(content), whole)])


def _spread(items: Iterable[_Item]) -> list[_Item]:
    """Return the values with lists opened: a whole history may be one list."""
    out: list[_Item] = []
    for item in items:
        if isinstance(item.value, list):
            values = cast("list[object]", item.value)
            out += [_Item(item.line, item.size // max(1, len(values)), value) for value in values]
        else:
            out.append(item)
    return out


def _text(content: bytes, found: Loaded) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        found.notes.append("it was written in UTF-16")
        return content.decode("utf-16", "replace")
    content = content.removeprefix(b"\xef\xbb\xbf")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        found.notes.append(f"bytes that are not UTF-8 were replaced, the first at {error.start}")
        return content.decode("utf-8", "replace")


def _pieces(content: bytes, found: Loaded) -> list[_Piece]:
    """Return the lines, cut where padding stands; only a line feed ends a line, never U+2028."""
    if b"\x00" in content:
        found.notes.append(f"{content.count(0):,} bytes of NUL padding were skipped")
    pieces = [
        _Piece(number, part.decode("utf-8", "surrogatepass"))
        for number, line in enumerate(content.split(b"\n"), start=1)
        for part in _parts(line)
    ]
    while pieces and not pieces[-1].text.strip():
        pieces.pop()
    return pieces


def _parts(line: bytes) -> list[bytes]:
    if b"\x00" not in line:
        return [line]
    return [part for part in _NULS.split(line) if part.strip()]


def _scan(pieces: Sequence[_Piece], found: Loaded) -> Iterator[_Item]:
    """Yield every JSON value of the pieces, and note what is none."""
    number, rest = 0, None
    while number < len(pieces):
        piece = rest or _Piece(pieces[number].line, pieces[number].text.lstrip())
        used, end, after = 0, 0, ""
        if piece.text:
            following = pieces[number + 1 : number + 1 + MAX_JOINED_LINES]
            used, end, value, problem = _value(piece, following)
            if problem is None:
                joined = "\n".join([piece.text, *(more.text for more in following[:used])])
                yield _Item(piece.line, _size(joined[:end]), value)
                after = joined[end:].lstrip(" \t\r\n,")
            else:
                after = _given_up(piece, problem, found, is_last=number == len(pieces) - 1)
        number += used
        rest = _Piece(pieces[number].line, after) if after else None
        number += not after


def _given_up(piece: _Piece, problem: str, found: Loaded, *, is_last: bool) -> str:
    """Note that a piece is no JSON, and return what of it may be a record of its own."""
    again = _restart(piece.text)
    is_torn = again is None and is_last
    reason = f"the file ends in the middle of it ({problem})" if is_torn else f"not JSON: {problem}"
    found.losses.append(Loss(piece.line, _size(piece.text[:again]), reason))
    return "" if again is None else piece.text[again:]


def _value(piece: _Piece, following: Sequence[_Piece]) -> tuple[int, int, object, str | None]:
    """Return how many further lines a value takes, where it ends, the value, and why there is none."""
    text, problem = piece.text, ""
    for used in range(len(following) + 1):
        if used:
            more = following[used - 1].text
            text += "\n" + more
            if not _CLOSING.search(more):
                continue
        try:
            value, end = _DECODER.raw_decode(text)
        except json.JSONDecodeError as error:
            problem = problem or f"{error.msg} at character {error.pos + 1}"
            is_open = error.msg.startswith("Unterminated string") or error.pos >= len(text)
            if not is_open or len(text) > MAX_JOINED_CHARS:
                break
        except (ValueError, RecursionError) as error:
            problem = f"{type(error).__name__}: {error}"
            break
        else:
            return used, end, value, None
    return 0, 0, None, problem


def _restart(text: str) -> int | None:
    """Return where the next record begins in a line whose first is torn: records of one file begin alike."""
    head = _HEAD.match(text)
    at = text.find(head.group(), 1) if head else -1
    return at if at > 0 else None


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
