"""The ledger: the facts of a conversation that must survive compaction, extracted message by message.

The ledger is a pure function of the messages, so the same messages give the same ledger. It holds a limited number of
records of each kind, and which records it evicts depends on the messages alone.
"""

from collections.abc import Mapping
from dataclasses import field

from holdfast.core.conversation.messages import Entry, Text, ToolCall, ToolResult, Trust
from holdfast.core.ledger.actions import Actions, AgentWork, call_outcome
from holdfast.core.ledger.constraints import Constraints, ConstraintSpeaker
from holdfast.core.ledger.files import FileRecords
from holdfast.core.ledger.identifiers import argument_value, distinct_identifiers, json_strings_text
from holdfast.core.ledger.names import FILE_USE_WEIGHT, MODEL_USE_WEIGHT, OUTPUT_USE_WEIGHT, USER_USE_WEIGHT, UsedNames
from holdfast.core.ledger.tool_calls import ObservedCall, describe_call
from holdfast.dataclass import dataclass
from holdfast.text import lazy_pattern

DATA_DIGITS = 6
"""Numbers with fewer digits count only if the model or the user has used them."""
SPEAKERS: Mapping[Trust, ConstraintSpeaker] = {"user": "user", "agent": "user", "model": "assistant"}
"""Who states the constraints and decisions in a text; other texts state none."""
TEXT_WEIGHTS: Mapping[Trust, float] = {"model": MODEL_USE_WEIGHT, "tool": OUTPUT_USE_WEIGHT}
"""The weight of a name in a text; `USER_USE_WEIGHT` for any other author."""
MAX_ROLE_FACTOR = 4.0
"""The largest weight of a role."""
_NOTE_HINT = lazy_pattern(r"(?i)\b(?:note|milestone)\b")
"""What every note of an agent to itself contains."""
MAX_OPEN_LEDGER_CALLS = 200
"""The limit for calls without a result; the oldest are evicted first."""


@dataclass(slots=True)
class Ledger:
    """Identifiers, files, commands, searches, errors, constraints, decisions, plan and tasks, with their sources."""

    names: UsedNames = field(default_factory=UsedNames)
    files: FileRecords = field(default_factory=FileRecords)
    actions: Actions = field(default_factory=Actions)
    constraints: Constraints = field(default_factory=Constraints)
    work: AgentWork = field(default_factory=AgentWork)
    open_calls: dict[str, ObservedCall] = field(default_factory=dict[str, ObservedCall])
    """The calls that have no result yet, by id."""
    spoken_chars: dict[str, int] = field(default_factory=dict[str, int])
    """How much each role has said, without calls and their results."""
    _length: int = 0

    def observe(self, entry: Entry) -> None:
        """Extract the records of a message."""
        message, position = entry
        if position is None:
            position = self._length
        self._length = position + 1
        if text := message.text:
            self.spoken_chars[message.role] = self.spoken_chars.get(message.role, 0) + len(text)
        used: dict[str, float] = {}
        for part in message.parts:
            if isinstance(part, Text):
                if speaker := SPEAKERS.get(part.trust):
                    self.constraints.observe(part.text, speaker, position)
                    if speaker == "user" and self.work.plan:
                        self.work.observe_prompt(part.text, position)
                    elif speaker == "assistant" and _may_be_note(part.text):
                        self.work.observe_answer(part.text, position)
                _add_weights(used, part.text, TEXT_WEIGHTS.get(part.trust, USER_USE_WEIGHT))
            elif isinstance(part, ToolCall):
                value = argument_value(part.arguments)
                call = describe_call(part, value, position)
                self._observe_call(call)
                self.work.observe_call(call, value)
                _add_weights(used, json_strings_text(value), MODEL_USE_WEIGHT)
                _add_weights(used, call.subject if call.kind == "file" else "", FILE_USE_WEIGHT)
            elif isinstance(part, ToolResult):
                self._observe_result(part, position)
                _add_weights(used, part.text, OUTPUT_USE_WEIGHT)
        self.names.observe(used, position)

    def role_factors(self) -> dict[str, float]:
        """Return the weight of each role's turns: the less a role has said in total, the more its turns count."""
        total = sum(self.spoken_chars.values())
        return {role: min(MAX_ROLE_FACTOR, max(1.0, total / (2 * chars))) for role, chars in self.spoken_chars.items()}

    def _observe_call(self, call: ObservedCall) -> None:
        self.files.observe_call(call)
        self.open_calls.pop(call.id, None)
        self.open_calls[call.id] = call
        if len(self.open_calls) > MAX_OPEN_LEDGER_CALLS:
            del self.open_calls[next(iter(self.open_calls))]

    def _observe_result(self, part: ToolResult, position: int) -> None:
        call = self.open_calls.pop(part.call_id, None)
        if call is None:
            return
        self.work.observe_result(call, part.text, position)
        outcome = call_outcome(call, part)
        self.actions.observe_result(call, outcome, part.text, position)
        if outcome.is_ok:
            self.files.observe_result(call, part.text, position)


def _may_be_note(text: str) -> bool:
    """Return whether a text may be a note of an agent to itself; to look for the words takes less than the pattern."""
    if text.isascii() and "note" not in (lower := text.lower()) and "milestone" not in lower:
        return False
    return _NOTE_HINT.search(text) is not None


def _add_weights(used: dict[str, float], text: str, weight: float) -> None:
    found = distinct_identifiers(text)
    if not used and weight != OUTPUT_USE_WEIGHT:
        used.update(dict.fromkeys(found, weight))
        return
    for name in found:
        # A short number that occurs only in tool output is data, not an identifier that an agent needs again.
        is_data = weight == OUTPUT_USE_WEIGHT and len(name) < DATA_DIGITS and name.isdigit()
        if not is_data and used.get(name, 0.0) < weight:
            used[name] = weight
