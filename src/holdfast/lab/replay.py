"""Plays a recorded session again under a policy, and measures every request it would have made.

For each assistant turn the request is prepared from everything before it, held against the one before,
and then the recorded turn is appended. No model is called: what a summary would have cost is priced.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import cast

from holdfast.core.conversation.tokens import Counter, message_tokens
from holdfast.core.conversation.transcript import Transcript
from holdfast.core.planning.cost import Prices, request_cost
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import MalformedInputError
from holdfast.lab.baselines import SUMMARY_TOKENS, Asked, Governed, Prepared, ReplayPolicy, Sizes
from holdfast.lab.planned import Planned
from holdfast.testing.chat import Json
from holdfast.wire.formats import format_named
from holdfast.wire.validate.provider import validate

STATIC_TOKENS = 3_000
"""System text and tools that every request carries, where a recording does not say."""
SAMPLED = 25
"""Every how many turns determinism is checked."""


@dataclass(frozen=True, slots=True)
class Session:
    """A recorded conversation in OpenAI chat format."""

    name: str
    messages: list[Json]
    times: list[float | None]
    """When each message was recorded, in seconds; None where that is not known."""
    usage: list[Mapping[str, int] | None]
    """What the provider billed for each assistant turn."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request that a policy would have made."""

    sent: int
    """Tokens, static part included."""
    shared: int
    """Tokens of the prefix it has in common with the request before."""
    is_extension: bool
    """Whether the request before is its prefix."""
    output: int
    summarised: int
    gap_seconds: float
    """Since the request before."""
    is_invalid: bool
    is_over: bool
    is_different: bool
    """Whether preparing it afresh gave other bytes."""

    def held(self, prices: Prices) -> int:
        """Return the tokens a provider's cache would still hold."""
        is_cold = prices.ttl_seconds is not None and self.gap_seconds > prices.ttl_seconds
        return 0 if is_cold else self.shared

    def cost(self, prices: Prices) -> float:
        """Return what the request costs, summary included."""
        held = self.held(prices)
        cost = request_cost(prices, held=held, fresh=self.sent - held, output=self.output)
        summary_output = SUMMARY_TOKENS if self.summarised else 0
        return cost + request_cost(prices, held=0, fresh=0, output=summary_output) + self.summarised


@dataclass(slots=True)
class Player:
    """Plays one session under one policy at one budget."""

    session: Session
    policy: ReplayPolicy
    budget: int
    static: int = STATIC_TOKENS
    counter: Counter = field(default_factory=lambda: counter_for("gpt-5"))
    _counted: dict[int, int] = field(default_factory=dict[int, int])
    _kept: list[Mapping[str, object]] = field(default_factory=list[Mapping[str, object]])

    def turns(self) -> Iterator[Turn]:
        """Yield each request in order."""
        reader = format_named("openai-chat")
        messages = self.session.messages
        sizes = Sizes(Transcript(messages, reader, self.counter), self.static)
        before: Sequence[Mapping[str, object]] = ()
        asked_at = None
        for index, message in enumerate(messages):
            if message["role"] != "assistant" or index == 0:
                continue
            time = self.session.times[index]
            gap = 0.0 if asked_at is None or time is None else time - asked_at
            asked = Asked(messages[:index], sizes, self.budget, gap)
            prepared = self.policy.prepare(asked)
            output = sizes.transcript.tokens(index)
            yield self._turn(prepared, before, asked, output)
            before, asked_at = prepared.messages, time

    def _turn(self, prepared: Prepared, before: Sequence[Mapping[str, object]], asked: Asked, output: int) -> Turn:
        sent = self.static + sum(map(self._tokens, prepared.messages))
        common = _common(before, prepared.messages)
        shared = (self.static if before else 0) + sum(map(self._tokens, prepared.messages[:common]))
        return Turn(
            sent=sent,
            shared=shared,
            is_extension=common == len(before),
            output=output,
            summarised=prepared.summarised_tokens,
            gap_seconds=asked.idle_seconds,
            is_invalid=bool(validate(prepared.messages, "openai-chat")),
            is_over=sent > self.budget,
            is_different=len(asked.messages) % SAMPLED == 0 and self._differs(prepared, asked),
        )

    def _differs(self, prepared: Prepared, asked: Asked) -> bool:
        """Return whether one of our policies gives other bytes when it begins anew from what was recorded."""
        if isinstance(self.policy, Governed):
            again = Governed().prepare(asked).messages
        elif isinstance(self.policy, Planned):
            again = self.policy.again(asked)
        else:
            return False
        return json.dumps(again) != json.dumps(prepared.messages)

    def _tokens(self, message: Mapping[str, object]) -> int:
        tokens = self._counted.get(id(message))
        if tokens is None:
            decoded = format_named("openai-chat").decode(message, 0)
            tokens = self._counted[id(message)] = sum(message_tokens(decoded, self.counter))
            self._kept.append(message)
        return tokens


def _common(before: Sequence[Mapping[str, object]], after: Sequence[Mapping[str, object]]) -> int:
    count = 0
    for one, other in zip(before, after, strict=False):
        if one is not other and one != other:
            break
        count += 1
    return count


def read_session(record: Mapping[str, object]) -> Session:
    """Return a session from a record of a JSONL file; keys that begin with `x_` are annotations."""
    raw = record.get("messages") if isinstance(record, Mapping) else None
    if not isinstance(raw, list):
        raise MalformedInputError("session", "must be an object with a list of messages")
    native: list[Json] = []
    for index, message in enumerate(cast("list[object]", raw)):
        said = cast("Json", message) if isinstance(message, dict) else {}
        if not isinstance(said.get("role"), str):
            raise MalformedInputError(f"messages[{index}]", "must be an object with a role")
        native.append(said)
    return Session(
        str(record.get("id", "session")),
        [{key: value for key, value in message.items() if not key.startswith("x_")} for message in native],
        [_seconds(message.get("x_ts")) for message in native],
        [_usage(message.get("x_usage")) for message in native],
    )


def concatenated(sessions: Sequence[Session]) -> Session:
    """Return sessions as one long one; the system text of the first stands for all, call ids stay apart."""
    messages: list[Json] = []
    for number, session in enumerate(sessions):
        for message in session.messages:
            if number and message["role"] == "system":
                continue
            messages.append(_with_prefixed_ids(message, f"s{number}_"))
    return Session(f"{len(sessions)} sessions", messages, [None] * len(messages), [None] * len(messages))


def _with_prefixed_ids(message: Json, prefix: str) -> Json:
    text = json.dumps(message)
    changed: Json = json.loads(text)
    if isinstance(changed.get("tool_call_id"), str):
        changed["tool_call_id"] = f"{prefix}{changed['tool_call_id']}"
    calls = changed.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:  # pyright: ignore[reportUnknownVariableType]
        call["id"] = f"{prefix}{call['id']}"
    return changed


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
    return {key: item for key, item in value.items() if isinstance(item, int)}  # pyright: ignore[reportUnknownVariableType]
