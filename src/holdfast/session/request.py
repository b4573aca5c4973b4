"""The request: the payload to send, its receipt, and the event from which it can be rebuilt."""

import hashlib
import json
import operator
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache, partial
from itertools import compress
from typing import Any, NamedTuple, cast

from holdfast import __version__
from holdfast.core.conversation.json_values import encode_canonical_json
from holdfast.core.conversation.messages import Entry, Media, Message, ToolResult, tool_texts
from holdfast.core.conversation.pairing import MADE_RESULTS
from holdfast.core.conversation.spans import ranges_without
from holdfast.core.conversation.transcript import MessageFormat
from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.core.history.projection import Projection
from holdfast.core.history.session_state import RequestExtras
from holdfast.core.memory.evictions import EMERGENCY_VIEW_KEY
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.receipt import View, receipt_of
from holdfast.core.planning.steps import PlanInput
from holdfast.wire.anthropic import count_cache_marks, drop_excess_cache_marks, place_system_messages
from holdfast.wire.request import Request


def message_hash(native: Mapping[str, object]) -> str:
    """Return the hash of a message in our canonical encoding: sorted keys, no spaces, ASCII."""
    return hashlib.sha256(encode_canonical_json(native)).hexdigest()


def encode_extras(extras: RequestExtras) -> bytes:
    """Return system text and tools, as they were recorded, in our canonical encoding."""
    return encode_canonical_json([extras.system, list(map(dict, extras.tools))])


def payload_hash(message_hashes: Iterable[str], encoded_extras: bytes) -> str:
    """Return the hash of a request; it combines the hashes of its messages, so only new messages are hashed."""
    return hashlib.sha256(encoded_extras + bytes.fromhex("".join(message_hashes))).hexdigest()


class GrowingPayloadHash:
    """The hash of a request that mostly continues the last one: `payload_hash`, without reading all of theirs again."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._extras: bytes | None = None
        self._length = 0

    def cut(self, length: int) -> None:
        """Note that only the first hashes stay as they were."""
        if length < self._length:
            self._extras = None

    def of(self, message_hashes: list[str], encoded_extras: bytes) -> str:
        """Return the hash of a request whose hashes were only added to since the last call, except after a `cut`."""
        if self._extras != encoded_extras:
            self._hash, self._extras, self._length = hashlib.sha256(encoded_extras), encoded_extras, 0
        self._hash.update(bytes.fromhex("".join(message_hashes[self._length :])))
        self._length = len(message_hashes)
        return self._hash.hexdigest()


def chain_hash(previous: str, payload: str) -> str:
    """Return the hash of a request's place in the chain: of the chain before it, empty at first, and of its payload."""
    return hashlib.sha256(f"{previous}:{payload}".encode()).hexdigest()


def encode_entry(entry: Entry, message_format: MessageFormat) -> Mapping[str, object]:
    """Return an entry as JSON; for an unedited message, the same object that came in."""
    message, native = entry.message, entry.message.native
    if native is not None and message.parts is message.decoded and not message.repair_notes:
        return native
    return message_format.encode(message)


def as_accepted(
    messages: list[Mapping[str, object]], message_format: MessageFormat, *, system: object = None, tools: object = ()
) -> list[Mapping[str, object]]:
    """Return the messages of a request as the provider accepts them.

    The oldest cache marks are left out if there are more than it allows: clients mark the newest message of each
    request, so the marks accumulate in a recorded conversation. A system message that has lost its place is the user's.
    """
    if message_format.max_cache_marks is None:
        return messages
    with suppress(ValueError, RecursionError):
        system = json.loads(system) if isinstance(system, str) else system
    return drop_excess_cache_marks(
        place_system_messages(messages),
        message_format.max_cache_marks - count_cache_marks(system) - count_cache_marks(tools),
    )


class EncodedView(NamedTuple):
    """The entries of a view as they are sent, and what became of each; the next view reuses those it begins with."""

    format: MessageFormat
    entries: list[Entry]
    source: Projection | None
    """The projection whose first entries these are; it only grows. None if some were changed or made for the view."""
    messages: list[Mapping[str, object]]
    hashes: list[str]
    positions: list[int | None]
    is_kept: list[bool]
    """Whether each entry is a recorded message that is sent unchanged."""
    is_clipped: list[bool]
    is_elided: list[bool]
    payload: GrowingPayloadHash


def encode_view(
    entries: list[Entry],
    source: Projection | None,
    history: History,
    known_hashes: dict[int, str],
    previous: EncodedView | None,
) -> EncodedView:
    """Return the entries of a view as JSON with their hashes; `known_hashes` caches those of recorded messages.

    The result takes over the lists of the previous view, as far as both have the same entries. `source` is the
    projection whose first entries these are, if they are.
    """
    message_format = history.message_format
    if previous is not None and previous.format is message_format:
        columns: list[list[Any]] = [*previous[3:-1]]  # from `messages` to `is_elided`
        if source is None or source is not previous.source:
            same = common_length(entries, previous.entries)
            for column in columns:
                del column[same:]
            previous.payload.cut(same)
        encoded = EncodedView(message_format, entries, source, *columns, payload=previous.payload)
    else:
        encoded = EncodedView(message_format, entries, source, [], [], [], [], [], [], GrowingPayloadHash())
    moved_texts: Callable[[], Container[str]] | None = None
    for entry in entries[len(encoded.messages) :]:
        message, position = entry
        native, is_unedited = message.native, message.parts is message.decoded
        if native is None or not is_unedited or message.repair_notes:
            native, is_unedited = message_format.encode(message), message.is_unedited
        # What a user's processor has changed is a message of its own, in the place of a recorded one.
        is_other = source is None and position is not None and _is_other(message, history.entries[position].message)
        is_unedited = is_unedited and not is_other
        if position is None or message.repair_notes or native is not message.native or is_other:
            digest = message_hash(native)
        else:
            digest = known_hashes.get(position) or message_hash(native)
            known_hashes[position] = digest
        recorded = None if position is None or is_unedited else history.entries[position].message
        is_kept = message is recorded or (is_unedited and position is not None)
        encoded.messages.append(native)
        encoded.hashes.append(digest)
        encoded.positions.append(position)
        encoded.is_kept.append(is_kept)
        if is_kept or recorded is None:
            encoded.is_clipped.append(False)
            encoded.is_elided.append(False)
        else:
            moved_texts = moved_texts or cache(partial(_texts_in_memory, history))
            encoded.is_clipped.append(_is_clipped(message, recorded, moved_texts))
            encoded.is_elided.append(_is_elided(message, recorded))
    return encoded


def _is_other(message: Message, recorded: Message) -> bool:
    """Return whether a message was not made from a recorded one, whose JSON it would keep."""
    return message.native is not recorded.native and message.native != recorded.native


def _is_clipped(message: Message, recorded: Message, moved_texts: Callable[[], Container[str]]) -> bool:
    """Return whether an output or the arguments of a call are shorter than recorded.

    A repair shortens neither, but it may have put them here from other messages: `moved_texts` are all of theirs.
    """
    known = {*MADE_RESULTS, *tool_texts(recorded)}
    others = [(call_id, text) for call_id, text in _texts_of_calls(message) if text not in known]
    if not others:
        return False
    own = {call_id for call_id, _ in _texts_of_calls(recorded)}
    if any(call_id in own for call_id, _ in others):
        return True
    return any(text not in moved_texts() for _, text in others)


def _texts_in_memory(history: History) -> frozenset[str]:
    """Return the arguments and outputs of the messages in memory, among which are all that a view was made of."""
    return frozenset(text for entry in history.entries.cached() for text in tool_texts(entry.message))


def _texts_of_calls(message: Message) -> Iterable[tuple[str, str]]:
    """Return the arguments and the outputs of a message, each with the id of its call."""
    return zip((*message.outline.call_ids, *message.outline.result_ids), tool_texts(message), strict=True)


def _is_elided(message: Message, recorded: Message) -> bool:
    """Return whether media were replaced by a notice; a repair may move or remove a result with its media instead."""
    own: dict[str, list[int]] = {}
    for result in recorded.results:
        own.setdefault(result.call_id, []).append(_media_count(result))
    sent = [(_media_count(result), own[result.call_id]) for result in message.results if result.call_id in own]
    if any(count < min(counts) for count, counts in sent):
        return True
    # A result that a repair has moved to its call leaves everything else where it was.
    has_others = any(not isinstance(part, ToolResult) for part in message.parts)
    return has_others and _media_outside(message) < _media_outside(recorded)


def _media_count(result: ToolResult) -> int:
    return sum(isinstance(part, Media) for part in result.content)


def _media_outside(message: Message) -> int:
    """Return how many media a message has outside of its tool results."""
    return message.media_count - sum(map(_media_count, message.results))


def common_length(one: Sequence[object], other: Sequence[object]) -> int:
    """Return how many objects two lists have in common at their beginning."""
    if all(map(operator.is_, one, other)):
        return min(len(one), len(other))
    return list(map(operator.is_, one, other)).index(False)


def request_with(request: Request, messages: list[Any]) -> Request:
    """Return a request with other messages; `replace` takes three times as long."""
    own = request.receipt, request.system, request.tools, request.hash, request.hashes, request.positions
    return Request(messages, *own, request.compaction_due, request.transcript)


def request_of(
    view: View,
    encoded: EncodedView,
    plan_input: PlanInput,
    *,
    reasons: tuple[str, ...],
    encoded_extras: bytes,
    system: object = None,
    tools: object = None,
) -> Request:
    """Return the request of a session's view."""
    history, situation = plan_input.history, plan_input.situation
    messages, hashes, positions = encoded.messages[:], encoded.hashes, tuple(encoded.positions)
    # Only recorded messages are kept, clipped or elided, and they have a position.
    recorded = cast("tuple[int, ...]", positions)
    are_all_kept = all(encoded.is_kept)
    kept = recorded if are_all_kept else tuple(compress(recorded, encoded.is_kept))
    others = () if are_all_kept else recorded
    if encoded.format.max_cache_marks is not None:
        extras = history.session_state.extras_for(situation.scope)
        messages = as_accepted(messages, encoded.format, system=extras.system, tools=extras.tools)
        hashes = [
            digest if message is marked else message_hash(message)
            for digest, message, marked in zip(hashes, messages, encoded.messages, strict=True)
        ]
        payload = payload_hash(hashes, encoded_extras)
    else:
        payload = encoded.payload.of(encoded.hashes, encoded_extras)
    compacted: list[range] = []
    conflicts: tuple[str, ...] = ()
    if compactions := history.version.state_of(situation.scope).compactions:
        conflicts = history.compacted_reads(situation.scope).conflicts
        stop = compactions[-1].span.stop
        sent = sorted({position for position in positions if position is not None and position < stop})
        for compaction in compactions:
            compacted += ranges_without(compaction.span.stop, sent, start=compaction.span.start)
    receipt = receipt_of(
        view,
        situation,
        view.token_count(situation),
        kept=kept,
        clipped=compress(others, encoded.is_clipped),
        elided=compress(others, encoded.is_elided),
        compacted=tuple(compacted),
        repairs=view.repairs,
        conflicts=conflicts,
        reasons=reasons,
    )
    return Request(
        messages,
        receipt,
        system,
        tools,
        hash=payload,
        hashes=tuple(hashes),
        positions=positions,
    )


def request_prepared_event(
    request: Request,
    view: View,
    plan_input: PlanInput,
    policy_name: str,
    pieces: tuple[Mapping[str, object], ...],
    *,
    body: tuple[tuple[Mapping[str, object], ...], str | None],
    prefix_break: log.PrefixBreak | None = None,
    prefix_hash: str | None = None,
    extras_hash: str | None = None,
) -> log.RequestPrepared:
    """Return the event of a request, with everything that rebuilds it from the log.

    `body` are the bytes that will be sent, in pieces, with their hash.
    """
    situation = plan_input.situation
    return log.RequestPrepared(
        view=pieces,
        payload_hash=request.hash,
        policy=policy_name,
        engine=__version__,
        situation={
            "budget": situation.budget.tokens,
            "source": situation.budget.source,
            "counter": situation.counter.name,
            "factor": situation.calibration.factor,
            "systemTokens": situation.system_tokens,
            "toolsTokens": situation.tools_tokens,
            "tokens": request.receipt.tokens.total,
            **({EMERGENCY_VIEW_KEY: True} if view.is_emergency else {}),
            **({"hasRecall": True} if situation.has_recall else {}),
        },
        prefix_hash=prefix_hash,
        extras_hash=extras_hash,
        scope=situation.scope,
        prefix_break=prefix_break,
        chain_hash=chain_hash(plan_input.history.request_chain, request.hash),
        body=body[0],
        body_hash=body[1],
    )


def rebuild_request(event: log.RequestPrepared, history: History) -> tuple[list[Mapping[str, object]], str]:
    """Return the messages of a recorded request and their hash, from the history at that time."""
    messages = [message for _, message in rebuild_messages(event, history)]
    extras = encode_extras(history.session_state.extras_for(event.scope))
    return messages, payload_hash(map(message_hash, messages), extras)


def rebuild_messages(event: log.RequestPrepared, history: History) -> list[tuple[int | None, Mapping[str, object]]]:
    """Return the messages of a recorded request, each with its position; None for one made for this request."""
    visible = history.context(event.scope).visible_entries()
    positions: list[int | None] = []
    messages: list[Mapping[str, object]] = []
    for piece in event.view:
        made = piece.get("message")
        if isinstance(made, Mapping):
            positions.append(None)
            messages.append({str(key): value for key, value in made.items()})  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            continue
        first, last = piece.get("from"), piece.get("to")
        if isinstance(first, int) and isinstance(last, int):
            entries = visible[first:last]
            if piece.get("withoutThinking"):
                entries = [entry.with_message(entry.message.without_thinking()) for entry in entries]
            positions += [entry.position for entry in entries]
            messages += [encode_entry(entry, history.message_format) for entry in entries]
    extras = history.session_state.extras_for(event.scope)
    messages = as_accepted(messages, history.message_format, system=extras.system, tools=extras.tools)
    return list(zip(positions, messages, strict=True))


@lru_cache(maxsize=16)
def policy_hash(policy: Policy) -> str:
    """Return a hash that identifies exactly these settings."""
    return f"{policy.name}:{hashlib.sha256(repr(policy).encode()).hexdigest()[:12]}"


class ViewPieces:
    """A view as ranges of the visible entries, and messages made for one request alone in full.

    Both the view and the visible entries grow at their end, so the pieces of the last request are continued.
    """

    def __init__(self, projection: Projection) -> None:
        self.projection = projection
        self._entries: list[Entry] = []
        self._pieces: list[Mapping[str, object]] = []
        self._visible_stop = 0
        self._indexed = 0
        """How many visible entries the two below know; they are asked only after a view has left one out."""
        self._recorded_at: dict[int, int] = {}
        """By the position of a recorded message, its index among the visible entries."""
        self._made_at: list[int] = []
        """The indices of the visible entries that were made, such as summaries."""

    def all_visible(self, view: View) -> tuple[Mapping[str, object], ...]:
        """Return the pieces of a view that has all visible entries, as they are."""
        self._entries, self._visible_stop = view.entries, len(view.entries)
        self._pieces = [{"from": 0, "to": self._visible_stop}]
        return tuple(self._pieces)

    def extend(self, view: View, messages: Sequence[Mapping[str, object]]) -> tuple[Mapping[str, object], ...]:
        """Return the pieces of a view."""
        entries, visible, stripped = view.entries, self.projection.entries, frozenset(view.without_thinking)
        index = len(self._entries)
        if stripped or common_length(entries, self._entries) < index:
            index = self._visible_stop = 0
            self._pieces = []
        start, stop, visible_stop = self._visible_stop, len(entries), len(visible)
        while index < stop:
            run, is_stripped = index, entries[index].position in stripped
            ahead = start - index
            while run < stop and run + ahead < visible_stop:
                entry, other = entries[run], visible[run + ahead]
                if entry is not other and not _is_same(entry, other, is_stripped=is_stripped):
                    break
                if stripped and (entry.position in stripped) is not is_stripped:
                    break
                run += 1
            if run > index:
                piece: dict[str, object] = {"from": start, "to": run + ahead}
                before = self._pieces[-1] if self._pieces else piece
                if is_stripped:
                    self._pieces.append({**piece, "withoutThinking": True})
                elif before.get("to") == start and "withoutThinking" not in before:
                    self._pieces[-1] = {**before, "to": run + ahead}
                else:
                    self._pieces.append(piece)
                start, index = run + ahead, run
                continue
            later = self._later_index(entries[index], start, is_stripped=is_stripped)
            if later is not None:
                start = later
                continue
            self._pieces.append({"message": dict(messages[index])})
            index += 1
        self._entries, self._visible_stop = entries, start
        return tuple(self._pieces)

    def _later_index(self, entry: Entry, start: int, *, is_stripped: bool) -> int | None:
        """Return where a visible entry that is sent comes from, at or after an index."""
        visible = self.projection.entries
        for index in range(self._indexed, len(visible)):
            position = visible[index].position
            if position is None:
                self._made_at.append(index)
            else:
                self._recorded_at[position] = index
        self._indexed = len(visible)
        if entry.position is None:
            candidates = self._made_at[bisect_left(self._made_at, start) :]
        else:
            candidates = [self._recorded_at.get(entry.position, -1)]
        return next(
            (at for at in candidates if at >= start and _is_same(entry, visible[at], is_stripped=is_stripped)), None
        )


def _is_same(entry: Entry, other: Entry, *, is_stripped: bool) -> bool:
    if entry.position != other.position or entry.message.repair_notes != other.message.repair_notes:
        return False
    return entry.message == (other.message.without_thinking() if is_stripped else other.message)
