"""The exact bytes of the requests that were sent, stored as what is new in each.

A client sends its whole list with every request, so storing each body would take the square of the conversation. A body
is stored as pieces: ranges of the agent's body before it, recorded messages, and the text in between. The hash of the
bytes is stored beside them, so that what is put together again can be checked.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias, cast

from holdfast.core.conversation.json_values import encode_json
from holdfast.core.history import events as log
from holdfast.dataclass import dataclass
from holdfast.errors import MalformedInputError, NotInMemoryError
from holdfast.wire.anthropic import count_cache_marks, drop_excess_cache_marks

BodyPiece: TypeAlias = Mapping[str, object]
"""`{"from": a, "to": b}` of the body before, `{"message": position}`, or `{"text": …}`.

A message with `"unmarked": true` was sent without its cache marks.
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
MAX_LAST_BYTES = 64
"""Most bodies have fewer bytes after their last message, so that the next body mostly begins with all before them."""


class _LastBody:
    """The last body of an agent, with the hash of the part that the next one begins with."""

    def __init__(self) -> None:
        self.content = b""
        self.chain_length = 0
        """How many bodies have to be put together for this one."""
        self._hash = hashlib.sha256()
        self._hashed = 0

    def replace(self, body: bytes, same: int) -> str:
        """Replace the body by the next one, which begins with `same` bytes of it, and return that one's hash."""
        if same < self._hashed:
            self._hash, self._hashed = hashlib.sha256(), 0
        view = memoryview(body)
        self._hash.update(view[self._hashed : same])
        whole = self._hash.copy()
        whole.update(view[same:])
        self.content, self._hashed, self.chain_length = body, same, self.chain_length + 1
        return whole.hexdigest()


class SentBodies:
    """The last body of each agent, from which the next one is stored as a difference."""

    def __init__(self) -> None:
        self._last: dict[str, _LastBody] = {}

    def pieces(
        self, scope: str, body: bytes, positions: Sequence[int | None], native_at: NativeAt
    ) -> tuple[tuple[BodyPiece, ...], str] | None:
        """Return a body as pieces with its hash; None if it is no text. It holds the messages at the positions."""
        last = self._last.get(scope)
        if last is None or last.chain_length == MAX_CHAIN:
            last = _LastBody()
        before = last.content
        start, stop = _changed_range(before, body)
        try:
            start, stop, changed = _changed_pieces(body, start, stop, positions, native_at)
        except UnicodeDecodeError:
            return None
        head: list[BodyPiece] = [{"from": 0, "to": start}] if start else []
        shift = len(before) - len(body)
        tail: list[BodyPiece] = [{"from": stop + shift, "to": len(before)}] if stop < len(body) else []
        self._last[scope] = last
        return (*head, *changed, *tail), last.replace(body, start)

    def forget(self, scope: str) -> None:
        """Forget the last body of an agent."""
        self._last.pop(scope, None)


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
    end, at, misses = stop, stop, 0
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
        encoded = _message_bytes(native, is_unmarked=False)
        pieces: list[tuple[BodyPiece, bytes]] = [({"message": position}, encoded)]
        if encoded.find(b'"cache_control"') >= 0 and count_cache_marks([native]):
            pieces.append(({"message": position, "unmarked": True}, _message_bytes(native, is_unmarked=True)))
        for piece, encoded in pieces:
            most = at if found else min(len(body), at + len(encoded) - 1)
            place = body.rfind(encoded, max(0, start - len(encoded) + 1), most)
            if place < 0:
                continue
            after = place + len(encoded)
            end = end if found else max(after, stop)
            found += [*_text_pieces(body[after : at if found else end]), piece]
            at, misses = place, 0
            break
    start = min(start, at)
    return start, end, [*_text_pieces(body[start:at]), *reversed(found)]


def _text_pieces(text: bytes) -> list[BodyPiece]:
    return [{"text": text.decode()}] if text else []


def _message_bytes(message: Mapping[str, object], *, is_unmarked: bool) -> bytes:
    """Return a message as most clients write it; one that is written differently is stored as text."""
    [native] = drop_excess_cache_marks([message], 0) if is_unmarked else [message]
    try:
        encoded = encode_json(native)
        if encoded.find(b"\\ud") < 0:  # for bytes, `in` raises and catches an error first
            return encoded
    except TypeError:
        pass
    # It may hold a lone surrogate, or what only text can express.
    text = json.dumps(native, separators=(",", ":"), ensure_ascii=False, default=str)
    return text.encode(errors="surrogatepass")


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


def body_positions(event: log.RequestPrepared) -> Iterator[int]:
    """Yield the positions of the recorded messages among the pieces of a body."""
    return (position for piece in event.body if isinstance(position := piece.get("message"), int))


def join_body(chain: Sequence[log.RequestPrepared], natives: Mapping[int, Mapping[str, object]]) -> SentBody:
    """Return the bytes of the last of an agent's requests, of which the first refers to no body before it.

    `natives` are the recorded messages by their positions. Raises `MalformedInputError` if one of them is missing.
    """
    content = b""
    for event in chain:
        content = b"".join(_piece_bytes(event.body, content, natives))
    return SentBody(content, chain[-1].body_hash or "")


def _piece_bytes(
    pieces: Sequence[BodyPiece], before: bytes, natives: Mapping[int, Mapping[str, object]]
) -> Iterator[bytes]:
    for piece in pieces:
        match piece:
            case {"text": str(text)}:
                yield text.encode()
            case {"from": int(start), "to": int(stop)}:
                yield before[start:stop]
            case {"message": int(position)} if position in natives:
                yield _message_bytes(natives[position], is_unmarked=bool(piece.get("unmarked")))
            case _:
                raise MalformedInputError("request.body", f"{cast('object', piece)!r:.60} cannot be put together")
