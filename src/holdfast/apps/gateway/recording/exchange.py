"""One request of a client on its way: the body that goes on, what the answer's headers tell, and the answer."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from time import monotonic
from typing import Literal, Protocol, TypeAlias

from holdfast.apps.gateway.provider_apis import answer_events
from holdfast.apps.gateway.recording.client_body import ClientBody, read_body
from holdfast.apps.gateway.recording.governing import (
    BINDING_BETA,
    NOTHING_REQUESTED,
    RequestedGoverning,
    thinking_that_drops_blocks,
    with_members,
)
from holdfast.apps.gateway.recording.identity import Signals, chain_start, header_of_session, read_signals
from holdfast.apps.gateway.recording.open_sessions import OpenSession, OpenSessions
from holdfast.apps.gateway.upstream_summarizer import ClientAccess
from holdfast.core.history.events import Usage
from holdfast.dataclass import dataclass
from holdfast.errors import HoldfastError, RecordingError
from holdfast.wire.answers import Answer, Wire, read_answer
from holdfast.wire.request import Request
from holdfast.wire.usage import read_usage, usage_if_readable

Ending: TypeAlias = Literal["complete", "cut", "client_left", "refused"]
"""How an answer ended: whole; cut by the upstream; left by the client; refused with an error."""
COMPACTION_PATH = "/responses/compact"
"""How the path ends of a request for a compaction by OpenAI, with which its client's list will begin."""
MAX_ANSWER_BYTES = 64 * 2**20
"""How much of an answer is kept to be recorded; a longer one is recorded as cut."""
MAX_INLINE_ANSWER_BYTES = 1 << 18
"""A larger answer is read in a thread."""


def new_request_id() -> str:
    """Return an id for the headers of an answer. It is no secret, so the system need not be asked for each."""
    return f"{random.getrandbits(64):016x}"


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request of a client, as it came."""

    wire: Wire
    path: str
    session_in_path: str | None
    """The session that the path names."""
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes
    """Decompressed."""
    namespace: str
    """Whose conversations these are: the name of the gateway's own key, or empty."""
    upstream: str
    """The upstream that answers, as NAME=URL: what is learned about a model there applies nowhere else."""
    governing: RequestedGoverning = NOTHING_REQUESTED
    """What it says about governing."""
    access: ClientAccess | None = None
    """How the client reaches its provider, if it has a key that may pay for summaries."""


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A request that was read."""

    request: ClientRequest
    body: ClientBody
    signals: Signals
    start: bytes
    """What its chain of hashes starts with."""


def read_request(request: ClientRequest, before: ClientBody | None) -> ReadRequest | None:
    """Return a request that was read; None if it has no messages of its wire. It may continue the body `before`."""
    try:
        body = read_body(request.wire, request.body, before)
        signals = read_signals(request.session_in_path, request.headers, body)
        if request.path.partition("?")[0].endswith(COMPACTION_PATH):
            signals = replace(signals, purpose="summary")
        is_at_provider = signals.response_id and signals.purpose  # it compacts what the provider keeps
        if not is_at_provider and (not body.slices or not body.message(len(body.slices) - 1)):
            return None
    except ValueError:
        return None
    return ReadRequest(request, body, signals, chain_start(request.namespace, request.wire))


class AnswerCopy:
    """What is kept of a successful answer as it arrives, up to a limit, to be read when it has ended."""

    def __init__(self, wire: Wire) -> None:
        self._wire: Wire = wire
        self._chunks: list[bytes] = []
        self.size = 0

    def add(self, chunk: bytes) -> None:
        """Take bytes of the answer."""
        if self.size < MAX_ANSWER_BYTES:
            self._chunks.append(chunk)
            self.size += len(chunk)

    async def read(self) -> Answer:
        """Return the answer; raises `ValueError` if it is none of its wire."""
        raw, wire = b"".join(self._chunks), self._wire
        if len(raw) <= MAX_INLINE_ANSWER_BYTES:
            return read_answer(wire, answer_events(wire, raw))
        return await asyncio.to_thread(lambda: read_answer(wire, answer_events(wire, raw)))

    async def tokens(self) -> int:
        """Return what an answer that is not recorded cost; 0 if that cannot be read."""
        try:
            return tokens_of(await self.read())
        except (HoldfastError, ValueError):
            return 0


class AnswerSink(Protocol):
    """Where an answer is recorded."""

    opened: OpenSession

    async def store(self, answer: Answer | None, duration_ms: int) -> None:
        """Record an answer; None if there is none."""
        ...

    def work_ahead(self, *, compacts: bool) -> None:
        """Start what the next request would else wait for, if a compaction is near; the answer is stored."""
        ...

    async def answer_recall(self, exchange: "Exchange", answer: Answer, duration_ms: int) -> bytes | None:
        """Answer the model's calls of `recall`, and return the request for the rest; None if the answer is over."""
        ...


Shrink: TypeAlias = Callable[[str, int], Awaitable[None]]
"""Takes the text and the status of a refusal."""


class Exchange:
    """One request on record, and its answer as it arrives."""

    def __init__(self, request: ClientRequest) -> None:
        self.session_id = ""
        """Empty if the request is not recorded."""
        self.request_id = new_request_id()
        self._received = self.body = request.body
        """What to send: the client's own bytes where nothing was compacted."""
        self.headers: dict[str, str] = {"x-holdfast-request": self.request_id}
        self.beta = ""
        """A feature of the provider that the body uses and the client has not named."""
        self.tokens = 0
        """What the answer cost, input and output together, once it is finished; 0 if the provider did not say."""
        self.shrink: Shrink | None = None
        """Makes `body` acceptable after a refusal, most often smaller; raises `HoldfastError` if nothing helps."""
        self.prepare_again: Callable[[], Awaitable[Request]] | None = None
        """Makes `body` the request that follows what was recorded since; None if requests are not governed."""
        self.has_recall = False
        """Whether calls of `recall` in the answer are for the gateway."""
        self.is_compacted = False
        self.compacts_ahead = False
        """Whether the conversation may be compacted for its next request when the answer is over."""
        self._wire: Wire = request.wire
        self._sink: AnswerSink | None = None
        self._stored: AnswerSink | None = None
        """Where the answer was recorded, until `work_ahead`."""
        self._sessions: OpenSessions | None = None
        self._copy = AnswerCopy(request.wire)
        self._started = monotonic()

    def record_with(self, sink: AnswerSink, sessions: OpenSessions) -> "Exchange":
        """Say where the answer goes: its session is held open until then."""
        self._sink, self._sessions, self.session_id = sink, sessions, sink.opened.id
        self.headers["x-holdfast-session"] = header_of_session(self.session_id)
        sink.opened.users += 1
        return self

    @contextmanager
    def unless_it_fails(self) -> Generator[None]:
        """Keep body and headers if there is no smaller request: the answer tells of the one that was sent."""
        sent = self.body, self.is_compacted, dict(self.headers)
        try:
            yield
        except HoldfastError:
            self.body, self.is_compacted, self.headers = sent
            raise

    def describe(self, prepared: Request, tokens: int, *, has_compacted: bool) -> None:
        """Complete the body of a prepared request, and tell in headers what was done for it, and its tokens."""
        self.headers["x-holdfast-tokens"] = str(tokens)
        self.headers["x-holdfast-budget"] = str(prepared.receipt.budget.tokens)
        if has_compacted and (thinking := thinking_that_drops_blocks(self._wire, self.body)):
            self.body, self.beta = with_members(self.body, {"thinking": thinking}), BINDING_BETA
        if self.body is not self._received:
            self.headers["x-holdfast-compacted"] = "1"

    def feed(self, chunk: bytes) -> None:
        """Take bytes of a successful answer as they arrive."""
        if self._sink is not None:
            if not self._copy.size:
                self._sink.opened.summarizer.note_answer()
            self._copy.add(chunk)

    async def continue_answer(self) -> bytes | None:
        """Answer the model's calls of `recall`, and return the request for the rest of its answer; None if it is over.

        Raises `RecordingError`.
        """
        sink, sessions = self._sink, self._sessions
        assert sink is not None and sessions is not None  # noqa: S101, PT018 - only recorded answers have such calls
        duration_ms = int((monotonic() - self._started) * 1000)
        try:
            answer = await self._copy.read()
            body = await sessions.run_to_completion(sink.answer_recall(self, answer, duration_ms))
        except (HoldfastError, ValueError) as error:
            raise RecordingError(str(error)) from error
        if body is not None:
            self.tokens += tokens_of(answer)
            self.body, self._copy, self._started = body, AnswerCopy(self._wire), monotonic()
        return body

    async def finish(self, ended: Ending, status: int) -> bool:
        """Record how the answer ended; it is durable when this returns. A second call changes nothing.

        Return whether it is on record now.
        """
        sink, sessions, self._sink = self._sink, self._sessions, None
        # They refer to this exchange: with them, the bodies of many requests would wait for the garbage collector.
        self.shrink = self.prepare_again = None
        if sink is None or sessions is None:
            return False
        sink.opened.summarizer.note_answer()
        is_answer = ended != "refused" and status < HTTPStatus.BAD_REQUEST
        try:
            await sessions.run_to_completion(self._store(sink, sessions, is_answer=is_answer))
        except (HoldfastError, ValueError) as error:
            if sink.opened.is_deleted:
                return False  # on purpose, while the answer came: nothing of it is to be on record
            raise RecordingError(str(error)) from error
        self._stored = sink
        return True

    def work_ahead(self, *, has_answer: bool) -> None:
        """Start what the next request would else wait for; the client has all that it gets of the answer.

        A client that has not the whole answer may ask for it again, and the same request has the same bytes.
        """
        stored, self._stored = self._stored, None
        if stored is not None:
            stored.work_ahead(compacts=has_answer and self.compacts_ahead)

    async def give_up(self) -> None:
        """Let go of the session without an answer. Its next request no longer takes this one for running."""
        sink, sessions, self._sink = self._sink, self._sessions, None
        self.shrink = self.prepare_again = None
        if sink is not None and sessions is not None:
            await self._store(sink, sessions, is_answer=False)

    async def _store(self, sink: AnswerSink, sessions: OpenSessions, *, is_answer: bool) -> None:
        try:
            answer = await self._copy.read() if is_answer else None
            if answer is not None:
                self.tokens += tokens_of(answer)
            await sink.store(answer, int((monotonic() - self._started) * 1000))
        finally:
            await sessions.release(sink.opened)


def usage_of(answer: Answer) -> Usage | None:
    """Return what an answer cost; None if there is no report, or none that can be read."""
    return usage_if_readable(read_usage, answer.usage)


def tokens_of(answer: Answer) -> int:
    """Return what an answer cost, input and output together; 0 if the provider did not say."""
    usage = usage_of(answer)
    return 0 if usage is None else usage.all_input_tokens + usage.output_tokens
