"""The whole of it for a bare list: what may be sent of these messages, and why.

`govern` has no memory. Its cuts depend only on how far from the beginning a message stands, so a
list that only grows keeps a stable prefix from call to call. `previous` changes nothing about the
result; it saves the work that the last call has already done.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.conversation.tokens import Calibration, Counter, TokenCount
from holdfast.core.conversation.transcript import Transcript
from holdfast.core.planning.account import account
from holdfast.core.planning.floor import Fitted, Floor
from holdfast.core.planning.policy import Policy, policy_named
from holdfast.core.planning.receipt import Receipt
from holdfast.core.planning.situation import Budget, Situation
from holdfast.counters.models import budget_for
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import SettingsError
from holdfast.wire.anthropic_messages import MAX_CACHE_MARKS, count_cache_marks, without_excess_marks
from holdfast.wire.formats import Format, format_named
from holdfast.wire.reading import Place, check_list


@dataclass(frozen=True, slots=True)
class Request:
    """What to send."""

    messages: list[Mapping[str, Any]]
    """The same JSON types as the input; untouched messages are the same objects."""
    tokens: TokenCount
    receipt: Receipt
    system: object = None
    tools: object = None
    transcript: Transcript | None = field(default=None, repr=False, compare=False)
    """What the next call can build on, given this request as `previous`."""


def govern(
    messages: Sequence[Mapping[str, Any]],
    *,
    budget: int | Budget | None = None,
    format: str = "openai-chat",  # noqa: A002 - the word users say
    model: str | None = None,
    system: object = None,
    tools: object = None,
    policy: str | Policy = "default",
    pins: Iterable[int] = (),
    interrupted: bool = False,
    calibration: Calibration | None = None,
    counter: Counter | None = None,
    previous: Request | None = None,
) -> Request:
    """Return a request that its provider accepts and that fits the budget.

    `budget` is the largest input in tokens, or a Budget; without one it comes from the table of models.
    `system` is system text outside the messages (Anthropic), `pins` are indices of messages that stay
    whole. Raises a HoldfastError that names the place and the remedy where nothing can be sent.
    """
    wire = format_named(format)
    natives = check_list(messages)
    counter = counter or counter_for(model)
    situation = Situation(
        budget=budget_for(model, budget),
        counter=counter,
        calibration=calibration or Calibration(),
        system_tokens=_count_json(system, "system", counter),
        tools_tokens=_count_json(tools, "tools", counter),
        pins=_checked_pins(pins, len(natives)),
        is_interrupted=interrupted,
        groups_results=wire.groups_results,
    )
    rules = policy_named(policy) if isinstance(policy, str) else policy
    transcript = _known_transcript(natives, wire, counter, previous)
    fitted = None if transcript is None else _fitted_as_known(transcript, rules, situation)
    if transcript is None or fitted is None:
        transcript = Transcript(natives, wire, counter)
        fitted = Floor(transcript, rules, situation).fit()
    receipt = account(transcript, situation, fitted)
    sent = _encoded(fitted, natives, wire, count_cache_marks(system) + count_cache_marks(tools))
    return Request(sent, receipt.tokens, receipt, system, tools, transcript)


def _known_transcript(
    natives: list[object], wire: Format, counter: Counter, previous: Request | None
) -> Transcript | None:
    """Return the previous call's transcript grown to this list, if it is the same list so far."""
    known = previous.transcript if previous else None
    if known is None or known.reader is not wire or known.counter is not counter:
        return None
    return known.continued(natives)


def _fitted_as_known(transcript: Transcript, policy: Policy, situation: Situation) -> Fitted | None:
    """Fit a transcript that was read earlier; None if what it would send was changed in place since."""
    fitted = Floor(transcript, policy, situation).fit()
    positions = [entry.position for entry in fitted.entries if entry.position is not None]
    return fitted if transcript.is_as_weighed(positions) else None


def _count_json(value: object, name: str, counter: Counter) -> int:
    """Return the cost of what is sent besides the messages."""
    if value is None or value in ([], ""):
        return 0
    if isinstance(value, str):
        return counter.count(Place(name).clean(value, ""))
    return counter.count(Place(name).json(value, ""))


def _checked_pins(pins: Iterable[int], length: int) -> frozenset[int]:
    checked: set[int] = set()
    for pin in pins:
        if isinstance(pin, bool) or not isinstance(pin, int) or not -length <= pin < length:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingsError("pins", f"{pin!r} is not the index of a message; there are {length:,}")
        checked.add(pin % length)
    return frozenset(checked)


def _encoded(fitted: Fitted, natives: list[Any], wire: Format, marks_elsewhere: int) -> list[Mapping[str, Any]]:
    messages: list[Mapping[str, Any]] = []
    for entry in fitted.entries:
        position, message = entry.position, entry.message
        if position is not None and message.parts is message.decoded:
            messages.append(natives[position])
        else:
            messages.append(wire.encode(message))
    return without_excess_marks(messages, MAX_CACHE_MARKS - marks_elsewhere) if wire.groups_results else messages
