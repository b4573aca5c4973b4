"""The whole of it for a bare list: what may be sent of these messages, and why.

`govern` has no memory. Its cuts depend only on how far from the beginning a message stands, so a
list that only grows keeps a stable prefix from call to call. `previous` changes nothing about the
result; it saves the work that the last call has already done.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.conversation.json_values import is_sendable_json, is_utf8, replace_surrogates
from holdfast.core.conversation.pairing import Repair
from holdfast.core.conversation.tokens import Calibration, Counter, TokenCount
from holdfast.core.conversation.transcript import Transcript
from holdfast.core.planning.fit.fit import FittedView, ViewFitter, receipt_of
from holdfast.core.planning.fit.receipt import Receipt
from holdfast.core.planning.policy import FitSettings, Policy, policy_named
from holdfast.core.planning.situation import Budget, Situation
from holdfast.counters.models import budget_for
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import MalformedInputError, SettingsError
from holdfast.wire.anthropic import count_cache_marks, drop_excess_cache_marks
from holdfast.wire.formats import MessageFormat, format_named, split_elements
from holdfast.wire.json_reader import InputPath, check_list


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
    `system` is system text outside the messages, as the format has it; `pins` are indices of messages that
    stay whole. Raises a HoldfastError that names the place and the remedy where nothing can be sent.
    """
    wire = format_named(format)
    given = check_list(messages)
    natives, places = split_elements(wire, given)
    _check_settings(model, counter, calibration, previous)
    if system and not wire.has_separate_system:
        raise SettingsError("system", f"{wire.name} has system text among its messages; put it there")
    counter = counter or counter_for(model)
    repairs: list[Repair] = []
    system = _sendable_system(system, repairs)
    marks = count_cache_marks(system) + count_cache_marks(tools)
    if wire.max_cache_marks is not None and marks > wire.max_cache_marks:
        most = wire.max_cache_marks
        raise SettingsError("system", f"with the tools it carries {marks} cache marks; {most} are the most")
    situation = Situation(
        budget=budget_for(model, budget),
        counter=counter,
        calibration=calibration or Calibration(),
        system_tokens=_extras_tokens(system, "system", counter),
        tools_tokens=_extras_tokens(tools, "tools", counter),
        pins=_pins_of_elements(_check_pins(pins, len(given)), places),
        is_interrupted=bool(interrupted),
        batching=wire.batching,
        max_text_chars=wire.max_text_chars,
        max_images=wire.max_images,
    )
    rules = policy_named(policy).floor
    transcript = _known_transcript(natives, wire, counter, previous)
    fitted = None if transcript is None else _fit_known_transcript(transcript, rules, situation)
    if transcript is None or fitted is None:
        transcript = Transcript(natives, wire, counter)
        fitted = ViewFitter(transcript, rules, situation).fit()
    sent, unmarked = _encode_view(fitted, natives, wire, marks)
    repairs += [Repair(position, "removed a cache mark: there were too many") for position in unmarked]
    receipt = receipt_of(transcript, situation, fitted, rules.max_media, repairs)
    return Request(sent, receipt.tokens, receipt, system, tools, transcript)


def _sendable_system(system: object, repairs: list[Repair]) -> object:
    """Return system text without halves of surrogate pairs."""
    if not isinstance(system, str) or is_utf8(system):
        return system
    repairs.append(Repair(None, "replaced lone surrogates in the system text"))
    return replace_surrogates(system)


def _check_settings(model: object, counter: object, calibration: object, previous: object) -> None:
    for setting, value, kind, wanted in (
        ("model", model, str, "the name of a model"),
        ("counter", counter, Counter, "an object with name, provenance and count(text)"),
        ("calibration", calibration, Calibration, "a Calibration"),
        ("previous", previous, Request, "the Request of an earlier call"),
    ):
        if value is not None and not isinstance(value, kind):
            raise SettingsError(setting, f"must be {wanted}, not {value!r}")


def _known_transcript(
    natives: list[object], message_format: MessageFormat, counter: Counter, previous: Request | None
) -> Transcript | None:
    """Return the previous call's transcript grown to this list, if it is the same list so far."""
    known = previous.transcript if previous else None
    if known is None or known.reader is not message_format or known.counter is not counter:
        return None
    return known.continue_with(natives)


def _fit_known_transcript(transcript: Transcript, policy: FitSettings, situation: Situation) -> FittedView | None:
    """Fit a transcript that was read earlier; None if what it would send was changed in place since."""
    fitted = ViewFitter(transcript, policy, situation).fit()
    positions = [entry.position for entry in fitted.view.entries if entry.position is not None]
    return fitted if transcript.has_unchanged_sizes(positions) else None


def _extras_tokens(value: object, name: str, counter: Counter) -> int:
    """Return the cost of what is sent besides the messages; what cannot be sent as it is is refused."""
    if value is None or value in ([], ""):
        return 0
    if isinstance(value, str):
        return counter.count(value)
    text = InputPath(name).json_text(value, "")
    if not is_sendable_json(value):
        raise MalformedInputError(name, "holds lone surrogates, NaN or infinity; mend it first")
    return counter.count(text)


def _check_pins(pins: Iterable[int], length: int) -> frozenset[int]:
    checked: set[int] = set()
    if not isinstance(pins, Iterable):
        raise SettingsError("pins", f"must be indices of messages, not {pins!r}")
    for pin in pins:
        if isinstance(pin, bool) or not isinstance(pin, int) or not -length <= pin < length:
            raise SettingsError("pins", f"{pin!r} is not the index of a message; there are {length:,}")
        checked.add(pin % length)
    return frozenset(checked)


def _pins_of_elements(pins: frozenset[int], source_indices: Sequence[int]) -> frozenset[int]:
    """Return pins as the elements of what they name: a request with system text before it is two."""
    return frozenset(number for number, place in enumerate(source_indices) if place in pins) if pins else pins


def _encode_view(
    fitted: FittedView, natives: list[Any], message_format: MessageFormat, other_marks: int
) -> tuple[list[Mapping[str, Any]], list[int]]:
    """Return the messages as JSON, and the positions of those that lost a cache mark."""
    messages: list[Mapping[str, Any]] = []
    for entry in fitted.view.entries:
        position, message = entry.position, entry.message
        if position is not None and message.is_unedited and not message.repair_notes:
            messages.append(natives[position])
        else:
            messages.append(message_format.encode(message))
    if message_format.max_cache_marks is None:
        return messages, []
    fewer = drop_excess_cache_marks(messages, message_format.max_cache_marks - other_marks)
    pairs = zip(fewer, messages, fitted.view.entries, strict=True)
    return fewer, [entry.position for new, old, entry in pairs if new is not old and entry.position is not None]
