"""Place exactly one result for each tool call directly after its batch.

Providers reject calls without results and results without calls. `CallPairing` is the part of repair that matches
calls with results; only `repair` uses it.
"""

import operator
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from holdfast.core.conversation.batching import Batching, id_from_name, made_id
from holdfast.core.conversation.messages import Entry, Message, Part, Text, ToolCall, ToolResult

INTERRUPTED_RESULT = "Interrupted by user."
MISSING_RESULT = "No result was recorded for this call."
OTHER_KIND_RESULT = "[The result is of another kind than the call, and has no text.]"
MADE_RESULTS = frozenset({INTERRUPTED_RESULT, MISSING_RESULT, OTHER_KIND_RESULT})
"""All outputs that no tool has returned."""

CONSENT_KINDS = frozenset({"mcp_approval_response"})
"""Kinds of results by which a user permits something."""


class Repair(NamedTuple):
    """One change that repair made."""

    position: int | None
    """The index in the history; None for a message added at an end of the history."""
    description: str


class _FoundResult(NamedTuple):
    """A result, the index of its entry, and its index among the results of that entry."""

    entry_index: int
    result_index: int
    result: ToolResult


class _AnsweredCall(NamedTuple):
    """A call, its position, and the result found for it."""

    call: ToolCall
    position: int | None
    found: _FoundResult | None


class _CallBatch(NamedTuple):
    """The messages with the calls of one batch, and the answers to these calls."""

    span: range
    call_entries: list[Entry]
    answers: list[_AnsweredCall]


class CallPairing:
    """One pass over a history whose calls and results do not match.

    A result belongs to the nearest earlier call with its id. The pass removes results without a call and
    replaces repeated ids in both call and result. It adds a synthetic result to a call if it is certain that no
    result will come.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        *,
        is_interrupted: bool,
        batching: Batching,
        earlier: frozenset[str] | set[str] = frozenset(),
        following: Message | None = None,
    ) -> None:
        """`earlier` are the ids of calls before the entries, `following` is the message after them."""
        self.id_repairs: list[Repair] = []
        """What was changed to give each call a usable id, and each result the id and the kind of its call."""
        self.place_repairs: list[Repair] = []
        """Which results were moved, removed or made up."""
        self.pending: list[str] = []
        self.unanswered: dict[str, None] = {}
        """The ids of calls without a result of that id, if no later call has the same id."""
        self.used_ids: set[str] = set()
        """The ids of all calls after repair."""
        self.made_ids: set[str] = set()
        """Those of them that repair made."""
        self._entries = entries
        self._earlier = earlier
        self._following = following
        self._is_interrupted = is_interrupted
        self._batching = batching
        self._results: defaultdict[str, deque[_FoundResult]] = defaultdict(deque)
        self._callers: defaultdict[str, list[int]] = defaultdict(list)
        """Indices of the entries with a call of each id."""
        for index, entry in enumerate(entries):
            for number, result in enumerate(entry.message.results):
                self._results[result.call_id].append(_FoundResult(index, number, result))
            for call_id in {*entry.message.outline.call_ids, *self._name_ids(entry.message)}:
                self._callers[call_id].append(index)
        self._next_speech = self._index_next_speech()
        self._result_stops: dict[int, int] = {}
        """By the index after a batch, the index after the results that directly follow it."""
        self._matched: set[int] = set()
        """Object ids of the results that are matched with a call."""
        self._merged: set[int] = set()
        """Indices of entries whose other parts were emitted together with their results."""
        self._homes: set[int] = set()
        """Indices of the entries that carry all results of a batch."""

    def pair(self) -> list[Entry]:
        """Return the entries with calls and results paired."""
        out: list[Entry] = []
        # Match all batches before output: a late result moves to its earlier call.
        batches = {span.start: self._match(span) for span in self._batch_ranges()}
        stop = 0
        for index, entry in enumerate(self._entries):
            if index in batches:
                out += self._batch_entries(batches[index])
                stop = batches[index].span.stop
            elif index >= stop:
                out += self._without_results(index, entry) if entry.message.results else [entry]
        return out

    def _batch_ranges(self) -> Iterator[range]:
        """Yield the index range of each batch: one message, or consecutive items of the model."""
        stop = 0
        for index, entry in enumerate(self._entries):
            if index < stop or not entry.message.calls:
                continue
            stop = index + 1
            while (
                self._batching.is_itemized
                and stop < len(self._entries)
                and self._entries[stop].message.role == "assistant"
            ):
                stop += 1
            yield range(index, stop)

    def _name_ids(self, message: Message) -> Iterator[str]:
        """Yield for each call of a message the id of a result that matches it by name, or else its own id."""
        numbers: Counter[str] = Counter()
        for call in message.calls:
            numbers[call.name] += 1
            yield id_from_name(call.name, numbers[call.name]) if self._batching.pairs_by_name else call.id

    def _index_next_speech(self) -> list[int | None]:
        """Return for each entry the index of the next entry with content besides results."""
        following: list[int | None] = []
        upcoming = None if self._following is None else len(self._entries)
        for index in range(len(self._entries) - 1, -1, -1):
            following.append(upcoming)
            if not all(isinstance(part, ToolResult) for part in self._entries[index].message.parts):
                upcoming = index
        return following[::-1]

    def _is_stopped(self, speech: int | None) -> bool:
        """Return whether the user stopped a turn: nothing follows its calls, or the user's words do."""
        if speech is None:
            return True
        message = self._following if speech == len(self._entries) else self._entries[speech].message
        return message is not None and message.role == "user"

    def _match(self, span: range) -> _CallBatch:
        """Find a result for each call of one batch, and rename ids that cannot be used."""
        if self._batching.pairs_by_name:
            self.used_ids = set()
        batch = _CallBatch(span, [], [])
        for index in span:
            entry = self._entries[index]
            names = self._name_ids(entry.message)
            parts: list[Part] = []
            for part in entry.message.parts:
                if not isinstance(part, ToolCall):
                    parts.append(part)
                    continue
                name = next(names)
                found = self._take(span, part.id) or self._take_by_name(span, part.id, name)
                self.unanswered.pop(part.id, None)
                if found is None:
                    self.unanswered[part.id] = None
                    found = self._take_without_id(span, part)
                found = self._with_kind_of(part, found)
                answer = self._with_usable_id(_AnsweredCall(part, entry.position, found), len(parts))
                self.used_ids.add(answer.call.id)
                batch.answers.append(answer)
                parts.append(answer.call)
            if any(new is not old for new, old in zip(parts, entry.message.parts, strict=True)):
                entry = entry.with_message(entry.message.with_parts(tuple(parts)))
            batch.call_entries.append(entry)
        return batch

    def _with_usable_id(self, answer: _AnsweredCall, ordinal: int) -> _AnsweredCall:
        call, position, found = answer
        accepts = self._batching.accepts_id
        is_new = call.id not in self.used_ids and call.id not in self._earlier
        if call.id and is_new and (accepts is None or accepts(call.id)):
            return answer
        ending = f"_{'x' if position is None else position}_{ordinal}"
        fresh = made_id(call.id, ending, self._batching.max_id_chars)
        while fresh in self.used_ids or fresh in self._callers or fresh in self._earlier:
            ending += "x"
            fresh = made_id(call.id, ending, self._batching.max_id_chars)
        self.made_ids.add(fresh)
        call = call.with_id(fresh)
        self.id_repairs.append(Repair(position, f"renamed a repeated, empty or unusable call id to {call.id!r}"))
        if found:
            found = found._replace(result=found.result.with_call_id(call.id))
            self.id_repairs.append(Repair(self._entries[found.entry_index].position, "renamed its call id accordingly"))
        return _AnsweredCall(call, position, found)

    def _with_kind_of(self, call: ToolCall, found: _FoundResult | None) -> _FoundResult | None:
        """Return a result as its call needs it: a result of another kind keeps its text only."""
        if found is None or found.result.kind == call.result_kind:
            return found
        self.id_repairs.append(
            Repair(self._entries[found.entry_index].position, "rewrote a result that was of another kind than its call")
        )
        text = Text(found.result.text or OTHER_KIND_RESULT, "tool")
        result = ToolResult(found.result.call_id, (text,), answered_call=call, kind=call.result_kind)
        return found._replace(result=result)

    def _take_by_name(self, span: range, call_id: str, name: str) -> _FoundResult | None:
        found = self._take(span, name) if name != call_id else None
        if found is None:
            return None
        self.id_repairs.append(
            Repair(self._entries[found.entry_index].position, f"gave a result the id {call_id!r} of its call")
        )
        return found._replace(result=found.result.with_call_id(call_id))

    def _take_without_id(self, span: range, call: ToolCall) -> _FoundResult | None:
        """Return the next result without an id that directly follows a batch, if it is of the kind of the call.

        Consent is never guessed: an approval without an id answers nothing.
        """
        waiting = self._results.get("")
        while waiting and waiting[0].entry_index < span.stop:
            waiting.popleft()
        if not waiting or call.result_kind != waiting[0].result.kind or call.result_kind in CONSENT_KINDS:
            return None
        if span.stop not in self._result_stops:
            stop = span.stop
            while stop < len(self._entries) and self._entries[stop].message.results:
                stop += 1
            self._result_stops[span.stop] = stop
        if waiting[0].entry_index >= self._result_stops[span.stop]:
            return None
        found = waiting.popleft()
        self._matched.add(id(found.result))
        self.id_repairs.append(
            Repair(self._entries[found.entry_index].position, f"gave a result without an id the id {call.id!r}")
        )
        return found._replace(result=found.result.with_call_id(call.id))

    def _take(self, span: range, call_id: str) -> _FoundResult | None:
        """Return the next result with this id after a batch, unless a later call with this id comes first."""
        callers = self._callers[call_id]
        later = bisect_right(callers, span.stop - 1)
        limit = callers[later] if later < len(callers) else len(self._entries)
        waiting = self._results[call_id]
        while waiting and waiting[0].entry_index < span.stop:
            waiting.popleft()
        if not waiting or waiting[0].entry_index >= limit:
            return None
        found = waiting.popleft()
        self._matched.add(id(found.result))
        return found

    def _batch_entries(self, batch: _CallBatch) -> Iterator[Entry]:
        """Yield the messages of a batch of calls and, directly after them, their results."""
        yield from batch.call_entries
        speech = self._next_speech[batch.span.stop - 1]
        found: list[_FoundResult] = []
        made_up: list[ToolResult] = []
        for call, position, answer in batch.answers:
            if answer:
                found.append(answer)
                if speech is not None and speech < answer.entry_index:
                    self.place_repairs.append(Repair(position, f"moved the late result of {call.id!r} to its call"))
            elif self._is_interrupted or speech is not None:
                text = Text(INTERRUPTED_RESULT if self._is_stopped(speech) else MISSING_RESULT, "tool")
                made_up.append(ToolResult(call.id, (text,), is_error=True, answered_call=call, kind=call.result_kind))
                self.place_repairs.append(Repair(position, f"made up a result for call {call.id!r}"))
            else:
                self.pending.append(call.id)
        found.sort(key=lambda answer: (answer.entry_index, answer.result_index))
        yield from (self._results_in_one_message if self._batching.is_grouped else self._result_per_message)(
            batch.span.stop, found, made_up
        )

    def _result_per_message(self, _place: int, found: list[_FoundResult], made_up: list[ToolResult]) -> Iterator[Entry]:
        for answer in found:
            home = self._entries[answer.entry_index]
            is_whole = len(home.message.parts) == 1 and home.message.parts[0] is answer.result
            yield home if is_whole else home.with_message(home.message.with_parts((answer.result,)))
        for result in made_up:
            yield Entry(Message("tool", (result,)))

    def _results_in_one_message(
        self, place: int, found: list[_FoundResult], made_up: list[ToolResult]
    ) -> Iterator[Entry]:
        results = (*(answer.result for answer in found), *made_up)
        if not found:
            if results:
                yield Entry(Message("user", results))
            return
        where = found[0].entry_index
        self._homes.add(where)
        home = self._entries[where]
        besides: tuple[Part, ...] = ()
        if where == place:
            self._merged.add(where)
            besides = tuple(part for part in home.message.parts if not isinstance(part, ToolResult))
        parts: tuple[Part, ...] = (*results, *besides)
        if len(parts) == len(home.message.parts) and all(map(operator.is_, parts, home.message.parts)):
            yield home
        else:
            self.place_repairs.append(
                Repair(home.position, "moved the results of one batch to the start of one message")
            )
            # The extra fields of moved results count in the message that now holds them.
            sources = dict.fromkeys([where, *(one.entry_index for one in found)])
            extras = "".join(self._entries[source].message.extra_fields_json for source in sources)
            yield home.with_message(replace(home.message.with_parts(parts), extra_fields_json=extras))

    def _without_results(self, index: int, entry: Entry) -> Iterator[Entry]:
        """Yield a message without its results, if it has other content that was not emitted yet."""
        for result in entry.message.results:
            if id(result) not in self._matched:
                self.place_repairs.append(
                    Repair(entry.position, f"removed a result for {result.call_id!r} that answers no open call")
                )
        besides = tuple(part for part in entry.message.parts if not isinstance(part, ToolResult))
        if self._batching.is_grouped and index not in self._homes:
            self.place_repairs.append(Repair(entry.position, "moved its results to the message of their batch"))
        if besides and index not in self._merged:
            yield entry.with_message(entry.message.with_parts(besides))
