"""Puts one result directly behind each tool call, and nothing else there."""

import operator
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.core.conversation.messages import Message, Part, Text, ToolCall, ToolResult
from holdfast.core.conversation.view import Entry

_NOT_PLAIN = r"[^a-zA-Z0-9_-]"
_MAX_ID_CHARS = 64
INTERRUPTED = "Interrupted by user."
NO_RESULT = "No result was recorded for this call."


class Repair(NamedTuple):
    """One thing that mending changed."""

    position: int | None
    """Where, as an index into the history; None where something was added at an edge."""
    what: str


class _Found(NamedTuple):
    """A result and the index of the entry that holds it."""

    where: int
    result: ToolResult


def is_plain_id(call_id: str) -> bool:
    """Return whether Anthropic, and those that group results as it does, take this as an id."""
    return len(call_id) <= _MAX_ID_CHARS and not re.search(_NOT_PLAIN, call_id)


class Pairing:
    """One pass over a history whose calls and results do not match.

    A result belongs to the nearest call before it with its id. Results that belong to no call are
    removed, calls that have none are answered where it is certain that nothing will come, and ids
    that were used before are replaced on both sides.
    """

    def __init__(self, entries: Sequence[Entry], *, is_interrupted: bool, groups_results: bool) -> None:
        self.repairs: list[Repair] = []
        self.pending: list[str] = []
        self._entries = entries
        self._is_interrupted = is_interrupted
        self._groups_results = groups_results
        self._results = self._index_results()
        self._callers = self._index_callers()
        self._next_speech = self._index_speech()
        self._used_ids: set[str] = set()
        self._matched: set[int] = set()
        """Identities of the results that have found their call."""
        self._merged: set[int] = set()
        """Indices of entries whose other content was emitted together with their results."""
        self._homes: set[int] = set()
        """Indices of entries in whose place the results of a batch were emitted."""

    def run(self) -> list[Entry]:
        """Return the entries with calls and results paired."""
        out: list[Entry] = []
        # Matched before anything is written: a late result belongs to a call that comes first.
        exchanges = {
            index: self._match(index, entry) for index, entry in enumerate(self._entries) if entry.message.calls
        }
        for index, entry in enumerate(self._entries):
            if index in exchanges:
                out += self._exchange(index, *exchanges[index])
            elif entry.message.results:
                out += self._leftovers(index, entry)
            else:
                out.append(entry)
        return out

    def _index_results(self) -> dict[str, deque[_Found]]:
        found: dict[str, deque[_Found]] = {}
        for index, entry in enumerate(self._entries):
            for result in entry.message.results:
                found.setdefault(result.call_id, deque()).append(_Found(index, result))
        return found

    def _index_callers(self) -> dict[str, list[int]]:
        callers: dict[str, list[int]] = {}
        for index, entry in enumerate(self._entries):
            for call in entry.message.calls:
                callers.setdefault(call.id, []).append(index)
        return callers

    def _index_speech(self) -> list[int | None]:
        """For each entry, the index of the next one that is more than results."""
        following: list[int | None] = []
        upcoming = None
        for index in range(len(self._entries) - 1, -1, -1):
            following.append(upcoming)
            if _speaks(self._entries[index].message):
                upcoming = index
        return following[::-1]

    def _match(self, index: int, entry: Entry) -> tuple[Entry, list[tuple[str, _Found | None]]]:
        """Find a result for each call of one message, and rename ids that were used before."""
        answers: list[tuple[str, _Found | None]] = []
        parts: list[Part] = []
        for part in entry.message.parts:
            if not isinstance(part, ToolCall):
                parts.append(part)
                continue
            call, found = part, self._take(index, part.id)
            if not self._is_usable(part.id):
                call = part.renamed(self._fresh_id(part.id, entry.position, len(parts)))
                what = f"renamed a repeated, empty or unusable call id to {call.id!r}"
                self.repairs.append(Repair(entry.position, what))
                if found:
                    found = _Found(found.where, found.result.renamed(call.id))
                    self.repairs.append(Repair(self._entries[found.where].position, "renamed its call id accordingly"))
            self._used_ids.add(call.id)
            answers.append((call.id, found))
            parts.append(call)
        if any(new is not old for new, old in zip(parts, entry.message.parts, strict=True)):
            entry = entry.saying(entry.message.with_parts(tuple(parts)))
        return entry, answers

    def _is_usable(self, call_id: str) -> bool:
        if not call_id or call_id in self._used_ids:
            return False
        return not self._groups_results or is_plain_id(call_id)

    def _take(self, index: int, call_id: str) -> _Found | None:
        callers = self._callers[call_id]
        later = bisect_right(callers, index)
        limit = callers[later] if later < len(callers) else len(self._entries)
        waiting = self._results.get(call_id, deque())
        while waiting and waiting[0].where <= index:
            waiting.popleft()
        if not waiting or waiting[0].where >= limit:
            return None
        found = waiting.popleft()
        self._matched.add(id(found.result))
        return found

    def _fresh_id(self, call_id: str, position: int | None, ordinal: int) -> str:
        # Letters, digits, underscores and dashes: every provider takes those.
        stem = re.sub(_NOT_PLAIN, "_", call_id)[:40] or "call"
        fresh = f"{stem}_{'x' if position is None else position}_{ordinal}"
        while fresh in self._used_ids or fresh in self._callers:
            fresh += "x"
        return fresh

    def _exchange(self, index: int, head: Entry, answers: list[tuple[str, _Found | None]]) -> Iterator[Entry]:
        """Yield a message with calls and, directly behind it, their results."""
        yield head
        found: list[_Found] = []
        made_up: list[ToolResult] = []
        for call_id, answer in answers:
            if answer:
                found.append(answer)
                speech = self._next_speech[index]
                if speech is not None and speech < answer.where:
                    self.repairs.append(Repair(head.position, f"moved the late result of {call_id!r} to its call"))
            elif self._is_interrupted or self._next_speech[index] is not None:
                made_up.append(self._make_up(index, call_id))
                self.repairs.append(Repair(head.position, f"made up a result for call {call_id!r}"))
            else:
                self.pending.append(call_id)
        found.sort(key=lambda answer: answer.where)
        yield from (self._grouped if self._groups_results else self._each)(index, found, made_up)

    def _make_up(self, index: int, call_id: str) -> ToolResult:
        speech = self._next_speech[index]
        by_person = speech is None or self._entries[speech].message.role == "user"
        return ToolResult(call_id, (Text(INTERRUPTED if by_person else NO_RESULT, "tool"),), is_error=True)

    def _each(self, _index: int, found: list[_Found], made_up: list[ToolResult]) -> Iterator[Entry]:
        for answer in found:
            home = self._entries[answer.where]
            is_whole = len(home.message.parts) == 1 and home.message.parts[0] is answer.result
            yield home if is_whole else home.saying(home.message.with_parts((answer.result,)))
        for result in made_up:
            yield Entry(Message("tool", (result,)))

    def _grouped(self, index: int, found: list[_Found], made_up: list[ToolResult]) -> Iterator[Entry]:
        results = (*(answer.result for answer in found), *made_up)
        if not found:
            if results:
                yield Entry(Message("user", results))
            return
        where = found[0].where
        self._homes.add(where)
        home = self._entries[where]
        besides: tuple[Part, ...] = ()
        if where == index + 1:
            self._merged.add(where)
            besides = tuple(part for part in home.message.parts if not isinstance(part, ToolResult))
        parts: tuple[Part, ...] = (*results, *besides)
        if len(parts) == len(home.message.parts) and all(map(operator.is_, parts, home.message.parts)):
            yield home
        else:
            self.repairs.append(Repair(home.position, "gathered the results of one batch before anything else"))
            yield home.saying(home.message.with_parts(parts))

    def _leftovers(self, index: int, entry: Entry) -> Iterator[Entry]:
        """Yield what a message with results says besides them."""
        for result in entry.message.results:
            if id(result) not in self._matched:
                self.repairs.append(
                    Repair(entry.position, f"removed a result for {result.call_id!r} that answers no open call")
                )
        besides = tuple(part for part in entry.message.parts if not isinstance(part, ToolResult))
        if self._groups_results and index not in self._homes:
            self.repairs.append(Repair(entry.position, "gathered its results with their batch"))
        if besides and index not in self._merged:
            yield entry.saying(entry.message.with_parts(besides))


def _speaks(message: Message) -> bool:
    """Return whether a message is more than results."""
    return not all(isinstance(part, ToolResult) for part in message.parts)
