"""One exchange: a request comes in, is recorded, goes on to its provider, and the answer comes back as it arrives.

The client's new messages are stored before the provider is called, and the answer before its last event is passed on.
Everything else travels unchanged: bytes, headers, errors, and a stream that ends too early. If recording fails, the
exchange goes on without it, unless the gateway is strict.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote, unquote_plus

import aiohttp
from multidict import CIMultiDict
from starlette.types import Receive, Scope, Send

from holdfast.apps.gateway.access import Access, Caller
from holdfast.apps.gateway.encodings import BodyTooLargeError, StreamDecompressor, UnreadableBodyError, decompressed
from holdfast.apps.gateway.provider_apis import (
    EVENT_ENDS,
    LONGEST_EVENT_END,
    PINGS,
    STREAM_METHOD,
    STREAM_TYPE,
    Destination,
    LastEventFinder,
    begins_as_error,
    begins_as_stream,
    destination_of,
    error_body,
    first_error,
    has_event_end,
    header_line,
)
from holdfast.apps.gateway.recording.exchange import AnswerCopy, ClientRequest, Ending, Exchange, new_request_id
from holdfast.apps.gateway.recording.governing import NOTHING_REQUESTED, requested_governing
from holdfast.apps.gateway.recording.recall_rounds import MAX_ROUND_BYTES, AnswerRounds, error_event
from holdfast.apps.gateway.recording.recorder import Recorder
from holdfast.apps.gateway.telemetry.metrics import GatewayMetrics
from holdfast.apps.gateway.telemetry.tracing import ExchangeTracer
from holdfast.apps.gateway.upstream import (
    CREDENTIAL_HEADERS,
    Headers,
    UpstreamClient,
    UpstreamError,
    Upstreams,
    has_arrived,
    next_chunk,
    request_headers,
    response_headers,
)
from holdfast.apps.gateway.upstream_summarizer import ClientAccess
from holdfast.apps.serving import AccessDeniedError
from holdfast.errors import HoldfastError, RecordingError, SettingsError
from holdfast.redaction import redact_text
from holdfast.wire.answers import Wire

T = TypeVar("T")
logger = logging.getLogger("holdfast.gateway")

HELD_SECONDS = 0.1
"""How long an event that may be the last one is held back for the end of its stream."""
BUFFERED_UPLOAD_BYTES = 1 << 20
"""A larger body of an unrecorded request is passed on while it arrives."""
HEAVY_BODY_BYTES = 1 << 18
"""A larger compressed body is opened in a thread."""
CONTENT_HEADERS = frozenset({"content-encoding", "content-md5", "digest", "content-digest"})
"""Headers that describe the client's bytes, and are left out where other bytes are sent."""
OVERFLOW_STATUSES = frozenset({400, 413, 422, 500})
"""Statuses with which providers refuse a request as too long."""
BODILESS_STATUSES = frozenset({204, 304})
"""Statuses of answers that never have a body; a 304 may tell how long that of a 200 would be."""
MAX_REFUSAL_BYTES = 1 << 16
MAX_OVERFLOW_RETRIES = 5
OPENING_SECONDS = 2.0
"""How long an error, or the beginning of a stream, is held back to see whether it is a refusal."""
MAX_OPENING_BYTES = 1 << 20
"""The most of it: the first event of OpenAI Responses repeats the instructions and the tools."""
HEADERS_KEY = "holdfast_headers"
LIST_HEADERS = frozenset({"anthropic-beta", "openai-beta"})
"""Headers with lists, which a client may send in several lines; of any other the last one counts."""
PATH_CHARACTERS = "/:@!$+&'*,;=()"
"""What a path holds as it is (RFC 3986): Gemini has a colon before the method."""


class ClientLeftError(Exception):
    """Raised when the client has closed its connection. The call to the provider is closed at once."""


class AnswerSilentError(Exception):
    """Raised when a provider sends nothing for longer than its limit. The answer counts as cut."""


class AnswerWithheldError(Exception):
    """Raised in a strict gateway when an answer could not be stored. Its end is not passed on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """How exchanges are handled."""

    max_body_bytes: int = 64 << 20
    is_strict: bool = False
    """Whether a request that cannot be recorded is refused instead of forwarded."""
    ping_seconds: float = 15.0
    """After how much silence a stream gets a ping."""
    recording_seconds: float = 10.0
    """How long recording a request may take before it is forwarded without."""


class ClientConnection:
    """The client's end of an exchange.

    A task of its own watches whether the client leaves, and a timer fills the silence of a stream with pings. They
    interrupt the exchange only while `is_interruptible`: never while something is being stored.
    """

    def __init__(self, receive: Receive, send: Send, *, ping_seconds: float, silence_seconds: float) -> None:
        self._receive = receive
        self._send = send
        self._tick_seconds = min(ping_seconds, silence_seconds)
        self._ping_seconds, self._silence_seconds = ping_seconds, silence_seconds
        self._task: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._pinger: asyncio.Task[None] | None = None
        self._pinging = asyncio.Lock()
        """Held while a ping is being sent."""
        self._is_sending = False
        self._interruption: Exception | None = None
        self._is_at_boundary = False
        self._last_bytes = b""
        """The end of what was sent: some servers write an event and the empty line after it one by one."""
        self.has_all = False
        """Whether the whole request has arrived."""
        self.is_gone = False
        self.is_started = False
        self.is_receiving = False
        """Whether the provider's answer is being read; the call before it, and its first moment, have other limits."""
        self.is_interruptible = False
        self.ping: bytes | None = None
        """What may be sent between two events; None if nothing may."""
        self.pings = 0
        self.active_at = 0.0
        """When the provider last sent something, on the clock of the event loop."""

    async def read(self) -> bytes:
        """Return the next piece of the request's body; raises `ClientLeftError`."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.is_gone = True
            raise ClientLeftError
        self.has_all = not message.get("more_body", False)
        return message.get("body", b"")

    async def read_all(self, *, max_bytes: int) -> bytes:
        """Return the whole body; raises `BodyTooLargeError` as soon as it is too large."""
        body = await self.read()
        if self.has_all and len(body) <= max_bytes:
            return body
        pieces, size = [body], len(body)
        while size <= max_bytes and not self.has_all:
            pieces.append(await self.read())
            size += len(pieces[-1])
        if size > max_bytes:
            raise BodyTooLargeError
        return b"".join(pieces)

    def upload(self, first: bytes) -> AsyncIterator[bytes]:
        """Return the body as it arrives, after its first bytes. A task of the call to the provider takes the rest."""
        self._task = asyncio.current_task()
        return self._upload(first)

    async def _upload(self, first: bytes) -> AsyncIterator[bytes]:
        yield first
        while not self.has_all:
            try:
                piece = await self.read()
            except ClientLeftError:
                self._interrupt(ClientLeftError())
                raise
            yield piece
        self.watch()

    def watch(self) -> None:
        """Begin to watch for the client to leave, once its request is here."""
        loop = asyncio.get_running_loop()
        self._task = self._task or asyncio.current_task(loop)
        self.active_at = loop.time()
        self._watcher = loop.create_task(self._watch())
        self._tick = loop.call_later(self._tick_seconds, self._end_silence, loop)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True
        self._interrupt(ClientLeftError())

    def _end_silence(self, loop: asyncio.AbstractEventLoop) -> None:
        """End an answer that was silent for too long, or send a ping, and look again later."""
        silence = loop.time() - self.active_at
        if silence >= self._silence_seconds and self.is_receiving:
            self._interrupt(AnswerSilentError())
        elif silence >= self._ping_seconds and (self._pinger is None or self._pinger.done()):
            self._pinger = loop.create_task(self._send_ping())
        self._tick = loop.call_later(self._tick_seconds, self._end_silence, loop)

    def _interrupt(self, reason: Exception) -> None:
        if self.is_interruptible and self._task is not None and self._interruption is None:
            self._interruption = reason
            self._task.cancel()

    async def _send_ping(self) -> None:
        if self.ping is None or not self._is_at_boundary or self._is_sending:
            return
        async with self._pinging:
            await self._send({"type": "http.response.body", "body": self.ping, "more_body": True})
        self.pings += 1

    async def storing(self, work: Awaitable[T]) -> T:
        """Return the result of work that stores something, and leave the exchange alone meanwhile."""
        before, self.is_interruptible = self.is_interruptible, False
        try:
            return await work
        finally:
            self.is_interruptible = before

    def interruption(self) -> Exception | None:
        """Return why this connection interrupted the exchange; None if somebody else cancelled it."""
        if self._interruption is not None and self._task is not None:
            self._task.uncancel()
        return self._interruption

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Send status and headers."""
        self.is_started = self.is_receiving = self._is_at_boundary = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send(self, data: bytes) -> None:
        """Send a piece of the answer, and wait while the client is slower than the provider."""
        if data:
            await self._write(data, has_more=True)
            end = data if len(data) >= LONGEST_EVENT_END else self._last_bytes + data
            self._last_bytes, self._is_at_boundary = end[-LONGEST_EVENT_END:], end.endswith(EVENT_ENDS)

    async def end(self, data: bytes = b"") -> None:
        """Complete the answer with its last bytes: one write where two would be one more packet."""
        self.ping = None
        await self._write(data, has_more=False)

    async def _write(self, data: bytes, *, has_more: bool) -> None:
        if self._pinging.locked():
            async with self._pinging:
                pass  # the ping is out
        self._is_sending = True
        try:
            await self._send({"type": "http.response.body", "body": data, "more_body": has_more})
        finally:
            self._is_sending = False

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send a whole answer in JSON."""
        named = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
        await self.start(status, _encoded(named))
        await self.end(body)

    def close(self) -> None:
        """Stop watching."""
        for one in (self._watcher, self._tick, self._pinger):
            if one is not None:
                one.cancel()
        # Else the request and this would refer to each other, and stay in memory until the collector finds them.
        self._task = self._watcher = self._tick = self._pinger = None


class Relay:
    """The ASGI application that forwards every request that is not the gateway's own."""

    def __init__(
        self,
        *,
        recorder: Recorder,
        upstreams: Upstreams,
        client: UpstreamClient,
        access: Access,
        metrics: GatewayMetrics,
        settings: RelaySettings,
        tracer: ExchangeTracer,
    ) -> None:
        self._tracer = tracer
        self._recorder = recorder
        self._upstreams = upstreams
        self._upstream = client
        self._access = access
        self._metrics = metrics
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers = headers_of(scope)
        destination = destination_of(raw_path_of(scope), scope["method"], headers)
        client = ClientConnection(
            receive,
            send,
            ping_seconds=self._settings.ping_seconds,
            silence_seconds=self._upstream.timeouts.silence_seconds,
        )
        call = _Call(scope, headers, destination, client)
        span = self._tracer.start(scope["method"], headers, destination)
        self._metrics.open_exchanges += 1
        try:
            await self._serve(call)
        except ClientLeftError:
            call.status = 499
        finally:
            client.close()
            session = call.exchange.session_id if call.exchange else ""
            self._tracer.end(span, status=call.status, session=session, ended=call.ended)
            self._metrics.open_exchanges -= 1
            self._metrics.requests_with(destination.wire or "other", str(call.status)).inc()
            if client.pings:
                self._metrics.pings.inc(client.pings)

    async def _serve(self, call: "_Call") -> None:
        destination = call.destination
        try:
            call.caller = self._access.identify(call.headers, call.query)
        except AccessDeniedError as error:
            self._metrics.denied.labels(str(error.status)).inc()
            wait = error.retry_after_seconds
            return await self._refuse(
                call, error.status, str(error), {} if wait is None else {"retry-after": str(wait)}
            )
        if destination.upstream not in self._upstreams:
            known = ", ".join(quote(name, safe="") for name in self._upstreams.names)  # as they stand in a path
            return await self._refuse(
                call, 404, f"no upstream is called {destination.upstream!r:.60}; there are {known}"
            )
        if destination.wire is None:
            return await self._pass_through(call)
        try:
            call.governing = requested_governing(call.headers, destination.policy)
            self._recorder.governor.check_choice(call.governing.choice)
        except SettingsError as error:
            return await self._refuse(call, 400, str(error))
        try:
            call.body = await call.client.read_all(max_bytes=self._settings.max_body_bytes)
            await self._record(call, destination.wire)
        except BodyTooLargeError:
            limit = f"{self._settings.max_body_bytes:,} bytes"
            return await self._refuse(call, 413, f"the request is larger than {limit}; see the setting gateway_body_mb")
        if call.exchange is None and self._settings.is_strict:
            text = f"the request was not forwarded, because it could not be recorded: {call.problem}"
            return await self._refuse(call, 503, text)
        is_recorded = call.exchange is not None and call.exchange.session_id
        if not is_recorded and call.caller.key is not None and call.caller.key.tokens_per_day is not None:
            call.unrecorded = AnswerCopy(destination.wire)
        await self._exchange(call)

    async def _record(self, call: "_Call", wire: Wire) -> None:
        """Store the client's new messages; a failure is kept for a header, because the request is forwarded anyway."""
        destination, body = call.destination, call.body
        encoding = call.headers.get("content-encoding", "").strip().lower()
        started = time.perf_counter()
        try:
            if encoding:
                limit = self._settings.max_body_bytes
                if len(body) > HEAVY_BODY_BYTES:
                    body = await asyncio.to_thread(decompressed, body, encoding, max_bytes=limit)
                else:
                    body = decompressed(body, encoding, max_bytes=limit)
            call.plain = body
            request = ClientRequest(
                wire=wire,
                path=destination.path,
                session_in_path=destination.session,
                headers=call.headers,
                body=body,
                namespace=call.caller.namespace,
                upstream=self._upstreams.described(destination.upstream),
                governing=call.governing,
                access=self._client_access(call) if self._recorder.governor.may_use_client_keys else None,
            )
            call.exchange = await self._recorder.receive(request, seconds=self._settings.recording_seconds)
        except BodyTooLargeError:
            raise
        except UnreadableBodyError as error:
            call.problem = str(error)
        except TimeoutError:
            self._note_failure(call, "request", f"recording took longer than {self._settings.recording_seconds:g} s")
        except Exception as error:  # noqa: BLE001 - whatever fails here, the client's request is forwarded
            self._note_failure(call, "request", str(error) or type(error).__name__)
        else:
            self._metrics.recording_seconds.observe(time.perf_counter() - started)

    def _note_failure(self, call: "_Call", stage: str, problem: str) -> None:
        call.problem = redact_text(problem)
        self._metrics.recording_failures.labels(stage).inc()
        logger.warning("%s of %s was not recorded: %s", stage, call.destination.path, call.problem)

    async def _exchange(self, call: "_Call") -> None:
        """Forward a recorded request, and pass on its answer."""
        exchange, client = call.exchange, call.client
        has_own_body = exchange is not None and exchange.body is not call.plain and exchange.body != call.plain
        ended: Ending = "cut"
        is_silent = False
        client.watch()
        try:
            ended = await self._forward(call, exchange.body if exchange and has_own_body else call.body)
        except AnswerWithheldError:
            return
        except asyncio.CancelledError:
            reason = client.interruption()
            if reason is None:
                await self._finish(call, "cut")
                raise
            is_silent = isinstance(reason, AnswerSilentError)
            ended = "cut" if is_silent else "client_left"
        except ClientLeftError:
            ended = "client_left"
        except Exception:
            # Its session would else be held open for ever, and take its next request for one beside this.
            await self._finish(call, "cut")
            raise
        finally:
            client.is_interruptible = False
            if call.response is not None and ended != "complete":
                call.response.close()
        await self._finish(call, ended)
        if exchange is not None:
            exchange.work_ahead(has_answer=ended == "complete")
        if ended == "client_left":
            raise ClientLeftError
        if is_silent and not client.is_started:
            seconds = self._upstream.timeouts.silence_seconds
            await self._refuse(call, 504, f"the provider sent nothing for {seconds:g} s in the middle of its answer")

    async def _forward(self, call: "_Call", body: bytes) -> Ending:
        """Call the provider, pass on its answer, and return how it ended."""
        response = await self._ask(call, body)
        if response is None:
            return "refused"
        if call.exchange is not None and call.exchange.has_recall:
            return await self._pass_rounds(call, response)
        await call.client.start(response.status, call.answer_headers(response))
        return await self._pass_answer(call, response)

    async def _ask(self, call: "_Call", body: bytes) -> aiohttp.ClientResponse | None:
        """Return the provider's answer; None if it has refused, or has not answered, and the client was told.

        A request that is refused as too long is made smaller and sent again.
        """
        while True:
            response = await self._call_upstream(call, self._headers_for(call, body), body)
            if response is None:
                return None
            refusal, smaller = await self._refusal_of(call, response)
            if smaller is None:
                if response.ok:
                    return response
                await self._pass_error(call, response, refusal or b"")
                return None
            body = smaller

    def _headers_for(self, call: "_Call", body: bytes) -> CIMultiDict[str]:
        # What described the client's bytes does not describe a body of our own.
        dropped = frozenset[str]() if body is call.body else CONTENT_HEADERS
        without = dropped | self._own_credential(call)
        headers = request_headers(call.raw_headers, body_bytes=len(body), without=without, encodings=True)
        self._add_key(call, headers)
        if call.exchange is not None and call.exchange.has_recall:
            headers["accept-encoding"] = "identity"
        if call.exchange is not None and (beta := call.exchange.beta):
            named = ",".join(headers.getall("anthropic-beta", ()))
            headers["anthropic-beta"] = named if beta in named else ",".join(filter(None, (named, beta)))
        return headers

    async def _refusal_of(self, call: "_Call", response: aiohttp.ClientResponse) -> tuple[bytes | None, bytes | None]:
        """Return an error as far as it was read, and a smaller body if it means that the request was too long."""
        refusal = None if response.ok else await self._refusal_text(call, response)
        error = await self._first_error(call, response) if response.ok else _plain_text(response, refusal)
        return refusal, None if error is None else await self._shrunk(call, response, error)

    async def _refusal_text(self, call: "_Call", response: aiohttp.ClientResponse) -> bytes | None:
        """Return the text of an error that may mean that the request was too long; None if it need not be read."""
        size = response.headers.get("content-length", "0")
        is_short = size.isdecimal() and int(size) <= MAX_REFUSAL_BYTES
        if not call.can_shrink or response.status not in OVERFLOW_STATUSES or not is_short:
            return None
        return await _error_text(response)

    async def _shrunk(self, call: "_Call", response: aiohttp.ClientResponse, refusal: bytes) -> bytes | None:
        """Return a smaller body if the provider refused this one as too long; None if it said something else."""
        exchange = call.exchange
        if exchange is None or exchange.shrink is None or call.retries >= MAX_OVERFLOW_RETRIES:
            return None
        call.retries += 1
        try:
            await call.client.storing(exchange.shrink(refusal.decode(errors="replace"), call.status))
        except HoldfastError:
            return None
        self._metrics.overflow_retries.inc()
        response.close()
        call.opening = b""
        return exchange.body

    async def _first_error(self, call: "_Call", response: aiohttp.ClientResponse) -> bytes | None:
        """Return the error that comes with the status of an answer, as llama.cpp sends one; None if there is none.

        What was read to know it is kept in `call.opening`, and passed on first.
        """
        if not call.can_shrink:
            return None
        is_stream = response.content_type == STREAM_TYPE
        decompressor = StreamDecompressor(_encoding_of(response), max_bytes=MAX_OPENING_BYTES + 1)
        plain, error = b"", None
        now = asyncio.get_running_loop().time
        end = now() + OPENING_SECONDS
        with suppress(TimeoutError, aiohttp.ClientError, OSError):
            while decompressor.is_readable and error is None and len(plain) <= MAX_OPENING_BYTES:
                if not (chunk := await _soon(response, end - now())):
                    break
                call.opening += chunk
                plain += await decompressor.read_all(chunk)
                error = first_error(plain) if is_stream or begins_as_error(plain) else b""
        return error or None

    async def _call_upstream(
        self, call: "_Call", headers: CIMultiDict[str], body: bytes | AsyncIterator[bytes] | None
    ) -> aiohttp.ClientResponse | None:
        """Return the provider's answer; None if there is none and the client was told why."""
        client, destination = call.client, call.destination
        started = time.perf_counter()
        if client.is_gone:
            raise ClientLeftError
        client.is_interruptible, client.is_receiving = True, False
        try:
            call.response = await self._upstream.send(
                call.scope["method"],
                self._upstreams.url(destination, call.query_for_upstream),
                headers,
                body,
                self._upstreams.proxy(destination.upstream),
            )
        except UpstreamError as error:
            client.is_interruptible = False
            self._metrics.upstream_failures.labels(error.failure).inc()
            await self._finish(call, "refused", error.status)
            await self._refuse(call, error.status, f"the gateway got no answer: {error}")
            return None
        self._metrics.first_byte_seconds.observe(time.perf_counter() - started)
        client.active_at = asyncio.get_running_loop().time()
        call.status = call.response.status
        return call.response

    async def _pass_error(self, call: "_Call", response: aiohttp.ClientResponse, first: bytes) -> None:
        """Pass on an error as it came, or as an event of an answer that has begun; `first` is what was read of it."""
        client = call.client
        if client.is_started:
            first = first or await _error_text(response)
            await self._finish(call, "refused")
            await client.send(error_event(call.destination.wire or "openai-chat", first))
        else:
            await client.start(response.status, call.answer_headers(response))
            try:
                await client.send(first)
                while chunk := await next_chunk(response):
                    client.active_at = asyncio.get_running_loop().time()
                    await client.send(chunk)
            except (aiohttp.ClientError, OSError):
                return  # the error was cut, and so is ours
            await self._finish(call, "refused")
        await client.end()

    async def _pass_answer(self, call: "_Call", response: aiohttp.ClientResponse) -> Ending:
        """Pass on an answer; store it before its last event, or its last bytes, are passed on."""
        client, wire, tail = call.client, call.destination.wire, _AnswerTail(call.destination, response)
        if tail.is_stream and tail.is_plain and wire is not None:
            client.ping = PINGS.get(wire)
        try:
            await self._pass_pieces(call, response, tail)
        except (aiohttp.ClientError, OSError):
            await self._finish(call, "cut")
            await client.send(tail.release())
            return "cut"
        if not tail.is_readable and call.exchange is not None:
            encoding = response.headers.get("content-encoding", "")
            self._note_failure(call, "answer", f"its encoding cannot be read: {encoding!r:.40}")
            if self._settings.is_strict:
                await self._finish(call, "cut")
                raise AnswerWithheldError
        await self._finish(call, "cut" if tail.is_cut else "complete")
        await client.end(tail.release())
        return "complete"

    async def _pass_pieces(self, call: "_Call", response: aiohttp.ClientResponse, tail: "_AnswerTail") -> None:
        client, exchange, loop = call.client, call.exchange, asyncio.get_running_loop()
        opening = call.take_opening()
        while True:  # once for each event of most streams
            try:
                chunk = opening or await (_soon(response, HELD_SECONDS) if tail.is_waiting else next_chunk(response))
            except TimeoutError:
                await client.send(tail.release())
                continue
            if not chunk:
                return
            opening, client.active_at = b"", loop.time()
            plain = chunk if tail.is_plain else await tail.decompress(chunk)
            if exchange is not None:
                exchange.feed(plain)
            if call.unrecorded is not None:
                call.unrecorded.add(plain)
            passed = tail.pass_on(chunk, plain)
            await client.send(passed)
            if passed is not chunk and tail.is_complete:
                await self._finish(call, "complete")
                if response.content.at_eof():
                    return  # what is held back is the end of the answer
                await client.send(tail.release())

    # Answers in which the model recalls.

    async def _pass_rounds(self, call: "_Call", response: aiohttp.ClientResponse) -> Ending:
        """Pass on an answer, and the rest of it that the provider gives once its calls of `recall` are answered."""
        client, exchange, wire = call.client, call.exchange, call.destination.wire
        assert exchange is not None and wire is not None  # noqa: S101, PT018 - only recorded answers have rounds
        if not StreamDecompressor(_encoding_of(response)).is_readable:
            # Only the client can read what has an encoding that nobody asked for.
            await client.start(response.status, call.answer_headers(response))
            return await self._pass_answer(call, response)
        is_stream = response.content_type == STREAM_TYPE or await self._begins_as_stream(call, response)
        rounds = AnswerRounds(wire, is_stream=is_stream, is_list=call.destination.path.endswith(STREAM_METHOD))
        if is_stream:
            await client.start(response.status, call.joined_headers(response))
            client.ping = PINGS.get(wire)
        while True:
            try:
                await self._pass_round(call, exchange, response, rounds)
            except (aiohttp.ClientError, OSError, BodyTooLargeError, UnreadableBodyError) as error:
                await self._finish(call, "cut")
                if is_stream:
                    await client.send(rounds.end())
                else:
                    await self._refuse(call, 502, _why_cut(error))
                return "cut"
            stop = rounds.end_round()
            body = await self._next_round(call, exchange) if stop == "called" else None
            if body is None:
                break
            await client.send(rounds.next_round())
            answered = await self._ask(call, body)
            if answered is None:
                return "refused"
            response = answered
        end = rounds.end()
        if not is_stream:
            await client.start(response.status, call.joined_headers(response, length=len(end)))
        await self._finish(call, "complete" if stop else "cut")
        await client.end(end)
        return "complete"

    async def _begins_as_stream(self, call: "_Call", response: aiohttp.ClientResponse) -> bool:
        """Return whether an answer of another type is a stream; what was read to know it is kept in `call.opening`."""
        call.client.is_receiving = True
        decompressor = StreamDecompressor(_encoding_of(response), max_bytes=MAX_OPENING_BYTES)
        plain = await decompressor.read_all(call.opening)
        with suppress(aiohttp.ClientError, OSError):
            while begins_as_stream(plain) is None and len(plain) < MAX_OPENING_BYTES and decompressor.is_readable:
                if not (chunk := await next_chunk(response)):
                    break
                call.client.active_at = asyncio.get_running_loop().time()
                call.opening += chunk
                plain += await decompressor.read_all(chunk)
        return begins_as_stream(plain) is True

    async def _pass_round(
        self, call: "_Call", exchange: Exchange, response: aiohttp.ClientResponse, rounds: AnswerRounds
    ) -> None:
        """Pass on what one response says to the client."""
        client, loop = call.client, asyncio.get_running_loop()
        client.is_receiving = True
        decompressor = StreamDecompressor(_encoding_of(response))
        while chunk := call.take_opening() or await next_chunk(response):
            client.active_at = loop.time()
            plain = await decompressor.read_all(chunk)
            if not decompressor.is_readable:
                raise UnreadableBodyError("the encoding of the answer cannot be read")
            if decompressor.is_full:
                raise BodyTooLargeError
            exchange.feed(plain)
            await client.send(rounds.add(plain))
            if rounds.is_over:
                # Only the end of the response is still to come, after which its connection can be used again.
                with suppress(TimeoutError, aiohttp.ClientError, OSError):
                    while await _soon(response, HELD_SECONDS):
                        pass
                return

    async def _next_round(self, call: "_Call", exchange: Exchange) -> bytes | None:
        """Return the request for the rest of an answer; None if it is over."""
        try:
            return await call.client.storing(exchange.continue_answer())
        except RecordingError as error:
            self._note_failure(call, "answer", str(error))
            return None

    async def _finish(self, call: "_Call", ended: Ending, status: int | None = None) -> None:
        """Put the end of an exchange on record, once; a strict gateway withholds an answer that cannot be stored."""
        if (unrecorded := call.unrecorded) is not None:
            call.unrecorded = None
            self._access.spend(call.caller, await call.client.storing(unrecorded.tokens()))
        if call.exchange is None or call.ended:
            return
        call.ended = ended
        try:
            finishing = call.exchange.finish(ended, call.status if status is None else status)
            if await call.client.storing(finishing):
                self._metrics.endings_with(ended).inc()
        except Exception as error:
            self._note_failure(call, "answer", str(error) or type(error).__name__)
            if self._settings.is_strict and ended == "complete":
                raise AnswerWithheldError from error
        finally:
            self._access.spend(call.caller, call.exchange.tokens)  # the provider's bill comes in any case
        if call.client.is_interruptible and call.client.is_gone:
            raise ClientLeftError

    async def _pass_through(self, call: "_Call") -> None:
        """Forward a request that has no conversation, and its answer, without looking at either."""
        client = call.client
        try:
            first = await client.read()
            while not client.has_all and len(first) < BUFFERED_UPLOAD_BYTES:
                first += await client.read()
            declared = call.headers.get("content-length")
            body: bytes | AsyncIterator[bytes] | None = first or (b"" if declared else None)
            size = None if body is None else len(first)
            if client.has_all:
                client.watch()
            else:
                body, size = client.upload(first), int(declared) if declared else None
            headers = request_headers(call.raw_headers, body_bytes=size, without=self._own_credential(call))
            self._add_key(call, headers)
            response = await self._call_upstream(call, headers, body)
            if response is None:
                return
            await client.start(response.status, call.answer_headers(response))
            while chunk := await next_chunk(response):
                client.active_at = asyncio.get_running_loop().time()
                await client.send(chunk)
            await client.end()
        except asyncio.CancelledError:
            reason = client.interruption()
            if reason is None:
                raise
            if isinstance(reason, ClientLeftError):
                raise reason from None
        except (aiohttp.ClientError, OSError):
            return  # the answer was cut, and so is ours
        finally:
            client.is_interruptible = False
            if call.response is not None:
                call.response.close()

    async def _refuse(self, call: "_Call", status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        """Answer with an error of the kind that the client's provider sends."""
        call.status = status
        body = error_body(call.destination.provider, status, text)
        if call.client.is_started:
            await call.client.send(error_event(call.destination.wire or "openai-chat", body))
            return await call.client.end()
        await call.client.answer(status, body, {**call.own_headers(), **(headers or {})})

    def _client_access(self, call: "_Call") -> ClientAccess | None:
        """Return how the client reaches its provider; None if there is no key."""
        own = self._own_credential(call)
        keys = {name: call.headers[name] for name in CREDENTIAL_HEADERS if name in call.headers and name not in own}
        if not keys and (key := self._upstreams.key_header(call.destination)):
            keys = dict([key])
        url = self._upstreams.url(call.destination, "")
        return ClientAccess.of(str(url), call.headers, keys) if keys else None

    def _own_credential(self, call: "_Call") -> frozenset[str]:
        return call.caller.credentials.intersection(CREDENTIAL_HEADERS)

    def _add_key(self, call: "_Call", headers: CIMultiDict[str]) -> None:
        """Add the provider's key from the environment if the client sent none of its own."""
        if any(name in headers for name in CREDENTIAL_HEADERS) or _has_key(call.query_for_upstream):
            return
        if key := self._upstreams.key_header(call.destination):
            headers[key[0]] = key[1]


class _Call:
    """What is known about one request while it is served."""

    def __init__(
        self, scope: Scope, headers: Mapping[str, str], destination: Destination, client: ClientConnection
    ) -> None:
        self.scope = scope
        self.headers = headers
        self.raw_headers: Headers = scope["headers"]
        self.destination = destination
        self.client = client
        self.query = scope["query_string"].decode("latin-1")
        self.caller = Caller()
        self.governing = NOTHING_REQUESTED
        self.body = b""
        """The body as it came."""
        self.plain = b""
        """The body without its encoding."""
        self.exchange: Exchange | None = None
        self.unrecorded: AnswerCopy | None = None
        """The answer to a request that is not recorded, where it counts against the tokens of a key."""
        self.ended = ""
        """How the answer ended, once that is on record."""
        self.problem = ""
        """Why the request could not be recorded."""
        self.response: aiohttp.ClientResponse | None = None
        self.status = 0
        self.opening = b""
        """The beginning of a stream that was read to see whether it is an answer, and is still to be passed on."""
        self.retries = 0
        """How often the request was made smaller after a refusal."""

    @property
    def can_shrink(self) -> bool:
        """Whether the request can be made smaller after a refusal."""
        return self.exchange is not None and self.exchange.shrink is not None

    def take_opening(self) -> bytes:
        """Return the beginning of a stream, once."""
        opening, self.opening = self.opening, b""
        return opening

    @property
    def query_for_upstream(self) -> str:
        """The query string, without a key of ours."""
        if "?key" not in self.caller.credentials:
            return self.query
        return "&".join(one for one in self.query.split("&") if not _has_key(one))

    def own_headers(self) -> dict[str, str]:
        """Return the headers that tell what the gateway did."""
        if self.exchange is not None:
            return self.exchange.headers
        own = {"x-holdfast-request": new_request_id()}
        if self.problem:
            own["x-holdfast-error"] = header_line(f"not recorded: {self.problem}")
        return own

    def answer_headers(self, response: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
        """Return the headers of the answer: the provider's, and our own."""
        own = _encoded(self.own_headers())
        if response.content_type == STREAM_TYPE:
            own.append((b"x-accel-buffering", b"no"))  # else nginx collects the events
        named = {name for name, _ in own}
        if response.status in BODILESS_STATUSES:
            named.add(b"content-length")  # of what is not sent: our server would miss it
        return [pair for pair in response_headers(response.raw_headers) if pair[0] not in named] + own

    def joined_headers(
        self, response: aiohttp.ClientResponse, *, length: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Return the headers of an answer whose bytes are our own."""
        dropped = {b"content-length", *(name.encode() for name in CONTENT_HEADERS)}
        kept = [pair for pair in self.answer_headers(response) if pair[0] not in dropped]
        return kept if length is None else [*kept, (b"content-length", str(length).encode())]


class _AnswerTail:
    """Holds back the end of an answer until it is stored.

    The last event of a stream is recognized by its mark, so that no other event waits. Where a mark may also be in
    other events, what has it waits for what comes next, for a moment. The last bytes of a JSON object wait for its end.
    """

    def __init__(self, destination: Destination, response: aiohttp.ClientResponse) -> None:
        wire = destination.wire
        self.is_stream = response.content_type == STREAM_TYPE
        self._decompressor = StreamDecompressor(_encoding_of(response))
        self.is_plain = self._decompressor.is_plain
        self._finder = LastEventFinder(wire) if self.is_stream and wire is not None else None
        self._unknown_wire: Wire | None = None if self.is_stream else wire
        """The wire while it is unknown whether this is a stream: some servers give theirs another type, or none."""
        self._is_array = not self.is_stream and destination.path.endswith(STREAM_METHOD)
        self._is_framed = "content-length" in response.headers or "transfer-encoding" in response.headers
        self._held = b""
        self._held_plain = b""
        self._held_after: list[bytes] = []
        """What came after the mark of the last event: that of OpenAI Responses may hold megabytes of an image."""
        self._has_event_end = False
        self._is_over = False
        self.is_waiting = False
        """Whether something is held back that a client may be waiting for."""

    @property
    def is_readable(self) -> bool:
        """Whether the bytes could be read so far, and not only passed on."""
        return self._decompressor.is_readable

    @property
    def is_complete(self) -> bool:
        """Whether the last event is here, whole and held back."""
        return bool(self._held) and self._is_marked and self._has_event_end

    @property
    def _is_marked(self) -> bool:
        return self._finder is not None and self._finder.is_certain

    async def decompress(self, chunk: bytes) -> bytes:
        """Return the plain bytes of a chunk."""
        return await self._decompressor.read_all(chunk)

    def pass_on(self, chunk: bytes, plain: bytes) -> bytes:
        """Return what may be sent to the client now: the chunk itself if nothing is held back, before or after it."""
        if self._is_over:
            return chunk
        if self._unknown_wire is not None and not plain.isspace():  # with which a server shows that it is there
            chunk, plain = self._recognize(self._unknown_wire, self._held + chunk, self._held_plain + plain)
        before = self._held
        if before and self._is_marked:
            self._held_after.append(chunk)
            self._held_plain = self._held_plain[1 - LONGEST_EVENT_END :] + plain
            self._has_event_end = self._has_event_end or has_event_end(self._held_plain)
            return b""
        at = self._hold_from(plain) if self._finder is None else self._finder.find(plain)
        if at is None:
            self._held, self.is_waiting = b"", False
            return before + chunk if before else chunk
        start = at if self.is_plain else 0
        self._held, self._held_plain = chunk[start:], plain[at:]
        self._has_event_end = self._is_marked and has_event_end(self._held_plain)
        self.is_waiting = bool(self._held) and not self._is_marked and (self._is_array or self._finder is not None)
        return before + chunk[:start]

    def _recognize(self, wire: Wire, chunk: bytes, plain: bytes) -> tuple[bytes, bytes]:
        """Take an answer for a stream if it begins like one; return all of it so far, of which nothing is held back."""
        self._held = self._held_plain = b""
        if (is_stream := begins_as_stream(plain)) is not None:
            self._unknown_wire, self._finder = None, LastEventFinder(wire) if is_stream else None
        return chunk, plain

    def _hold_from(self, plain: bytes) -> int | None:
        if self._is_array and not plain.rstrip().endswith(b"]"):
            return None
        return 0

    def release(self) -> bytes:
        """Return what was held back."""
        self._is_over = self._is_over or self.is_complete
        held = b"".join((self._held, *self._held_after))
        self._held, self._held_plain, self._held_after, self._has_event_end = b"", b"", [], False
        self.is_waiting = False
        return held

    @property
    def is_cut(self) -> bool:
        """Whether a stream has ended without its last event where only that event could tell."""
        return self._is_marked and not self._is_over and not self._held and not self._is_framed


def _encoding_of(response: aiohttp.ClientResponse) -> str:
    return response.headers.get("content-encoding", "").strip().lower()


def _why_cut(error: Exception) -> str:
    """Return why an answer in which the model recalls has no end."""
    if isinstance(error, BodyTooLargeError):
        return f"the answer is larger than {MAX_ROUND_BYTES:,} bytes, and in this conversation `recall` is to be read"
    if isinstance(error, UnreadableBodyError):
        return str(error)
    return "the provider closed the connection in the middle of its answer"


def _plain_text(response: aiohttp.ClientResponse, refusal: bytes | None) -> bytes | None:
    """Return an error without its encoding: providers compress errors too. None if it cannot be read."""
    if refusal is None:
        return None
    try:
        return decompressed(refusal, _encoding_of(response), max_bytes=MAX_REFUSAL_BYTES)
    except (UnreadableBodyError, BodyTooLargeError):
        return None


async def _error_text(response: aiohttp.ClientResponse) -> bytes:
    """Return the body of an error, as far as it comes in time and is not too large."""
    text, now = b"", asyncio.get_running_loop().time
    end = now() + OPENING_SECONDS
    with suppress(TimeoutError, aiohttp.ClientError, OSError):
        while len(text) <= MAX_REFUSAL_BYTES and (chunk := await _soon(response, end - now())):
            text += chunk
    return text


async def _soon(response: aiohttp.ClientResponse, seconds: float) -> bytes:
    """Return the next bytes of an answer; raises `TimeoutError` if none come in time."""
    if has_arrived(response):  # a timer takes longer than to read them
        return await next_chunk(response)
    async with asyncio.timeout(seconds):
        return await next_chunk(response)


def _has_key(query: str) -> bool:
    """Return whether a query has a parameter `key`, with which Gemini's clients send theirs."""
    return any(unquote_plus(one.partition("=")[0]) == "key" for one in query.split("&"))


def headers_of(scope: Scope) -> Mapping[str, str]:
    """Return the headers of a request by their names in lower case; they are decoded once."""
    known: dict[str, str] | None = scope.get(HEADERS_KEY)
    if known is None:
        known = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if len(known) < len(scope["headers"]):
            for name in LIST_HEADERS & known.keys():
                values = [value for one, value in scope["headers"] if one == name.encode()]
                known[name] = b",".join(values).decode("latin-1")
        scope[HEADERS_KEY] = known
    return known


def raw_path_of(scope: Scope) -> str:
    """Return the path as the client wrote it, without the place that the gateway is mounted at."""
    raw = scope.get("raw_path")
    path = raw.decode("latin-1") if raw else quote(scope["path"], PATH_CHARACTERS)
    if not scope.get("root_path"):
        return path
    root = quote(scope["root_path"], PATH_CHARACTERS)
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
