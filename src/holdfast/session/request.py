"""The request: the payload to send, its receipt, and the event from which it can be rebuilt."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from holdfast.core.conversation.messages import Entry
from holdfast.core.conversation.spans import ranges_without
from holdfast.core.conversation.tokens import TokenCount
from holdfast.core.conversation.transcript import MessageFormat, Transcript
from holdfast.core.history import events as log
from holdfast.core.history.history import History
from holdfast.core.memory.evictions import EMERGENCY_VIEW_KEY
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.receipt import Receipt, View, receipt_of
from holdfast.core.planning.steps import PlanInput
from holdfast.session.log.records import engine_version
from holdfast.wire.anthropic import count_cache_marks, drop_excess_cache_marks


@dataclass(frozen=True, slots=True)
class Request:
    """A request to send, with its receipt."""

    messages: list[Any]
    """The same JSON types as the input; unchanged messages are the same objects. Providers' own types accept them."""
    tokens: TokenCount
    receipt: Receipt
    system: object = None
    tools: object = None
    hash: str = ""
    """The hash of a session's whole payload in our canonical encoding; a replay is compared with it."""
    hashes: tuple[str, ...] = field(default=(), repr=False)
    """The hash of each message."""
    positions: tuple[int | None, ...] = field(default=(), repr=False)
    """Where each message was recorded; None for one that was made for this request."""
    transcript: Transcript | None = field(default=None, repr=False, compare=False)
    """What the next call of `govern` can reuse, if it gets this request as `previous`."""


def message_hash(native: Mapping[str, object]) -> str:
    """Return the hash of a message in our canonical encoding: sorted keys, no spaces, ASCII."""
    text = json.dumps(native, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def payload_hash(message_hashes: Iterable[str], *, system: object = None, tools: object = None) -> str:
    """Return the hash of a request; it combines the hashes of its messages, so only new messages are hashed."""
    extras = json.dumps([system, tools], sort_keys=True, separators=(",", ":"), default=str)
    whole = hashlib.sha256(extras.encode())
    for one in message_hashes:
        whole.update(bytes.fromhex(one))
    return whole.hexdigest()


def chain_hash(previous: str, payload: str) -> str:
    """Return the hash of a request's place in the chain: of the chain before it, empty at first, and of its payload."""
    return hashlib.sha256(f"{previous}:{payload}".encode()).hexdigest()


def encode_entry(entry: Entry, message_format: MessageFormat) -> Mapping[str, object]:
    """Return an entry as JSON; for an unedited message, the same object that came in."""
    message = entry.message
    if message.is_unedited and message.native is not None and not message.repair_notes:
        return message.native
    return message_format.encode(message)


def limit_cache_marks(
    messages: list[Mapping[str, object]], message_format: MessageFormat, *, system: object = None, tools: object = None
) -> list[Mapping[str, object]]:
    """Return the messages of a request without the oldest cache marks, if they have more than the provider allows.

    Clients mark the newest message of each request, so the marks accumulate in a recorded conversation.
    """
    if message_format.max_cache_marks is None:
        return messages
    with suppress(ValueError, RecursionError):
        system = json.loads(system) if isinstance(system, str) else system
    return drop_excess_cache_marks(
        messages, message_format.max_cache_marks - count_cache_marks(system) - count_cache_marks(tools)
    )


def request_of(
    view: View,
    plan_input: PlanInput,
    hashes: dict[int, str],
    *,
    reasons: tuple[str, ...],
    system: object = None,
    tools: object = None,
) -> Request:
    """Return the request of a session's view; `hashes` caches those of recorded messages by position."""
    history, situation = plan_input.history, plan_input.situation
    extras = recorded_extras(history, situation.scope)
    message_format = history.message_format
    messages = [encode_entry(entry, message_format) for entry in view.entries]
    messages = limit_cache_marks(messages, message_format, **extras)
    message_hashes: list[str] = []
    positions: list[int | None] = []
    kept: list[int] = []
    clipped: list[int] = []
    elided: list[int] = []
    for (message, position), native in zip(view.entries, messages, strict=True):
        positions.append(position)
        if position is None or message.repair_notes or native is not message.native:
            message_hashes.append(message_hash(native))
        else:
            if position not in hashes:
                hashes[position] = message_hash(native)
            message_hashes.append(hashes[position])
        if position is None:
            continue
        if message.is_unedited or message is (recorded := history.entries[position].message):
            kept.append(position)
            continue
        if recorded.results:
            clipped.append(position)
        if message.media_count < recorded.media_count:
            elided.append(position)
    compacted: list[range] = []
    for compaction in history.version.state_of(situation.scope).compactions:
        sent = sorted({position for position in positions if position is not None})
        compacted += ranges_without(compaction.span.stop, sent, start=compaction.span.start)
    receipt = receipt_of(
        view,
        situation,
        view.token_count(situation),
        kept=kept,
        clipped=clipped,
        elided=elided,
        compacted=tuple(compacted),
        repairs=view.repairs,
        conflicts=history.compacted_reads(situation.scope).conflicts,
        reasons=reasons,
    )
    return Request(
        messages,
        receipt.tokens,
        receipt,
        system,
        tools,
        hash=payload_hash(message_hashes, **extras),
        hashes=tuple(message_hashes),
        positions=tuple(positions),
    )


def recorded_extras(history: History, scope: str) -> dict[str, object]:
    """Return system text and tools as they were recorded; the payload's hash uses these, now and at a replay."""
    extras = history.session_state.extras_for(scope)
    return {"system": extras.system, "tools": list(map(dict, extras.tools))}


def request_prepared_event(
    request: Request,
    view: View,
    plan_input: PlanInput,
    policy_name: str,
    *,
    prefix_break: log.PrefixBreak | None = None,
    prefix_hash: str | None = None,
    extras_hash: str | None = None,
) -> log.RequestPrepared:
    """Return the event of a request, with everything that rebuilds it from the log."""
    situation = plan_input.situation
    return log.RequestPrepared(
        view=tuple(_view_pieces(view, plan_input.projection.entries, request.messages)),
        payload_hash=request.hash,
        policy=policy_name,
        engine=engine_version(),
        situation={
            "budget": situation.budget.tokens,
            "source": situation.budget.source,
            "counter": situation.counter.name,
            "factor": situation.calibration.factor,
            "systemTokens": situation.system_tokens,
            "toolsTokens": situation.tools_tokens,
            "tokens": request.tokens.total,
            **({EMERGENCY_VIEW_KEY: True} if view.is_emergency else {}),
            **({"hasRecall": True} if situation.has_recall else {}),
        },
        prefix_hash=prefix_hash,
        extras_hash=extras_hash,
        scope=situation.scope,
        prefix_break=prefix_break,
        chain_hash=chain_hash(plan_input.history.session_state.request_chain, request.hash),
    )


def rebuild_request(event: log.RequestPrepared, history: History) -> tuple[list[Mapping[str, object]], str]:
    """Return the messages of a recorded request and their hash, from the history at that time."""
    visible = history.context(event.scope).visible_entries()
    messages: list[Mapping[str, object]] = []
    for piece in event.view:
        made = piece.get("message")
        if isinstance(made, Mapping):
            messages.append({str(key): value for key, value in made.items()})  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            continue
        first, last = piece.get("from"), piece.get("to")
        if isinstance(first, int) and isinstance(last, int):
            entries = visible[first:last]
            if piece.get("withoutThinking"):
                entries = [*map(_without_thinking, entries)]
            messages += [encode_entry(entry, history.message_format) for entry in entries]
    extras = recorded_extras(history, event.scope)
    messages = limit_cache_marks(messages, history.message_format, **extras)
    return messages, payload_hash(map(message_hash, messages), **extras)


@lru_cache(maxsize=16)
def policy_hash(policy: Policy) -> str:
    """Return a hash that identifies exactly these settings."""
    return f"{policy.name}:{hashlib.sha256(repr(policy).encode()).hexdigest()[:12]}"


def _view_pieces(
    view: View, visible: Sequence[Entry], messages: Sequence[Mapping[str, object]]
) -> Iterator[Mapping[str, object]]:
    """Yield a view as ranges of the visible entries, and messages made for this request alone in full."""
    entries, stripped = view.entries, frozenset(view.without_thinking)

    def is_same(entry: Entry, other: Entry) -> bool:
        if entry.position in stripped:
            other = _without_thinking(other)
        return entry is other or (entry.position == other.position and entry.message == other.message)

    start = index = 0
    while index < len(entries):
        run, is_stripped = index, entries[index].position in stripped
        while (
            run < len(entries)
            and start + run - index < len(visible)
            and (entries[run].position in stripped) is is_stripped
            and is_same(entries[run], visible[start + run - index])
        ):
            run += 1
        if run > index:
            piece = {"from": start, "to": start + run - index}
            yield {**piece, "withoutThinking": True} if is_stripped else piece
            start, index = start + run - index, run
            continue
        later = next((at for at in range(start, len(visible)) if is_same(entries[index], visible[at])), None)
        if later is not None:
            start = later
            continue
        yield {"message": dict(messages[index])}
        index += 1


def _without_thinking(entry: Entry) -> Entry:
    return entry.with_message(entry.message.without_thinking())
