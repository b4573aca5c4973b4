"""`govern`: fit a plain list of messages into a budget, without a session.

`govern` keeps no state. Under `default` its cuts depend only on the distance of a message from the beginning, so a list
that only grows keeps a stable prefix from call to call. `previous` does not change the result; it reuses the work of
the last call.

Of another policy `govern` applies what needs neither a session nor a model: tool outputs are clipped, `co-cli` puts its
static marker in place of the middle, `cowagent` drops turns, `inkeep` keeps its fixed limits, `copilot` truncates. What
is still too long is made to fit. A compaction with a summary is a change of a session, so it is not applied here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import is_not
from typing import Any, cast

from holdfast.core.conversation.cuts import first_read
from holdfast.core.conversation.json_values import is_sendable_json, is_utf8, replace_surrogates
from holdfast.core.conversation.messages import Entry, Message, tool_texts
from holdfast.core.conversation.pairing import Repair
from holdfast.core.conversation.repair import with_placed_system_text, without_lost_reasoning
from holdfast.core.conversation.tokens import (
    REPLY_OVERHEAD,
    Calibration,
    Counter,
    DeferredTokenCount,
    TokenCount,
    message_tokens,
)
from holdfast.core.conversation.transcript import MessageFormat, Transcript
from holdfast.core.planning.fit import ViewFitter, fit_transcript
from holdfast.core.planning.list_view import trims_lists, view_of_list
from holdfast.core.planning.policy import FitSettings, Policy, policy_named
from holdfast.core.planning.receipt import Receipt, View, receipt_of
from holdfast.core.planning.situation import Budget, Situation
from holdfast.core.schema import is_integer
from holdfast.counters.models import binds_thinking, budget_for, find_model
from holdfast.counters.vocabularies import VocabularyCounter, bound_of, counter_for
from holdfast.errors import MalformedInputError, SettingsError
from holdfast.wire.anthropic import count_cache_marks, drop_excess_cache_marks, place_system_messages
from holdfast.wire.formats import format_named, split_elements
from holdfast.wire.json_reader import InputPath, check_list, check_tools
from holdfast.wire.request import Request


def govern(
    messages: Sequence[Mapping[str, Any]],
    *,
    budget: int | Budget | None = None,
    format: str = "openai-chat",  # noqa: A002 - the word that users expect
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

    `budget` is the largest input in tokens, or a `Budget`; by default it comes from the table of models.
    `system` is system text outside the messages, and `tools` a list of objects, both in the shape of the format.
    `pins` are indices of messages that stay whole. Of `policy`, what needs neither a session nor a summarizer applies.
    Raise a `HoldfastError` that names the place and the remedy if nothing can be sent.
    """
    message_format = format_named(format)
    elements = check_list(messages)
    natives, source_indices = split_elements(message_format, elements)
    _check_kinds(model=model, counter=counter, calibration=calibration, previous=previous)
    if system and not message_format.has_separate_system:
        raise SettingsError("system", f"{message_format.name} has system text among its messages; put it there")
    counter = counter or counter_for(model)
    repairs: list[Repair] = []
    if isinstance(system, str) and not is_utf8(system):
        repairs.append(Repair(None, "replaced lone surrogates in the system text"))
        system = replace_surrogates(system)
    tools = check_tools(tools)
    marks, max_marks = count_cache_marks(system) + count_cache_marks(tools), message_format.max_cache_marks
    if max_marks is not None and marks > max_marks:
        raise SettingsError(
            "system", f"system text and tools have {marks} cache marks; the provider accepts at most {max_marks}"
        )
    rules = policy_named(policy)
    resolved, known = budget_for(model, budget, unknown_window=rules.unknown_window), find_model(model)
    window = resolved.window(known.max_input_tokens if known else None) or rules.unknown_window
    extras = _extras_text(system, "system"), _extras_text(tools, "tools")
    situation = Situation(
        budget=resolved,
        window=window,
        policy_limit=rules.compaction.request_limit(window) if rules.compaction else None,
        counter=counter,
        calibration=calibration or Calibration(),
        pins=_check_pins(pins, len(elements), source_indices),
        is_interrupted=bool(interrupted),
        batching=message_format.batching,
        max_text_chars=message_format.max_text_chars,
        max_images=message_format.max_images,
    )
    transcript = _transcript_of(natives, message_format, counter, previous)
    if not repairs and not trims_lists(rules):
        receipt = _receipt_of_whole(transcript, rules.fit, situation, extras)
        if receipt is not None:
            return Request([*natives], receipt, system, tools, transcript=transcript)
    situation = _with_extras(situation, counter, extras)
    transcript = transcript.counted_by(counter)
    view = _fit(transcript, rules, situation)
    if binds_thinking(model, message_format.name):
        first_changed = 0 if repairs else _first_changed(view.entries)
        unbound = [
            index for index in range(first_changed, len(view.entries)) if view.entries[index].message.has_thinking
        ]
        view = view.drop_thinking(unbound, transcript.tokens_of)
    given = cast("Sequence[Mapping[str, Any]]", natives)
    kept, changed = _kept_and_changed(view.entries)
    nothing: Mapping[str, Any] = {}
    sent = [nothing if position is None else given[position] for _, position in view.entries]
    for index in changed:
        sent[index] = message_format.encode(view.entries[index].message)
    if max_marks is not None:
        sent = _as_accepted(sent, view.entries, max_marks - marks, repairs)
    others = [view.entries[index] for index in changed]
    receipt = _receipt(view, kept, others, transcript, situation, repairs=repairs)
    return Request(sent, receipt, system, tools, transcript=transcript)


def _as_accepted(
    sent: list[Mapping[str, Any]], entries: Sequence[Entry], allowed_marks: int, repairs: list[Repair]
) -> list[Mapping[str, Any]]:
    """Return messages as Anthropic accepts them, with a repair for each that had to change."""
    placed = place_system_messages(sent)
    unmarked = drop_excess_cache_marks(placed, allowed_marks)
    for (_, position), old, new, newest in zip(entries, sent, placed, unmarked, strict=True):
        if position is not None and new is not old:
            repairs.append(Repair(position, "sent system text as the user's: its place was after a user message"))
        if position is not None and newest is not new:
            repairs.append(Repair(position, "removed a cache mark: there were too many"))
    return unmarked


def _check_kinds(**values: object) -> None:
    kinds: dict[str, tuple[type, str]] = {
        "model": (str, "the name of a model"),
        "counter": (Counter, "an object with name, provenance and count(text)"),
        "calibration": (Calibration, "a Calibration"),
        "previous": (Request, "the Request of an earlier call"),
    }
    for setting, value in values.items():
        kind, expected = kinds[setting]
        if value is not None and not isinstance(value, kind):
            raise SettingsError(setting, f"must be {expected}, not {value!r}")
    if isinstance(counter := values.get("counter"), Counter) and not isinstance(counter, VocabularyCounter):
        _check_counter(counter)


def _check_counter(counter: Counter) -> None:
    """Raise a `SettingsError` if a counter of the caller's own returns anything but a number of tokens."""
    if (provenance := counter.provenance) not in {"counted", "estimated"}:
        raise SettingsError("counter", f"its `provenance` must be 'counted' or 'estimated', not {provenance!r:.60}")
    count: object = counter.count("word")
    if not is_integer(count) or count < 0:
        raise SettingsError("counter", f"its `count` must return a whole number of tokens, not {count!r:.60}")


def _transcript_of(
    natives: list[Any], message_format: MessageFormat, counter: Counter, previous: Request | None
) -> Transcript:
    """Return the messages as a transcript, continued from the previous call where that is possible.

    It counts by the bound of the counter's vocabulary, unless the beginning was counted exactly.
    """
    known, bound = previous.transcript if previous else None, bound_of(counter) or counter
    if known is not None and known.reader is message_format and (known.counter is counter or known.counter is bound):
        transcript = known.continue_with(natives)
        # A message that the caller has changed in place since then is read again.
        if transcript is not None and transcript.has_unchanged_sizes():
            return transcript
    return Transcript(natives, message_format, bound)


def _receipt_of_whole(
    transcript: Transcript, settings: FitSettings, situation: Situation, extras: tuple[str, str]
) -> Receipt | None:
    """Return the receipt of a list that is sent as it is, because it would fit even if every byte were a token.

    Such a list need not be tokenized, unless somebody reads how many tokens it has. The result is None for any other
    list, and for one that was counted before.
    """
    counter, bound = situation.counter, transcript.counter
    if bound is counter:
        return None
    limited = _with_extras(situation, bound, extras)
    if transcript.total_bytes > limited.message_budget:
        return None
    view = ViewFitter(transcript, settings, limited).fit_whole()
    if view is None or not len(view.entries) == len(transcript) == _first_changed(view.entries):
        return None
    natives = [entry.message.native or {} for entry in view.entries]
    is_marked = transcript.reader.max_cache_marks is not None
    if is_marked and (count_cache_marks(natives) or any(map(is_not, place_system_messages(natives), natives))):
        return None

    @cache
    def count() -> tuple[TokenCount, TokenCount]:
        exact = _with_extras(situation, counter, extras)
        read = view.entries[first_read(view.entries) :]
        tokens = sum(sum(message_tokens(message, counter)) for message, _ in read)
        is_counted = not view.has_media
        before = exact.billed_count(
            system=exact.system_tokens, conversation=tokens + REPLY_OVERHEAD, is_counted=is_counted
        )
        return replace(view, tokens=tokens).token_count(exact), before

    tokens, before = DeferredTokenCount(lambda: count()[0]), DeferredTokenCount(lambda: count()[1])
    return replace(_receipt(view, range(len(transcript)), (), transcript, limited), tokens=tokens, tokens_before=before)


def _with_extras(situation: Situation, counter: Counter, extras: tuple[str, str]) -> Situation:
    """Return a situation with the tokens of system text and tools, counted by a counter."""
    system_tokens, tools_tokens = (counter.count(text) if text else 0 for text in extras)
    return replace(situation, counter=counter, system_tokens=system_tokens, tools_tokens=tools_tokens)


def _fit(transcript: Transcript, policy: Policy, situation: Situation) -> View:
    """Return the view that fits, with system text where it is accepted."""
    view = _fitting_view(transcript, policy, situation)
    entries, repairs = with_placed_system_text(view.entries, situation.batching)
    return view if entries is view.entries else replace(view, entries=entries, repairs=(*view.repairs, *repairs))


def _fitting_view(transcript: Transcript, policy: Policy, situation: Situation) -> View:
    if trims_lists(policy):
        whole = [transcript.entry(index) for index in range(len(transcript))]
        view = view_of_list(whole, transcript.reader, policy, situation)

        def message_before(index: int) -> tuple[int, Message] | None:
            return (index - 1, transcript[index - 1]) if index else None

        entries, _ = without_lost_reasoning(view.entries, situation.batching, message_before)
        return replace(view, entries=entries)
    return fit_transcript(transcript, policy.fit, [situation])


def _first_changed(entries: Sequence[Entry]) -> int:
    """Return the index of the first message that is not sent as it was given; the end if there is none."""
    changed = (
        index
        for index, (message, position) in enumerate(entries)
        if position != index or not message.is_unedited or message.repair_notes
    )
    return next(changed, len(entries))


def _kept_and_changed(entries: Sequence[Entry]) -> tuple[list[int], list[int]]:
    """Return the positions of the messages that are sent as they were given, and the indices of the others."""
    kept: list[int] = []
    changed: list[int] = []
    for index, (message, position) in enumerate(entries):
        # `is_unedited` is written out, because its call would take longer than the rest of the loop.
        is_unedited = message.parts is message.decoded and message.native is not None
        if is_unedited and position is not None and not message.repair_notes:
            kept.append(position)
        else:
            changed.append(index)
    return kept, changed


def _receipt(
    view: View,
    kept: Sequence[int],
    changed: Sequence[Entry],
    transcript: Transcript,
    situation: Situation,
    *,
    repairs: Sequence[Repair] = (),
) -> Receipt:
    """Return which messages were kept, clipped, elided, compacted, dropped or repaired, and why.

    `kept` and `changed` are the positions of the messages that are sent as they were given, and the other entries.
    """
    repaired = [*repairs, *view.repairs]
    explained = {*view.without_thinking, *(repair.position for repair in repaired)}
    if changed_outside := {repair.position for repair in repairs}:
        kept = [position for position in kept if position not in changed_outside]
    clipped: list[int] = []
    elided: list[int] = []
    for message, position in changed:
        if position is None:
            continue
        if message.repair_notes:
            repaired += [Repair(position, note) for note in message.repair_notes]
            explained.add(position)
        if message.is_unedited:
            continue
        words, media = transcript.tokens_of(message)
        before = transcript[position]
        if position in view.without_thinking:
            before = before.without_thinking()
        words_before, media_before = transcript.tokens_of(before)
        is_elided, is_clipped = media < media_before, words < words_before and tool_texts(message) != tool_texts(before)
        if is_elided:
            elided.append(position)
        if is_clipped:
            clipped.append(position)
        if not is_elided and not is_clipped and position not in explained:
            repaired.append(Repair(position, "rewritten so that the provider accepts it between its neighbors"))
    return receipt_of(
        view,
        situation,
        view.token_count(situation, transcript.tokens_of),
        kept=kept,
        clipped=clipped,
        elided=elided,
        compacted=view.compacted,
        repairs=repaired,
        reasons=view.reasons,
    )


def _extras_text(value: object, name: str) -> str:
    """Return system text or tools as the text that is counted; raise if they cannot be sent unchanged."""
    if value is None or value in ([], ""):
        return ""
    if isinstance(value, str):
        return value
    text = InputPath(name).json_text(value, "")
    if not is_sendable_json(value):
        raise MalformedInputError(name, "contains lone surrogates, NaN or infinity; remove them first")
    return text


def _check_pins(pins: Iterable[int], length: int, source_indices: Sequence[int]) -> frozenset[int]:
    """Return the indices of the pinned elements. A message that begins with system text is two elements."""
    checked: set[int] = set()
    if not isinstance(pins, Iterable):
        raise SettingsError("pins", f"must be indices of messages, not {pins!r}")
    for pin in pins:
        if isinstance(pin, bool) or not isinstance(pin, int) or not -length <= pin < length:
            raise SettingsError("pins", f"{pin!r} is not the index of a message; there are {length:,}")
        checked.add(pin % length)
    return (
        frozenset(number for number, index in enumerate(source_indices) if index in checked) if checked else frozenset()
    )
