"""The ledger: what a conversation must not forget, taken in one message at a time.

A pure fold of the messages, so that the same messages give the same ledger. It is bounded: of each kind of
record only so many are held, and what goes first depends on the messages alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.core.conversation.messages import Text, ToolCall, ToolResult, Trust
from holdfast.core.conversation.tokens import Counter
from holdfast.core.conversation.view import Entry
from holdfast.core.history.identifiers import argument_value, distinct_identifiers, value_text
from holdfast.core.history.ledger.calls import Call, read_call
from holdfast.core.history.ledger.files import File, Files
from holdfast.core.history.ledger.names import ASKED, RETURNED, SAID, TOUCHED, Item, Names
from holdfast.core.history.ledger.wishes import Wish, Wishes
from holdfast.core.history.ledger.work import Command, Error, Search, Work, outcome_of

DATA_DIGITS = 6
"""Numbers with fewer digits count only where the model or a person has used them."""
MOST_OPEN = 200
"""How many calls without a result are remembered."""


@dataclass(slots=True)
class Ledger:
    """Identifiers, files, commands, searches, errors, constraints and decisions, with their sources."""

    _names: Names = field(default_factory=Names)
    _files: Files = field(default_factory=Files)
    _work: Work = field(default_factory=Work)
    _wishes: Wishes = field(default_factory=Wishes)
    _open: dict[str, Call] = field(default_factory=dict[str, Call])
    _length: int = 0

    @property
    def files(self) -> Iterator[File]:
        """The files that were named, read or written, the latest last."""
        return iter(self._files)

    @property
    def commands(self) -> Iterator[Command]:
        """The commands that were run, the latest last."""
        return self._work.commands

    @property
    def searches(self) -> Iterator[Search]:
        """The searches that were made, the latest last."""
        return self._work.searches

    @property
    def errors(self) -> Iterator[Error]:
        """What went wrong, the latest last."""
        return self._work.errors

    @property
    def wishes(self) -> Iterator[Wish]:
        """The user's constraints, and what was decided, the latest last."""
        return iter(self._wishes)

    @property
    def open_calls(self) -> Iterator[Call]:
        """The calls that have no result yet."""
        return iter(self._open.values())

    def observe(self, entry: Entry) -> None:
        """Take in a message."""
        position = self._length if entry.position is None else entry.position
        self._length = position + 1
        used: dict[str, float] = {}
        for part in entry.message.parts:
            if isinstance(part, ToolCall):
                value = argument_value(part.arguments)
                call = read_call(part, value, position)
                self._begin(call)
                _note(used, value_text(value), SAID)
                _note(used, call.subject if call.kind == "file" else "", TOUCHED)
            elif isinstance(part, ToolResult):
                self._result(part, position)
                _note(used, part.text, RETURNED)
            elif isinstance(part, Text):
                self._hear(part, position)
                _note(used, part.text, _weight(part.trust))
        self._names.use(used, position)

    def ranked(self, limit: int | None = None) -> list[Item]:
        """Return the identifiers, or the best of them, those most likely needed again first."""
        return self._names.ranked(limit)

    def pack(self, allowance_tokens: int, counter: Counter, *, beside: str = "") -> str:
        """Return as many identifiers as fit, verbatim, leaving out those that stand beside it anyway."""
        return self._names.pack(allowance_tokens, counter, beside=beside)

    def _begin(self, call: Call) -> None:
        self._files.name(call)
        self._open.pop(call.id, None)
        self._open[call.id] = call
        if len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]

    def _result(self, part: ToolResult, position: int) -> None:
        call = self._open.pop(part.call_id, None)
        if call is None:
            return
        outcome = outcome_of(call, part)
        self._work.settle(call, outcome, part.text, position)
        if outcome.is_ok:
            self._files.settle(call, part.text, position)

    def _hear(self, part: Text, position: int) -> None:
        if part.trust in {"user", "agent"}:
            self._wishes.hear(part.text, "user", position)
        elif part.trust == "model":
            self._wishes.hear(part.text, "assistant", position)


def _weight(trust: Trust) -> float:
    if trust == "model":
        return SAID
    return RETURNED if trust == "tool" else ASKED


def _note(used: dict[str, float], text: str, weight: float) -> None:
    for name in distinct_identifiers(text):
        # A short number that only a tool has said is data: no order, no port, no line that anybody asks for by it.
        is_data = weight == RETURNED and len(name) < DATA_DIGITS and name.isdigit()
        if not is_data and used.get(name, 0.0) < weight:
            used[name] = weight
