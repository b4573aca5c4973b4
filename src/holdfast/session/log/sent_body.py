"""The exact bytes of the requests that were sent, stored as what is new in each.

A client sends its whole list with every request, so storing each body would take the square of the conversation. A body
is stored as pieces: ranges of the agent's body before it, recorded messages, and the text in between. The hash of the
bytes is stored beside them, so that what is put together again can be checked.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias, cast

from holdfast.core.conversation.json_values import encode_json
from holdfast.core.history import events as log
from holdfast.dataclass import dataclass
from holdfast.errors import MalformedInputError, NotInMemoryError
from holdfast.wire.anthropic import count_cache_marks, drop_excess_cache_marks

BodyPiece: TypeAlias = Mapping[str, object]
"""`{"from": a, "to": b}` of the body before, `{"text": …}`, or recorded messages.

`{"message": a}` is one of them, `{"message": a, "until": b, "between": …}` those at the positions from a to b - 1, with
the same text between them. They are written without spaces, or as the fields of `_Style` say. Messages with
`"unmarked": true` were sent without their cache marks.
"""
NativeAt: TypeAlias = Callable[[int], Mapping[str, object]]
"""Returns the message that was recorded at a position."""
TOMBSTONE = "[scrubbed]"
"""Stands in a log where a secret was scrubbed."""
MAX_CHAIN = 64
"""After this many bodies one is stored without reference to the body before, so that few have to be put together."""
MAX_MISSES = 4
"""How many messages in a row may differ from the body before the search for them ends."""
MIN_SEARCHED_BYTES = 32
MAX_BETWEEN_BYTES = 16_384
"""How far before the message that was found last the next one is searched for, beside those that were not found."""
MAX_LAST_BYTES = 64
"""Most bodies have fewer bytes after their last message, so that the next body mostly begins with all before them."""


class _Style(NamedTuple):
    """How a client writes JSON. Its fields are keys of a `BodyPiece`."""

    spaced: bool = False
    """With a space after each comma and colon, as Python's `json` does."""
    escaped: bool = False
    """In ASCII, as Python's `json` does."""

    def others(self, *, is_ascii: bool) -> "list[_Style]":
        """Return the other styles that write a message differently."""
        if is_ascii:
            return [_Style(not self.spaced, self.escaped)]
        return [style for style in (_COMPACT, _PYTHON, _Style(spaced=True), _Style(escaped=True)) if style != self]

    def flags(self) -> dict[str, bool]:
        """Return the keys of a piece in this style."""
        return {name: True for name, is_set in self._asdict().items() if is_set}


_COMPACT, _PYTHON = _Style(), _Style(spaced=True, escaped=True)


class _LastBody:
    """The last body of an agent in the log."""

    def __init__(self) -> None:
        self.content = b""
        """The body, or the one before `later`."""
        self.later: list[log.RequestPrepared] = []
        """Requests that were read from the log, and not yet put together."""
        self.chain_length = 0
        """How many bodies have to be put together for this one."""
        self._hash = hashlib.sha256()
        """The hash of the first bytes, with which the next body mostly begins too."""
        self._hashed = 0
        """How many bytes that are."""

    def read(self, native_at: NativeAt) -> bool:
        """Put the later requests together; returns whether the body has the recorded hash."""
        if not self.later:
            return True
        content = self.content
        try:
            for event in self.later:
                content = join_pieces(event.body, content, native_at)
        except (MalformedInputError, NotInMemoryError):
            return False
        if hashlib.sha256(content).hexdigest() != self.later[-1].body_hash:
            return False
        self.content, self.later, self._hash, self._hashed = content, [], hashlib.sha256(), 0
        return True

    def next(self, body: bytes, same: int) -> "tuple[_LastBody, str]":
        """Return the next body, which begins with `same` bytes of this one, and its hash."""
        following, view = _LastBody(), memoryview(body)
        start = 0
        if self._hashed <= same:
            following._hash, start = self._hash.copy(), self._hashed
        following._hash.update(view[start:same])
        whole = following._hash.copy()
        whole.update(view[same:])
        following.content, following._hashed, following.chain_length = body, same, self.chain_length + 1
        return following, whole.hexdigest()


class SentBodies:
    """The last body of each agent in the log, from which the next one is stored as a difference."""

    def __init__(self) -> None:
        self._last: dict[str, _LastBody] = {}
        self._unrecorded: tuple[str, _LastBody] | None = None
        """The body that was last asked for, with its hash, until its request is recorded."""

    def pieces(
        self, scope: str, body: bytes, positions: Sequence[int | None], native_at: NativeAt
    ) -> tuple[tuple[BodyPiece, ...], str] | None:
        """Return a body as pieces with its hash; None if it is no text. It holds the messages at the positions."""
        last = self._last.get(scope)
        if last is None or last.chain_length >= MAX_CHAIN or not last.read(native_at):
            last = _LastBody()
        try:
            same, pieces = body_pieces(last.content, body, positions, native_at)
        except UnicodeDecodeError:
            return None
        following, digest = last.next(body, same)
        self._unrecorded = digest, following
        return pieces, digest

    def observe(self, event: log.RequestPrepared) -> None:
        """Follow the log by one request with a body, of this writer or of another one."""
        last, unrecorded, self._unrecorded = self._last.get(event.scope), self._unrecorded, None
        if is_whole_body(event):
            last = self._last[event.scope] = _LastBody()
        if last is None:
            return  # the body before was not read
        if unrecorded is not None and unrecorded[0] == event.body_hash:
            self._last[event.scope] = unrecorded[1]
            return
        last.later.append(event)
        last.chain_length += 1

    def forget(self, scope: str) -> None:
        """Forget the last body of an agent."""
        self._last.pop(scope, None)


def body_pieces(
    before: bytes, body: bytes, positions: Sequence[int | None], native_at: NativeAt
) -> tuple[int, tuple[BodyPiece, ...]]:
    """Return a body as pieces of the body before it and of the messages at some positions.

    The number says with how many bytes of the body before it begins. Raises `UnicodeDecodeError` if it is no text.
    """
    start, stop = _changed_range(before, body)
    start, stop, changed = _changed_pieces(body, start, stop, positions, native_at)
    head: list[BodyPiece] = [{"from": 0, "to": start}] if start else []
    shift = len(before) - len(body)
    tail: list[BodyPiece] = [{"from": stop + shift, "to": len(before)}] if stop < len(body) else []
    return start, (*head, *changed, *tail)


def _changed_range(before: bytes, body: bytes) -> tuple[int, int]:
    """Return where the part of a body starts and stops that differs from the body before.

    Both are at a brace: `scrub` would not find a secret whose text is stored in two pieces, and half a character is no
    text.
    """
    if not before:
        return 0, len(body)
    low, high = 0, min(len(before), len(body))
    near = max(0, high - MAX_LAST_BYTES)
    if body.startswith(memoryview(before)[:near]):
        low = near
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if before.startswith(body[low:middle], low) else (low, middle - 1)
    start = max(0, body.rfind(b"{", 0, low))
    low, high = 0, min(len(before), len(body)) - start
    while low < high:
        # Mostly they end with a few of the same bytes: a search from half of them on would copy most of both.
        middle = min((low + high + 1) // 2, 2 * low + 64)
        is_same = before.endswith(body[len(body) - middle : len(body) - low], 0, len(before) - low)
        low, high = (middle, high) if is_same else (low, middle - 1)
    brace = body.find(b"}", len(body) - low)
    return start, brace if brace >= 0 else len(body)


def _changed_pieces(
    body: bytes, start: int, stop: int, positions: Sequence[int | None], native_at: NativeAt
) -> tuple[int, int, list[BodyPiece]]:
    """Return the changed range of a body as recorded messages and the text between them.

    The range grows to hold the messages at its ends as a whole. They are searched for from its end on.
    """
    found: list[BodyPiece] = []
    end, at, misses, style, near = stop, stop, 0, _COMPACT, len(body)
    for position in reversed(positions):
        if misses == MAX_MISSES or at - start < MIN_SEARCHED_BYTES:
            break
        misses += 1
        if position is None:
            continue
        try:
            native = native_at(position)
        except NotInMemoryError:
            continue
        longest = 0
        for is_unmarked, written, encoded in _spellings(native, style):
            longest = max(longest, len(encoded))
            most = at if found else min(len(body), at + len(encoded) - 1)
            place = body.rfind(encoded, max(0, start - len(encoded) + 1, at - near - len(encoded)), most)
            if place < 0:
                continue
            after = place + len(encoded)
            end = end if found else max(after, stop)
            piece = {"message": position, **written.flags(), **({"unmarked": True} if is_unmarked else {})}
            found += [*_text_pieces(body[after : at if found else end]), piece]
            at, misses, style, near = place, 0, written, MAX_BETWEEN_BYTES
            break
        else:
            near += 2 * longest
    start = min(start, at)
    return start, end, _in_runs([*_text_pieces(body[start:at]), *reversed(found)])


def _spellings(native: Mapping[str, object], style: _Style) -> Iterator[tuple[bool, _Style, bytes]]:
    """Yield how a client may have written a message: without cache marks or not, in which style, and the bytes."""
    encoded = _message_bytes(native, style)
    has_marks = encoded.find(b'"cache_control"') >= 0 and count_cache_marks([native])
    for is_unmarked in (False, True) if has_marks else (False,):
        encoded = _message_bytes(native, style, is_unmarked=is_unmarked) if is_unmarked else encoded
        yield is_unmarked, style, encoded
        is_ascii = not style.escaped and encoded.isascii()
        for other in style.others(is_ascii=is_ascii):
            yield is_unmarked, other, _message_bytes(native, other, is_unmarked=is_unmarked)


def _in_runs(pieces: Sequence[BodyPiece]) -> list[BodyPiece]:
    """Return pieces with messages that follow one another, with the same text between them, as one piece."""
    runs: list[BodyPiece] = []
    for piece in pieces:
        runs.append(piece)
        match runs[-3:]:
            case [{"message": int(first)} as run, {"text": between}, {"message": int(position)}] if (
                run.get("until", first + 1) == position
                and run.get("between", between) == between
                and _flags(run) == _flags(piece)
            ):
                runs[-3:] = [{**run, "until": position + 1, "between": between}]
            case _:
                pass
    return runs


def _flags(piece: BodyPiece) -> dict[str, object]:
    return {key: value for key, value in piece.items() if key not in {"message", "until", "between"}}


def _text_pieces(text: bytes) -> list[BodyPiece]:
    return [{"text": text.decode()}] if text else []


def _message_bytes(message: Mapping[str, object], style: _Style, *, is_unmarked: bool = False) -> bytes:
    """Return a message as clients write it; one that is written in no style is stored as text."""
    [native] = drop_excess_cache_marks([message], 0) if is_unmarked else [message]
    if style == _COMPACT:
        try:
            encoded = encode_json(native)
            if encoded.find(b"\\ud") < 0:  # for bytes, `in` raises and catches an error first
                return encoded
        except TypeError:
            pass
    # It may hold a lone surrogate, or what only text can express.
    return _encoder(style).encode(native).encode(errors="surrogatepass")


@cache
def _encoder(style: _Style) -> json.JSONEncoder:
    separators = (", ", ": ") if style.spaced else (",", ":")
    return json.JSONEncoder(separators=separators, ensure_ascii=style.escaped, default=str)


@dataclass(frozen=True, slots=True)
class SentBody:
    """The bytes of a request as they were sent."""

    content: bytes
    sha256: str
    """The hash that was recorded when it was sent."""

    @property
    def is_same(self) -> bool:
        """Whether the bytes have the recorded hash."""
        return hashlib.sha256(self.content).hexdigest() == self.sha256

    @property
    def is_scrubbed(self) -> bool:
        """Whether they differ because a secret was scrubbed from the log."""
        return TOMBSTONE.encode() in self.content and not self.is_same


def sent_body(events: Sequence[log.Event], number: int) -> SentBody | None:
    """Return the bytes of a request by its number in the log, from 0; None if they were not recorded.

    Raises `MalformedInputError` if the log no longer has what they are made of.
    """
    requests = [event for event in events if isinstance(event, log.RequestPrepared)]
    wanted = requests[number]
    if wanted.body_hash is None:
        return None
    chain = [one for one in requests[: number + 1] if one.scope == wanted.scope and one.body_hash is not None]
    first = next(index for index in reversed(range(len(chain))) if is_whole_body(chain[index]))
    natives = [event.native for event in events if isinstance(event, log.MessageAppended)]
    return join_body(chain[first:], dict(enumerate(natives)))


def is_whole_body(event: log.RequestPrepared) -> bool:
    """Return whether the bytes of a request refer to no body before it."""
    return not any("from" in piece for piece in event.body)


def body_positions(event: log.RequestPrepared, count: int) -> Iterator[int]:
    """Yield the positions of the recorded messages among the pieces of a body, of which the log has so many."""
    for piece in event.body:
        found = _positions_of(piece)
        yield from range(max(0, found.start), min(found.stop, count))


def _positions_of(piece: BodyPiece) -> range:
    match piece:
        case {"message": int(first), "until": int(stop)}:
            return range(first, stop)
        case {"message": int(position)}:
            return range(position, position + 1)
        case _:
            return range(0)


def join_body(chain: Sequence[log.RequestPrepared], natives: Mapping[int, Mapping[str, object]]) -> SentBody:
    """Return the bytes of the last of an agent's requests, of which the first refers to no body before it.

    `natives` are the recorded messages by their positions. Raises `MalformedInputError` if one of them is missing.
    """
    content = b""
    for event in chain:
        content = join_pieces(event.body, content, natives.__getitem__)
    return SentBody(content, chain[-1].body_hash or "")


def join_pieces(pieces: Sequence[BodyPiece], before: bytes, native_at: NativeAt) -> bytes:
    """Return the bytes of a body; raises `MalformedInputError` if a message is missing."""
    return b"".join(_piece_bytes(pieces, before, native_at))


def _piece_bytes(pieces: Sequence[BodyPiece], before: bytes, native_at: NativeAt) -> Iterator[bytes]:
    for piece in pieces:
        match piece:
            case {"text": str(text)}:
                yield text.encode()
            case {"from": int(start), "to": int(stop)}:
                yield before[start:stop]
            case {"message": int()}:
                style = _Style(**{name: piece.get(name) is True for name in _Style._fields})
                is_unmarked = piece.get("unmarked") is True
                try:
                    messages = [
                        _message_bytes(native_at(position), style, is_unmarked=is_unmarked)
                        for position in _positions_of(piece)
                    ]
                except LookupError:
                    raise _broken(piece) from None
                yield str(piece.get("between", "")).encode().join(messages)
            case _:
                raise _broken(piece)


def _broken(piece: BodyPiece) -> MalformedInputError:
    return MalformedInputError("request.body", f"{cast('object', piece)!r:.60} cannot be put together")
