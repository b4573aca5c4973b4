"""Every error Holdfast raises on purpose.

HoldfastError
├── MalformedInputError        the input is not what the format says; names the place
│   └── EmptyConversationError there is nothing a model could answer
├── UnknownReferenceError      a reference names nothing that its asker may see
├── SettingsError              a budget, policy, format or model setting cannot work
│   └── UnknownScopeError      there is no agent of that scope in this conversation
├── PendingToolCallsError      a tool call may still be running, so no request can be made yet
├── CannotFitError             what may not be shortened is larger than the budget
├── CompactionError            a compaction that somebody asked for was not made; nothing has changed
│   ├── NothingToCompactError      there is nothing that it could fold
│   ├── CompactionRunningError     another one is running
│   ├── NoContextError             no request was prepared yet
│   ├── CompactionFailedError      its summary could not be had, or is not good enough
│   ├── CompactionCancelledError   it was given up
│   └── RemoteCompactionError      the session is held elsewhere; compact it there
├── SessionClosedError         a session was used after it was closed; open it again
├── ArtifactError              a large tool result cannot be had so; nothing has changed
│   ├── UnknownArtifactError       there is none of that name that this agent may see
│   └── ArtifactTooLargeError      it is too large to be had whole; ask for a part
├── DelegationOverError        a delegate was used after it had answered or was stopped
├── NotInMemoryError           messages were asked for that have stayed in the store
├── OvertakenError             another writer changed what a decision was based on; it is made again
├── ModelError                 a model could not be asked, or gave no answer; names the model
│   ├── ModelAccessError       no key, no permission, no credit, or nothing to ask it with
│   ├── ModelUnreachableError  the network, a name, a connection that was cut, a time that ran out
│   ├── ModelBusyError         a rate limit or an overloaded server; wait and ask again
│   ├── ModelOverflowError     what it was asked is too long for it
│   └── ModelRefusedError      any other refusal
├── WorkspaceUnavailableError  the files beside a session cannot be read or written; the session goes on
└── StoreError                 a store could not do what it was asked; the log is as it was
    ├── SequenceConflictError  another writer appended first
    ├── UnknownSessionError    there is no session of that name, or more than one
    ├── MissingBlobError       a large piece of a message is not in the store
    ├── StoreUnavailableError  the database cannot be reached or opened, is locked, full or read-only
    └── DamagedStoreError      the database is not what it should be

A message says what is true and what to do; the facts are attributes. What looks like a key is never in a message.
"""

from collections.abc import Mapping, Sequence

from holdfast.redaction import redact_text

FIRST_SERVER_STATUS = 500


class HoldfastError(Exception):
    """The root: catch this to catch everything that Holdfast raises on purpose."""

    def __init__(self, message: str) -> None:
        super().__init__(redact_text(message))

    def __reduce__(self) -> tuple[object, ...]:
        """Let an error travel between processes with its facts."""
        return _restore_error, (type(self), self.args, dict(self.__dict__))


def _restore_error(kind: type[HoldfastError], args: tuple[object, ...], facts: dict[str, object]) -> HoldfastError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class MalformedInputError(HoldfastError):
    """The input does not have the shape its format prescribes. Mend the place that `where` names."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = redact_text(problem)


class EmptyConversationError(MalformedInputError):
    """No message is left that a model could answer. Append a user message."""

    def __init__(self) -> None:
        super().__init__("messages", "nothing to send: there is no user or assistant message; append a user message")


class UnknownReferenceError(HoldfastError):
    """A reference names nothing that its asker may see. Give one that stands in view, or search."""

    def __init__(self, reference: str) -> None:
        super().__init__(f"there is no message {reference[:80]} here; give a ref that stands in view, or search")
        self.reference = reference


class SettingsError(HoldfastError):
    """A setting cannot work. The message names the setting, the value, what would do, and where it stands if known."""

    def __init__(self, setting: str, problem: str, *, where: str = "") -> None:
        super().__init__(f"{where}: {setting}: {problem}" if where else f"{setting}: {problem}")
        self.setting = setting
        self.problem = redact_text(problem)
        self.where = where
        """File and line, variable or flag."""


class UnknownScopeError(SettingsError):
    """Nobody works or has worked under that scope here. Give `main`, or the scope of a delegate."""

    def __init__(self, scope: str, known: Sequence[str] = ()) -> None:
        others = ", ".join(repr(one) for one in known[:5])
        super().__init__(
            "scope", f"{scope!r:.60} is no agent's here; give 'main'{f' or one of {others}' * bool(others)}"
        )
        self.scope = scope


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


class CompactionError(HoldfastError):
    """A compaction that somebody asked for was not made. The conversation is as it was."""


class CompactionRunningError(CompactionError):
    """Another compaction of this session is running. Wait for it, or cancel it."""

    def __init__(self, session: str) -> None:
        super().__init__(f"session {session!r} is being compacted already: wait for that, or cancel it")


class NoContextError(CompactionError):
    """No request was prepared yet, so there is no context to compact. Prepare one first."""

    def __init__(self, session: str) -> None:
        super().__init__(f"session {session!r} has no context yet: prepare a request first")


class CompactionFailedError(CompactionError):
    """The summary could not be had, or is not good enough. Nothing has changed; `problem` says why."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"the compaction failed and nothing has changed: {problem}")
        self.problem = redact_text(problem)


class CompactionCancelledError(CompactionError):
    """The compaction was given up before it was done; what it would have been is thrown away."""

    def __init__(self, why: str = "it was cancelled") -> None:
        super().__init__(f"the compaction was not made: {why}")


class NothingToCompactError(CompactionError):
    """There is nothing that a compaction could fold. Nothing was changed."""

    def __init__(self, messages: int) -> None:
        super().__init__(f"nothing to compact: of {messages:,} messages none can be folded")
        self.messages = messages


class RemoteCompactionError(CompactionError):
    """A session was to be compacted through a handle that has no engine. Compact it where it is held."""

    def __init__(self, session: str) -> None:
        super().__init__("RemoteSession.compactHistory() is not implemented yet.")
        self.session = session


class SessionClosedError(HoldfastError):
    """The session was closed, and what it held open was given back. Open it again: everything is in its store."""

    def __init__(self, session: str) -> None:
        super().__init__(f"session {session!r} was closed: open it again")
        self.session = session


class ArtifactError(HoldfastError):
    """A large tool result cannot be had in the way it was asked for."""


class UnknownArtifactError(ArtifactError):
    """No tool result of that name is there for this agent. `session.artifacts()` lists those that are."""

    def __init__(self, reference: str) -> None:
        super().__init__(f"there is no artifact {reference!r:.80}; session.artifacts() lists those that there are")
        self.reference = reference


class ArtifactTooLargeError(ArtifactError):
    """The whole of it would take too much of the window. Ask for a range of its lines or characters."""

    def __init__(self, artifact_id: str, *, tokens: int, limit: int) -> None:
        super().__init__(
            f"{artifact_id!r} has {tokens:,} tokens, and at most {limit:,} may be had at once; ask for a part of it"
        )
        self.artifact_id = artifact_id
        self.tokens = tokens
        self.limit = limit


class DelegationEndedError(HoldfastError):
    """The delegation has ended, so nothing more can be said in it. Begin another one."""

    def __init__(self, scope: str, state: str) -> None:
        super().__init__(f"delegation {scope!r} has ended ({state.replace('_', ' ')})")
        self.scope = scope
        self.state = state


class NotInMemoryError(HoldfastError):
    """Messages were asked for that a session has not read. Ask the session (`recall`): it fetches them."""

    def __init__(self, positions: Sequence[int]) -> None:
        named = ", ".join(f"#{position}" for position in positions[:3])
        super().__init__(f"{len(positions):,} messages ({named} …) are in the store and not in memory; use recall")
        self.positions = positions


class ConcurrentWriteError(HoldfastError):
    """Another writer was faster, so that a decision has to be made again. Sessions do that by themselves."""

    def __init__(self, session: str) -> None:
        super().__init__(f"session {session!r} was changed by another writer meanwhile; decide again")


class ModelError(HoldfastError):
    """A model could not be asked, or gave no answer. The conversation is as it was."""

    def __init__(self, model: str, problem: str, remedy: str) -> None:
        super().__init__(f"{model}: {problem}; {remedy}")
        self.model = redact_text(model)
        self.problem = redact_text(problem)


class ModelAccessError(ModelError):
    """The model may not be asked: no key, no permission, no credit, or no library that knows its provider."""

    def __init__(
        self, model: str, problem: str, remedy: str = "check the API key, and that it may use this model"
    ) -> None:
        super().__init__(model, problem, remedy)


class ModelUnreachableError(ModelError):
    """The model could not be reached, was cut off, or took too long. Ask again when the network is back."""

    def __init__(
        self, model: str, problem: str, remedy: str = "check the address and the network, then ask again"
    ) -> None:
        super().__init__(model, problem, remedy)


class ModelBusyError(ModelError):
    """The provider wants fewer requests, or has no room just now. Wait `retry_after` seconds where it says so."""

    def __init__(self, model: str, problem: str, *, retry_after: float | None = None) -> None:
        when = "later" if retry_after is None else f"in {retry_after:g} s"
        super().__init__(model, problem, f"ask again {when}")
        self.retry_after = retry_after


class ModelOverflowError(ModelError):
    """What was asked is too long for the model. Send less: at most `limit` tokens where the provider says so."""

    def __init__(self, model: str, problem: str, *, limit: int | None = None, size: int | None = None) -> None:
        most = "send less" if limit is None else f"send less than {limit:,} tokens"
        super().__init__(model, problem, most)
        self.limit = limit
        self.size = size
        """How large the provider found it, in tokens."""


RETRY_OR_SWITCH_MODEL = "ask again, or choose another model"


class ModelRefusedError(ModelError):
    """The model gave no answer for another reason. `problem` has the provider's words, `status` its number."""

    def __init__(self, model: str, problem: str, *, status: int | None = None, remedy: str | None = None) -> None:
        is_passing = status is not None and status >= FIRST_SERVER_STATUS
        super().__init__(model, problem, remedy or ("ask again later" if is_passing else RETRY_OR_SWITCH_MODEL))
        self.status = status
        self.is_transient = is_passing
        """Whether the fault is the server's own, so that the same request may be answered another time."""


class WorkspaceUnavailableError(HoldfastError):
    """The files beside a session cannot be read or written. `problem` says why and what to do; the log is unharmed."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = redact_text(problem)


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
        unknown = "is not known; `holdfast sessions` lists what is there"
        problem = f"could be any of {listed}; give more of it" if candidates else unknown
        super().__init__(f"session {prefix!r:.80} {problem}")
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
        self.problem = redact_text(problem)


class DamagedStoreError(StoreError):
    """The database is not what it should be. `holdfast recover` saves what can be read."""

    def __init__(self, store: str, problem: str) -> None:
        super().__init__(f"{store} is damaged ({problem}); `holdfast recover {store}` saves what can be read")
        self.store = store
        self.problem = redact_text(problem)
