"""Every error that Holdfast raises on purpose, in one tree.

HoldfastError
├── MalformedInputError        the input does not have the shape of its format; names the place
│   └── EmptyConversationError there is no message that a model could answer
├── UnknownReferenceError      a reference names no message that this agent may see
├── SettingsError              a budget, policy, format or model setting cannot work
│   └── UnknownScopeError      the conversation has no agent with that scope
├── MissingExtraError          a part of Holdfast needs packages that are not installed; names the extra that has them
├── PendingToolCallsError      a tool call may still be running, so no request can be made yet
├── CannotFitError             the parts that may not be shortened are larger than the budget
├── CompactionError            a requested compaction was not made; nothing has changed
│   ├── NothingToCompactError      no message can be compacted
│   ├── CompactionRunningError     another compaction is running
│   ├── NoContextError             no request was prepared yet
│   ├── CompactionFailedError      the summarizer failed, or its summary was rejected
│   ├── CompactionCancelledError   the compaction was cancelled
│   └── RemoteCompactionError      another process holds the session; compact it there
├── SessionClosedError         a session was used after it was closed; open it again
├── WrongEventLoopError        a session or a store was used on another event loop, thread or process; open it there
├── UnknownArtifactError       no large tool result with that name is visible to this agent
├── ArtifactTooLargeError      a large tool result cannot be returned whole; ask for a part
├── DelegationEndedError       a delegate was used after it had answered or was stopped
├── NotInMemoryError           the requested messages are in the store and not in memory
├── ConcurrentWriteError       another writer changed what a decision was based on; plan again
├── ModelError                 a call to a model failed; names the model
│   ├── ModelAccessError       no key, no permission, no credit, or no library for the provider
│   ├── ModelUnreachableError  a network or DNS failure, a lost connection, or a timeout
│   ├── ModelBusyError         a rate limit or an overloaded server; wait and retry
│   ├── ModelOverflowError     the request is too long for the model
│   └── ModelRefusedError      the provider rejected the request for another reason
├── RecordingError             the gateway could not record an exchange; it can be forwarded nevertheless
├── WorkspaceUnavailableError  a session's memory or board files cannot be read or written; the session continues
└── StoreError                 a store operation failed; the log is unchanged
    ├── SequenceConflictError  another writer appended first
    ├── UnknownSessionError    no session has that id, or several ids begin with it
    ├── MissingBlobError       a large part of a message is missing from the store
    ├── StoreUnavailableError  the database cannot be reached or opened, is locked, full or read-only
    └── DamagedStoreError      the database is damaged

An error message says what is true and what to do; the facts are attributes. Every message is redacted, so that it
contains nothing that looks like a key.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar

from holdfast.distribution import install_command
from holdfast.redaction import redact_text
from holdfast.text import pluralize

FIRST_SERVER_STATUS = 500


class HoldfastError(Exception):
    """The base of all errors that Holdfast raises on purpose. Catch it to catch them all."""

    def __init__(self, message: str) -> None:
        super().__init__(redact_text(message))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the error with its attributes, so that it can be passed between processes."""
        return _restore_error, (type(self), self.args, dict(self.__dict__))


def _restore_error(kind: type[HoldfastError], args: tuple[object, ...], facts: dict[str, object]) -> HoldfastError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class MalformedInputError(HoldfastError):
    """Raised when the input does not have the shape of its format. Correct the place that `where` names."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = redact_text(problem)


class EmptyConversationError(MalformedInputError):
    """Raised when there is no message that a model could answer. Append a user message."""

    def __init__(self) -> None:
        super().__init__("messages", "nothing to send: there is no user or assistant message; append a user message")


class UnknownReferenceError(HoldfastError):
    """Raised when a reference names no message that this agent may see. Use a reference from the view, or search."""

    def __init__(self, reference: str) -> None:
        super().__init__(f"there is no message {reference[:80]} here; give a ref that stands in view, or search")
        self.reference = reference


class SettingsError(HoldfastError):
    """Raised when a setting cannot work. Correct the setting that the message names.

    The message also names the value, what would be valid and, if known, where the value comes from.
    """

    def __init__(self, setting: str, problem: str, *, where: str = "") -> None:
        super().__init__(f"{where}: {setting}: {problem}" if where else f"{setting}: {problem}")
        self.setting = setting
        self.problem = redact_text(problem)
        self.where = where
        """The file and line, the variable or the flag that has the value."""


class UnknownScopeError(SettingsError):
    """Raised when no agent of the conversation has that scope, or no delegation that key. Pass one that there is."""

    def __init__(self, scope: str, known: Sequence[str] = (), *, is_key: bool = False) -> None:
        others = ", ".join(repr(one) for one in known[:5])
        if is_key:
            remedy = f"pass one of {others}" if others else "none has a key yet: begin one with delegate(…, key=…)"
            super().__init__("key", f"no delegation has the key {scope!r:.60}; {remedy}")
        else:
            remedy = f"pass 'main'{f' or one of {others}' * bool(others)}"
            super().__init__("scope", f"no agent has the scope {scope!r:.60}; {remedy}")
        self.scope = scope


class MissingExtraError(HoldfastError, ImportError):
    """Raised when packages of an optional part are not installed. Install the extra that the message names."""

    def __init__(self, part: str, extra: str, problem: str) -> None:
        super().__init__(f"{part} needs more packages ({problem}): {install_command(extra)}")
        self.extra = extra


@contextmanager
def imports_of_extra(extra: str, part: str) -> Generator[None]:
    """Raise `MissingExtraError` for an import that fails inside, because `part` needs the packages of `extra`."""
    try:
        yield
    except MissingExtraError:
        raise
    except ImportError as error:
        raise MissingExtraError(part, extra, str(error)) from error


class PendingToolCallsError(HoldfastError):
    """Raised when the newest tool calls have no results yet.

    Record their results and try again. If they will never come, call `session.interrupt()`, or pass
    `interrupted=True` to `govern`.
    """

    def __init__(self, call_ids: Sequence[str]) -> None:
        listed = ", ".join(repr(call_id) for call_id in call_ids)
        super().__init__(
            f"no result yet for the newest tool call(s) {listed}: record the results; "
            "if they will never come, call session.interrupt(), or pass interrupted=True to govern()"
        )
        self.call_ids = tuple(call_ids)


class CannotFitError(HoldfastError):
    """Raised when the parts that may not be shortened are larger than the budget.

    `part` names the largest of them; `breakdown` has the size of each in `unit`. Raise the budget, or make `part`
    smaller; where `unit` is "characters", `limit` is the provider's for one text, and no budget raises it.
    """

    def __init__(
        self, part: str, *, needed: int, limit: int, unit: str = "tokens", breakdown: Mapping[str, int]
    ) -> None:
        sizes = ", ".join(f"{name} {size:,}" for name, size in breakdown.items() if size)
        raising = "" if unit == "characters" else "raise the budget or "
        super().__init__(
            f"{needed:,} {unit} cannot be made to fit {limit:,}: {part} cannot shrink any further ({sizes}); "
            f"{raising}make {part} smaller"
        )
        self.part = part
        self.needed = needed
        self.limit = limit
        self.unit = unit
        self.breakdown = dict(breakdown)


class CompactionError(HoldfastError):
    """The base of errors about a requested compaction that was not made. The conversation is unchanged."""


class CompactionRunningError(CompactionError):
    """Raised when another compaction of this session is running.

    Wait for its event `session.compaction_complete`, or cancel it with `Session.cancel_compaction` where it runs.
    """

    def __init__(self, session: str) -> None:
        super().__init__(f"session {session!r} is being compacted already: wait for that, or cancel it")


class NoContextError(CompactionError):
    """Raised when no request was prepared yet, so that there is no context to compact. Prepare a request first."""

    def __init__(self, session: str) -> None:
        super().__init__(f"session {session!r} has no context yet: prepare a request first")


class CompactionFailedError(CompactionError):
    """Raised when the summarizer fails or its summary is rejected. Nothing has changed; `problem` says why."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"the compaction failed and nothing has changed: {problem}")
        self.problem = redact_text(problem)


class CompactionCancelledError(CompactionError):
    """Raised when a compaction is cancelled before it is done. Its result is discarded; compact again if needed."""

    def __init__(self, why: str = "it was cancelled") -> None:
        super().__init__(f"the compaction was not made: {why}")


class NothingToCompactError(CompactionError):
    """Raised when no message can be compacted. Nothing has changed, and nothing needs to be done."""

    def __init__(self, messages: int) -> None:
        told = f"of {messages:,} messages none can be compacted" if messages else "there are no messages"
        super().__init__(f"nothing to compact: {told}")
        self.messages = messages


class RemoteCompactionError(CompactionError):
    """Raised when a remote handle is asked to compact a session. Compact it in the process that holds the session."""

    def __init__(self, session: str) -> None:
        super().__init__("RemoteSession.compactHistory() is not implemented yet.")
        self.session = session


class SessionClosedError(HoldfastError):
    """Raised when a closed session is used. Open it again: everything is in its store."""

    def __init__(self, session: str) -> None:
        super().__init__(f"session {session!r} was closed: open it again")
        self.session = session


class WrongEventLoopError(HoldfastError):
    """Raised when a session or a store is used on another event loop, thread or process than it was opened on.

    Open it again where it is needed: several sessions may have the same id and the same store. To use one session from
    other threads, run its coroutines on its own loop with `asyncio.run_coroutine_threadsafe`.
    """

    def __init__(self, what: str, problem: str = "") -> None:
        opened_elsewhere = (
            "was opened on another event loop, thread or process; open it again here, or run this on its own "
            "loop with asyncio.run_coroutine_threadsafe"
        )
        super().__init__(f"{what} {problem or opened_elsewhere}")
        self.what = what


class UnknownArtifactError(HoldfastError):
    """Raised when no artifact with that name is visible to this agent. `session.artifacts()` lists those that are."""

    def __init__(self, reference: str) -> None:
        super().__init__(f"there is no artifact {reference!r:.80}; session.artifacts() lists all of them")
        self.reference = reference


class ArtifactTooLargeError(HoldfastError):
    """Raised when a whole artifact would fill too much of the window. Ask for a range of its lines or characters."""

    def __init__(self, artifact_id: str, *, tokens: int, limit: int) -> None:
        super().__init__(
            f"{artifact_id!r} has {tokens:,} tokens, and at most {limit:,} are returned at once; ask for a part of it"
        )
        self.artifact_id = artifact_id
        self.tokens = tokens
        self.limit = limit


class DelegationEndedError(HoldfastError):
    """Raised when a delegation is used after its end. Start another one with `Session.delegate`."""

    def __init__(self, scope: str, state: str) -> None:
        super().__init__(f"delegation {scope!r} has ended ({state.replace('_', ' ')})")
        self.scope = scope
        self.state = state


class NotInMemoryError(HoldfastError):
    """Raised when requested messages are not in memory. Use `recall`: the session then reads them from the store."""

    def __init__(self, positions: Sequence[int]) -> None:
        named = ", ".join(f"#{position}" for position in positions[:3])
        super().__init__(f"{len(positions):,} messages ({named} …) are in the store and not in memory; use recall")
        self.positions = positions


class ConcurrentWriteError(HoldfastError):
    """Raised when another writer has changed what a decision was based on. Plan again; sessions do so themselves."""

    def __init__(self, session: str) -> None:
        super().__init__(f"session {session!r} was changed by another writer meanwhile; plan again")


class ModelError(HoldfastError):
    """The base of errors about a failed call to a model. The conversation is unchanged."""

    REMEDY: ClassVar[str] = "ask again, or choose another model"

    def __init__(self, model: str, problem: str, remedy: str = "") -> None:
        super().__init__(f"{model}: {problem.removesuffix('.')}; {remedy or self.REMEDY}")
        self.model = redact_text(model)
        self.problem = redact_text(problem)


class ModelAccessError(ModelError):
    """Raised when the model may not be called: no key, no permission, no credit, or no library for its provider.

    Check the API key, and that it may use this model.
    """

    REMEDY: ClassVar[str] = "check the API key, and that it may use this model"


class ModelUnreachableError(ModelError):
    """Raised when the model cannot be reached, the connection is lost, or a call times out. Retry later."""

    REMEDY: ClassVar[str] = "check the address and the network, then ask again"


class ModelBusyError(ModelError):
    """Raised when the provider limits the rate of requests or is overloaded. Wait and retry.

    `retry_after` is how many seconds the provider asks to wait, if it says so.
    """

    def __init__(self, model: str, problem: str, *, retry_after: float | None = None) -> None:
        super().__init__(model, problem, "ask again " + ("later" if retry_after is None else f"in {retry_after:g} s"))
        self.retry_after = retry_after


class ModelOverflowError(ModelError):
    """Raised when a request is too long for the model. Send a smaller one.

    `limit` is the largest request in tokens, if the provider says so.
    """

    def __init__(self, model: str, problem: str, *, limit: int | None = None, size: int | None = None) -> None:
        super().__init__(model, problem, "send less" if limit is None else f"send less than {limit:,} tokens")
        self.limit = limit
        self.size = size
        """The size of the request in tokens, as the provider counts it, without room for the answer."""


class ModelRefusedError(ModelError):
    """Raised when the provider rejects a request for any other reason. Retry, or choose another model.

    `problem` is the provider's message and `status` the HTTP status.
    """

    def __init__(self, model: str, problem: str, *, status: int | None = None, remedy: str | None = None) -> None:
        is_transient = status is not None and status >= FIRST_SERVER_STATUS
        super().__init__(model, problem, remedy or ("ask again later" if is_transient else ""))
        self.status = status
        self.is_transient = is_transient
        """Whether the server itself failed, so that a retry of the same request may succeed."""


class RecordingError(HoldfastError):
    """Raised when the gateway could not record an exchange. It can be forwarded nevertheless; repair the store."""


class WorkspaceUnavailableError(HoldfastError):
    """Raised when memory or board files cannot be read or written. `problem` says why and what to do.

    The session log is not affected.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = redact_text(problem)


class StoreError(HoldfastError):
    """The base of errors about a failed store operation. The log is unchanged."""


class SequenceConflictError(StoreError):
    """Raised when another writer appended first. Reload the session and retry."""

    def __init__(self, session: str, *, expected: int, actual: int) -> None:
        super().__init__(
            f"session {session!r} has {pluralize(actual, 'event')}, not {expected:,}: another writer appended first; "
            "reload the session and retry"
        )
        self.session = session
        self.expected = expected
        self.actual = actual


class UnknownSessionError(StoreError):
    """Raised when no session id, or more than one, begins with a prefix. Pass a longer prefix, or list the sessions."""

    def __init__(self, prefix: str, candidates: Sequence[str] = ()) -> None:
        listed = ", ".join(candidates[:5])
        unknown = "is not known; `holdfast sessions` lists what is there"
        problem = f"could be any of {listed}; give a longer prefix" if candidates else unknown
        super().__init__(f"session {prefix!r:.80} {problem}")
        self.prefix = prefix
        self.candidates = tuple(candidates)


class MissingBlobError(StoreError):
    """Raised when a large part of a message is missing from the store. Restore the store from a copy that has it."""

    def __init__(self, digest: str) -> None:
        super().__init__(f"the store has no content with the hash {digest[:16]}…; restore it from a copy that has it")
        self.digest = digest


class StoreUnavailableError(StoreError):
    """Raised when the database cannot be reached, opened or written to. `problem` says why and what to do."""

    def __init__(self, store: str, problem: str) -> None:
        super().__init__(f"{store}: {problem}")
        self.store = store
        self.problem = redact_text(problem)


class DamagedStoreError(StoreError):
    """Raised when the database is damaged. Run `holdfast recover` to save what can be read."""

    def __init__(self, store: str, problem: str) -> None:
        import shlex  # noqa: PLC0415 - for this error only

        command = f"holdfast recover {shlex.quote(store)}"
        super().__init__(f"{store} is damaged ({problem}); `{command}` saves what can be read")
        self.store = store
        self.problem = redact_text(problem)
