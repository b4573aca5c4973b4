"""Puts one result directly behind each tool call, and nothing else there."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.core.conversation.messages import Message, Part, Text, ToolCall, ToolResult
from holdfast.core.conversation.view import Entry

INTERRUPTED = "Interrupted by user."
NO_RESULT = "No result was recorded for this call."


@dataclass(frozen=True, slots=True)
class Repair:
    """One thing that mending changed."""

    position: int | None
    """Where, as an index into the history; None where something was added at an edge."""
    what: str


@dataclass(frozen=True, slots=True)
class _Found:
    """A result and the index of the entry that holds it."""

    where: int
    result: ToolResult


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

    def run(self) -> list[Entry]:
        """Return the entries with calls and results paired."""
        out: list[Entry] = []
        waiting: list[tuple[int, Entry, list[tuple[str, _Found | None]]]] = []
        for index, entry in enumerate(self._entries):
            if entry.message.calls:
                waiting.append((index, *self._match(index, entry)))
        exchanges = {index: (head, answers) for index, head, answers in waiting}
        for index, entry in enumerate(self._entries):
            if index in exchanges:
                out += self._exchange(index, *exchanges[index])
            elif entry.message.results:
                out += self._leftovers(index, entry)
            else:
                out.append(entry)
        return out

    def _index_results(self) -> dict[str, list[_Found]]:
        found: dict[str, list[_Found]] = {}
        for index, entry in enumerate(self._entries):
            for result in entry.message.results:
                found.setdefault(result.call_id, []).append(_Found(index, result))
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
            call = part
            if isinstance(part, ToolCall):
                found = self._take(index, part.id)
                if not part.id or part.id in self._used_ids:
                    call = part.renamed(self._fresh_id(part.id, entry.position, len(parts)))
                    self.repairs.append(Repair(entry.position, f"renamed a repeated or empty call id to {call.id!r}"))
                    found = found and _Found(found.where, found.result.renamed(call.id))
                    answers.append((call.id, found))
                    self._used_ids.add(call.id)
                else:
                    answers.append((part.id, found))
                    self._used_ids.add(part.id)
            parts.append(call)
        if any(new is not old for new, old in zip(parts, entry.message.parts, strict=True)):
            entry = entry.saying(entry.message.with_parts(tuple(parts)))
        return entry, answers

    def _take(self, index: int, call_id: str) -> _Found | None:
        callers = self._callers[call_id]
        later = bisect_right(callers, index)
        limit = callers[later] if later < len(callers) else len(self._entries)
        for found in self._results.get(call_id, ()):
            if index < found.where < limit and id(found.result) not in self._matched:
                self._matched.add(id(found.result))
                return found
        return None

    def _fresh_id(self, call_id: str, position: int | None, ordinal: int) -> str:
        # Letters, digits and underscores only: every provider takes those.
        fresh = f"{call_id or 'call'}_{'x' if position is None else position}_{ordinal}"
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
        home = self._entries[where]
        besides: tuple[Part, ...] = ()
        if where == index + 1:
            self._merged.add(where)
            besides = tuple(part for part in home.message.parts if not isinstance(part, ToolResult))
        parts: tuple[Part, ...] = (*results, *besides)
        if len(parts) == len(home.message.parts) and all(map(_is_same, parts, home.message.parts)):
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
        if besides and index not in self._merged:
            yield entry.saying(entry.message.with_parts(besides))


def _is_same(one: object, other: object) -> bool:
    return one is other


def _speaks(message: Message) -> bool:
    """Return whether a message is more than results."""
    return not all(isinstance(part, ToolResult) for part in message.parts)
