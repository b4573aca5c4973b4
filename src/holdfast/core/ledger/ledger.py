"""The ledger: the facts of a conversation that must survive compaction, extracted message by message.

The ledger is a pure function of the messages, so the same messages give the same ledger. It holds a limited number of
records of each kind, and which records it evicts depends on the messages alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.core.conversation.messages import Entry, Text, ToolCall, ToolResult, Trust
from holdfast.core.conversation.tokens import Counter
from holdfast.core.ledger.actions import Actions, CommandRecord, ErrorRecord, SearchRecord, call_outcome
from holdfast.core.ledger.constraints import Constraint, Constraints
from holdfast.core.ledger.files import FileRecord, FileRecords
from holdfast.core.ledger.identifiers import argument_value, distinct_identifiers, json_strings_text
from holdfast.core.ledger.names import (
    FILE_USE_WEIGHT,
    MODEL_USE_WEIGHT,
    OUTPUT_USE_WEIGHT,
    USER_USE_WEIGHT,
    RankedName,
    UsedNames,
)
from holdfast.core.ledger.tool_calls import ObservedCall, describe_call

DATA_DIGITS = 6
"""Numbers with fewer digits count only if the model or the user has used them."""
MAX_OPEN_LEDGER_CALLS = 200
"""The limit for calls without a result; the oldest are evicted first."""


@dataclass(slots=True)
class Ledger:
    """Identifiers, files, commands, searches, errors, constraints and decisions, with their sources."""

    _names: UsedNames = field(default_factory=UsedNames)
    _files: FileRecords = field(default_factory=FileRecords)
    _actions: Actions = field(default_factory=Actions)
    _constraints: Constraints = field(default_factory=Constraints)
    _open: dict[str, ObservedCall] = field(default_factory=dict[str, ObservedCall])
    _length: int = 0

    @property
    def files(self) -> Iterator[FileRecord]:
        """The files that were named, read or written, the latest last."""
        return iter(self._files)

    @property
    def commands(self) -> Iterator[CommandRecord]:
        """The commands that were run, the latest last."""
        return self._actions.commands

    @property
    def searches(self) -> Iterator[SearchRecord]:
        """The searches that were made, the latest last."""
        return self._actions.searches

    @property
    def errors(self) -> Iterator[ErrorRecord]:
        """The calls that failed, the latest last."""
        return self._actions.errors

    @property
    def constraints(self) -> Iterator[Constraint]:
        """The user's constraints and the decisions, the latest last."""
        return iter(self._constraints)

    @property
    def open_calls(self) -> Iterator[ObservedCall]:
        """The calls that have no result yet."""
        return iter(self._open.values())

    def observe(self, entry: Entry) -> None:
        """Extract the records of a message."""
        position = self._length if entry.position is None else entry.position
        self._length = position + 1
        used: dict[str, float] = {}
        for part in entry.message.parts:
            if isinstance(part, ToolCall):
                value = argument_value(part.arguments)
                call = describe_call(part, value, position)
                self._observe_call(call)
                _add_weights(used, json_strings_text(value), MODEL_USE_WEIGHT)
                _add_weights(used, call.subject if call.kind == "file" else "", FILE_USE_WEIGHT)
            elif isinstance(part, ToolResult):
                self._observe_result(part, position)
                _add_weights(used, part.text, OUTPUT_USE_WEIGHT)
            elif isinstance(part, Text):
                self._observe_text(part, position)
                _add_weights(used, part.text, _trust_weight(part.trust))
        self._names.observe(used, position)

    def ranked_identifiers(self, limit: int | None = None) -> list[RankedName]:
        """Return the identifiers, or the best `limit` of them, most likely needed first."""
        return self._names.ranked(limit)

    def pack_identifiers(self, allowance_tokens: int, counter: Counter, *, exclude_text: str = "") -> str:
        """Return as many identifiers as fit, verbatim, except those in `exclude_text`."""
        return self._names.pack(allowance_tokens, counter, exclude_text=exclude_text)

    def _observe_call(self, call: ObservedCall) -> None:
        self._files.observe_call(call)
        self._open.pop(call.id, None)
        self._open[call.id] = call
        if len(self._open) > MAX_OPEN_LEDGER_CALLS:
            del self._open[next(iter(self._open))]

    def _observe_result(self, part: ToolResult, position: int) -> None:
        call = self._open.pop(part.call_id, None)
        if call is None:
            return
        outcome = call_outcome(call, part)
        self._actions.observe_result(call, outcome, part.text, position)
        if outcome.is_ok:
            self._files.observe_result(call, part.text, position)

    def _observe_text(self, part: Text, position: int) -> None:
        if part.trust in {"user", "agent"}:
            self._constraints.observe(part.text, "user", position)
        elif part.trust == "model":
            self._constraints.observe(part.text, "assistant", position)


def _trust_weight(trust: Trust) -> float:
    if trust == "model":
        return MODEL_USE_WEIGHT
    return OUTPUT_USE_WEIGHT if trust == "tool" else USER_USE_WEIGHT


def _add_weights(used: dict[str, float], text: str, weight: float) -> None:
    for name in distinct_identifiers(text):
        # A short number that occurs only in tool output is data, not an identifier that an agent needs again.
        is_data = weight == OUTPUT_USE_WEIGHT and len(name) < DATA_DIGITS and name.isdigit()
        if not is_data and used.get(name, 0.0) < weight:
            used[name] = weight
