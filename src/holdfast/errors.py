"""Every error Holdfast raises on purpose.

HoldfastError
├── MalformedInputError        the input is not what the format says; names the place
│   └── EmptyConversationError there is nothing a model could answer
├── SettingsError              a budget, policy, format or model setting cannot work
├── PendingToolCallsError      a tool call may still be running, so no request can be made yet
├── CannotFitError             what may not be shortened is larger than the budget
├── NothingToCompactError      there is nothing that a compaction could fold
├── NotInMemoryError           messages were asked for that have stayed in the store
├── WorkspaceUnavailableError  the files beside a session cannot be read or written; the session goes on
└── StoreError                 a store could not do what it was asked; the log is as it was
    ├── SequenceConflictError  another writer appended first
    ├── UnknownSessionError    there is no session of that name, or more than one
    ├── MissingBlobError       a large piece of a message is not in the store
    ├── StoreUnavailableError  the database cannot be reached or opened, is locked, full or read-only
    └── DamagedStoreError      the database is not what it should be

A message says what is true and what to do; the facts are attributes. What looks like a key is never in a message.
"""

import re
from collections.abc import Mapping, Sequence

_KEYS = re.compile(
    r"\b(sk-|gh[pousr]_|github_pat_|xox[abprs]-|AKIA|AIza)[A-Za-z0-9_\-]{8,}|\b(Bearer\s+)[A-Za-z0-9._~+/=\-]{8,}",
    re.IGNORECASE,
)
_PASSWORD = re.compile(r"(://[^\s:/@]*:)[^\s/@]+@")


def redacted(text: str) -> str:
    """Return a text without what looks like a key or a password."""
    kept = _KEYS.sub(lambda match: f"{match[1] or match[2]}[redacted]", text)
    return _PASSWORD.sub(r"\1[redacted]@", kept)


class HoldfastError(Exception):
    """The root: catch this to catch everything that Holdfast raises on purpose."""

    def __init__(self, message: str) -> None:
        super().__init__(redacted(message))

    def __reduce__(self) -> tuple[object, ...]:
        """Let an error travel between processes with its facts."""
        return _restored, (type(self), self.args, dict(self.__dict__))


def _restored(kind: type[HoldfastError], args: tuple[object, ...], facts: dict[str, object]) -> HoldfastError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


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


class NothingToCompactError(HoldfastError):
    """There is nothing that a compaction could fold. Nothing was changed."""

    def __init__(self, messages: int) -> None:
        super().__init__(f"nothing to compact: of {messages:,} messages none can be folded")
        self.messages = messages


class NotInMemoryError(HoldfastError):
    """Messages were asked for that a session has not read. Ask the session (`recall`): it fetches them."""

    def __init__(self, positions: Sequence[int]) -> None:
        named = ", ".join(f"#{position}" for position in positions[:3])
        super().__init__(f"{len(positions):,} messages ({named} …) are in the store and not in memory; use recall")
        self.positions = positions


class WorkspaceUnavailableError(HoldfastError):
    """The files beside a session cannot be read or written. `problem` says why and what to do; the log is unharmed."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class StoreError(HoldfastError):
    """A store could not do what it was asked. The log is as it was before."""


class SequenceConflictError(StoreError):
    """Another writer appended first. Reload the session and try again."""

    def __init__(self, session: str, *, expected: int, actual: int) -> None:
        super().__init__(f"session {session!r} has {actual:,} events, not {expected:,}: another writer was faster")
        self.session = session
        self.expected = expected
        self.actual = actual


class UnknownSessionError(StoreError):
    """No session, or more than one, has an id that begins so. Give more of it, or list the sessions."""

    def __init__(self, prefix: str, candidates: Sequence[str] = ()) -> None:
        listed = ", ".join(candidates[:5])
        problem = f"could be any of {listed}; give more of it" if candidates else "is not known; list the sessions"
        super().__init__(f"session {prefix!r} {problem}")
        self.prefix = prefix
        self.candidates = tuple(candidates)


class MissingBlobError(StoreError):
    """A large piece of a message is not in the store. Restore the store from a copy that has it."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"the store has no content with the hash {digest[:16]}…; restore it from a copy that has it")
        self.digest = digest


class StoreUnavailableError(StoreError):
    """The database cannot be reached, opened or written to. `problem` says why and what to do."""

    def __init__(self, store: str, problem: str) -> None:
        super().__init__(f"{store}: {problem}")
        self.store = store
        self.problem = problem


class DamagedStoreError(StoreError):
    """The database is not what it should be. `holdfast recover` saves what can be read."""

    def __init__(self, store: str, problem: str) -> None:
        super().__init__(f"{store} is damaged ({problem}); `holdfast recover {store}` saves what can be read")
        self.store = store
        self.problem = problem
