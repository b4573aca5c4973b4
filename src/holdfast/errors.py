"""Every error Holdfast raises on purpose.

HoldfastError
├── MalformedInputError        the input is not what the format says; names the place
│   └── EmptyConversationError there is nothing a model could answer
├── SettingsError              a budget, policy, format or model setting cannot work
├── PendingToolCallsError      a tool call may still be running, so no request can be made yet
└── CannotFitError             what may not be shortened is larger than the budget

A message says what is true and what to do; the facts are attributes.
"""

from collections.abc import Mapping, Sequence


class HoldfastError(Exception):
    """The root: catch this to catch everything that Holdfast raises on purpose."""


class MalformedInputError(HoldfastError):
    """The input does not have the shape its format prescribes. Mend the place that `where` names."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


class EmptyConversationError(MalformedInputError):
    """No message is left that a model could answer. Append a user message."""

    def __init__(self) -> None:
        super().__init__("messages", "nothing to send: there is no user or assistant message; append a user message")


class SettingsError(HoldfastError):
    """A setting cannot work. The message names the setting, the value and what would do."""

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(f"{setting}: {problem}")
        self.setting = setting
        self.problem = problem


class PendingToolCallsError(HoldfastError):
    """The newest tool calls have no results yet.

    Append their results and try again, or pass `interrupted=True` if they will never come.
    """

    def __init__(self, call_ids: Sequence[str]) -> None:
        listed = ", ".join(repr(call_id) for call_id in call_ids)
        super().__init__(
            f"no result yet for the newest tool call(s) {listed}: append the results, "
            "or pass interrupted=True if they will never come"
        )
        self.call_ids = tuple(call_ids)


class CannotFitError(HoldfastError):
    """What may not be shortened is larger than the budget.

    `part` names the largest of it, `breakdown` the size of each part in `unit`. Raise the budget, or
    make that part smaller.
    """

    def __init__(
        self, part: str, *, needed: int, limit: int, unit: str = "tokens", breakdown: Mapping[str, int]
    ) -> None:
        sizes = ", ".join(f"{name} {size:,}" for name, size in breakdown.items() if size)
        super().__init__(
            f"{needed:,} {unit} cannot be made to fit {limit:,}: {part} cannot shrink any further ({sizes}); "
            f"raise the budget or make {part} smaller"
        )
        self.part = part
        self.needed = needed
        self.limit = limit
        self.unit = unit
        self.breakdown = dict(breakdown)
