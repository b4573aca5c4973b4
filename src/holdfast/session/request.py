"""What a session gives out: the request, what it cost to make, and what was done for it."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.core.conversation.messages import Entry, Message
from holdfast.core.conversation.shorten import count_media
from holdfast.core.conversation.spans import ranges_without
from holdfast.core.conversation.tokens import REPLY_OVERHEAD, TokenCount
from holdfast.core.history import events as log
from holdfast.core.history.fingerprints import message_hash, payload_hash
from holdfast.core.history.history import History
from holdfast.core.memory.evictions import EMERGENCY_VIEW_KEY
from holdfast.core.planning.fit.receipt import Receipt
from holdfast.core.planning.plan import Plan, view_token_count
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.situation import Situation
from holdfast.session.log.records import engine_version
from holdfast.wire.anthropic import count_cache_marks, drop_excess_cache_marks


class Encoder(Protocol):
    """What writes messages as a provider's JSON."""

    max_cache_marks: int | None
    """The most cache marks a request may carry; None where there is no such thing."""

    def encode(self, message: Message) -> Mapping[str, object]:
        """Return a message as JSON."""
        ...


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """What to send."""

    messages: list[Mapping[str, object]]
    tokens: TokenCount
    receipt: Receipt
    system: object = None
    tools: object = None
    hash: str = ""
    """Of the whole payload, in our canonical encoding: what a replay is held against."""
    hashes: tuple[str, ...] = field(default=(), repr=False)
    """Of each message."""
    positions: tuple[int | None, ...] = field(default=(), repr=False)
    """Where each message was recorded; None for one that was made for this request."""


def encode_entry(entry: Entry, encoder: Encoder) -> Mapping[str, object]:
    """Return an entry as JSON; what nobody touched is the same object that came in."""
    message = entry.message
    if message.is_unedited and message.native is not None and not message.repair_notes:
        return message.native
    return encoder.encode(message)


def limit_cache_marks(
    messages: list[Mapping[str, object]], encoder: Encoder, *, system: object = None, tools: object = None
) -> list[Mapping[str, object]]:
    """Return the messages of a request without the oldest cache marks, where they have more than may be sent.

    Clients mark the newest message of each request, so a conversation that keeps what they sent gathers marks.
    """
    if encoder.max_cache_marks is None:
        return messages
    with suppress(ValueError, RecursionError):
        system = json.loads(system) if isinstance(system, str) else system
    return drop_excess_cache_marks(
        messages, encoder.max_cache_marks - count_cache_marks(system) - count_cache_marks(tools)
    )


def build_request(
    plan: Plan, history: History, situation: Situation, encoder: Encoder, hashes: dict[int, str]
) -> PreparedRequest:
    """Return the request of a plan; `hashes` are those of recorded messages, by position, and grow with it."""
    beside = recorded_extras(history, situation.scope)
    messages = limit_cache_marks([encode_entry(entry, encoder) for entry in plan.view.entries], encoder, **beside)
    named = tuple(_hash_of(entry, native, hashes) for entry, native in zip(plan.view.entries, messages, strict=True))
    receipt = _receipt(plan, history, situation)
    return PreparedRequest(
        messages,
        receipt.tokens,
        receipt,
        hash=payload_hash(named, **beside),
        hashes=named,
        positions=tuple(entry.position for entry in plan.view.entries),
    )


def recorded_extras(history: History, scope: str) -> dict[str, object]:
    """Return what travels outside the messages, as it was recorded: what a hash is made of then and later."""
    beside = history.session_state.extras_for(scope)
    return {"system": beside.system, "tools": [dict(tool) for tool in beside.tools]}


def _hash_of(entry: Entry, native: Mapping[str, object], hashes: dict[int, str]) -> str:
    """Return the hash of a message; what goes out as it was recorded is hashed once."""
    position, message = entry.position, entry.message
    if position is None or message.repair_notes or native is not message.native:
        return message_hash(native)
    if position not in hashes:
        hashes[position] = message_hash(native)
    return hashes[position]


def request_prepared_event(
    request: PreparedRequest, plan: Plan, history: History, policy: Policy, situation: Situation
) -> log.RequestPrepared:
    """Return the event that tells of a request, with all that rebuilds it from the log."""
    shown = history.projection(situation.counter, situation.scope).entries
    return log.RequestPrepared(
        view=tuple(_view_pieces(plan.view.entries, shown, request.messages)),
        payload_hash=request.hash,
        policy=policy_hash(policy),
        engine=engine_version(),
        situation={
            "budget": situation.budget.tokens,
            "source": situation.budget.source,
            "counter": situation.counter.name,
            "factor": situation.calibration.factor,
            "systemTokens": situation.system_tokens,
            "toolsTokens": situation.tools_tokens,
            "tokens": request.tokens.total,
            **({EMERGENCY_VIEW_KEY: True} if plan.view.is_emergency else {}),
            **({"hasRecall": True} if situation.has_recall else {}),
        },
        scope=situation.scope,
    )


def rebuild_request(
    event: log.RequestPrepared, history: History, encoder: Encoder
) -> tuple[list[Mapping[str, object]], str]:
    """Return the messages that an event tells of, and the hash of them, from how the history stood then."""
    shown = history.context(event.scope).visible_entries()
    messages: list[Mapping[str, object]] = []
    for piece in event.view:
        made = piece.get("message")
        if isinstance(made, Mapping):
            messages.append({str(key): value for key, value in made.items()})  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            continue
        first, last = piece.get("from"), piece.get("to")
        if isinstance(first, int) and isinstance(last, int):
            messages += [encode_entry(entry, encoder) for entry in shown[first:last]]
    beside = recorded_extras(history, event.scope)
    messages = limit_cache_marks(messages, encoder, **beside)
    return messages, payload_hash(map(message_hash, messages), **beside)


def policy_hash(policy: Policy) -> str:
    """Return a name for exactly these settings."""
    return f"{policy.name}:{hashlib.sha256(repr(policy).encode()).hexdigest()[:12]}"


def _view_pieces(
    entries: Sequence[Entry], visible: Sequence[Entry], messages: Sequence[Mapping[str, object]]
) -> Iterator[Mapping[str, object]]:
    """Yield a view as ranges of what stands, and in full what was made or changed for this request alone."""
    start = index = 0
    while index < len(entries):
        run = index
        while (
            run < len(entries)
            and start + run - index < len(visible)
            and _is_same(entries[run], visible[start + run - index])
        ):
            run += 1
        if run > index:
            yield {"from": start, "to": start + run - index}
            start, index = start + run - index, run
            continue
        later = next((at for at in range(start, len(visible)) if _is_same(entries[index], visible[at])), None)
        if later is not None:
            start = later
            continue
        yield {"message": dict(messages[index])}
        index += 1


def _is_same(one: Entry, other: Entry) -> bool:
    return one is other or (one.position == other.position and one.message == other.message)


def _receipt(plan: Plan, history: History, situation: Situation) -> Receipt:
    standing = history.version.state_of(situation.scope)
    said = [(entry.position, entry.message) for entry in plan.view.entries if entry.position is not None]
    whole = {at for at, one in said if one.is_unedited or one is history.entries[at].message}
    kept = [position for position, _ in said if position in whole]
    changed = [(position, message) for position, message in said if position not in whole]
    shown = sorted({position for position, _ in said})
    folded = [
        span for fold in standing.compactions for span in ranges_without(fold.span.stop, shown, start=fold.span.start)
    ]
    before = history.projection(situation.counter, situation.scope).tokens
    return Receipt(
        budget=situation.budget,
        tokens_before=situation.billed_count(system=situation.system_tokens, conversation=before + REPLY_OVERHEAD),
        tokens=view_token_count(plan.view, situation),
        messages_before=len(history),
        messages=len(plan.view.entries),
        kept=tuple(kept),
        clipped=tuple(position for position, _ in changed if history.entries[position].message.results),
        elided=tuple(
            position
            for position, message in changed
            if count_media(message) < count_media(history.entries[position].message)
        ),
        compacted=tuple(folded),
        repairs=plan.view.repairs,
        conflicts=history.compacted_reads(situation.scope).conflicts,
        reasons=plan.reasons,
    )
