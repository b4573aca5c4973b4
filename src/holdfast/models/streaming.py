"""What arrives over a stream of events, and the answer it adds up to.

A stream is whole when the model says that it has finished or the server that it has no more. One that merely
ends was cut, and one with nothing in it is a refusal in disguise: some servers answer so when a request is too
long. Only a line feed ends a line here: the other line ends of Unicode may stand inside a JSON text.
"""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from holdfast.core.history.events import Usage
from holdfast.errors import ModelRefusedError, ModelUnreachableError
from holdfast.models.base import ModelReply
from holdfast.models.refusals import error_from_response
from holdfast.wire.overflow import classify
from holdfast.wire.reading import is_list, is_mapping

STREAM_DONE = "[DONE]"
ERROR_EVENT = "error"
CUT_OFF_FINISH_REASONS = {"length", "max_tokens"}
CONTENT_FILTERED = "content_filter"
MAX_EVENT_BYTES = 8_000_000
"""Nobody sends as much in one event; without a bound a broken server fills the memory."""
HTTP_OK = 200


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event of a stream."""

    kind: str
    text: str


async def server_sent_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[ServerSentEvent]:
    """Yield the events of a stream; one that is not closed by a blank line when the stream ends counts too."""
    kind, lines = "", list[str]()
    async for line in _lines(chunks):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            lines.append(value)
        elif name == "event":
            kind = value
        elif name == ERROR_EVENT:
            yield ServerSentEvent(ERROR_EVENT, value)
        elif not line and lines:
            yield ServerSentEvent(kind, "\n".join(lines))
            kind, lines = "", []
    if lines:
        yield ServerSentEvent(kind, "\n".join(lines))


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")
        if len(rest) > MAX_EVENT_BYTES:
            raise ValueError(f"a line of more than {MAX_EVENT_BYTES:,} bytes")
    if rest:
        yield rest.decode("utf-8", "replace")


@dataclass(slots=True)
class StreamedReply:
    """An answer as it arrives."""

    requested_model: str
    """The name of the model that was asked."""
    max_chars: int
    texts: list[str] = field(default_factory=list[str])
    chars: int = 0
    model: str = ""
    request_id: str | None = None
    usage: Usage | None = None
    finish: str | None = None
    has_begun: bool = False
    is_done: bool = False

    @property
    def is_overlong(self) -> bool:
        """Whether the model writes on and on, whatever it was told."""
        return self.chars > self.max_chars

    def add_event(self, event: ServerSentEvent) -> None:
        """Take in an event, or raise what it tells of."""
        if event.text.strip() == STREAM_DONE:
            self.is_done = True
            return
        try:
            payload: object = json.loads(event.text)
        except (ValueError, RecursionError):
            if event.kind == ERROR_EVENT:
                raise error_from_response(
                    self.requested_model, {"error": {"message": event.text}}, status=HTTP_OK
                ) from None
            raise ModelUnreachableError(
                self.requested_model, f"the stream was cut inside an event: {event.text[:80]!r}"
            ) from None
        if event.kind == ERROR_EVENT and not (is_mapping(payload) and "error" in payload):
            payload = {"error": payload}
        self.add_payload(payload)

    def add_payload(self, payload: object) -> None:
        """Take in a piece of the answer, or the whole of it from a server that does not stream."""
        if not is_mapping(payload) or classify(payload, status=HTTP_OK):
            raise error_from_response(self.requested_model, payload, status=HTTP_OK)
        self.model = str(payload.get("model") or self.model)
        self.request_id = str(payload.get("id") or "") or self.request_id
        self.usage = usage_from_chat(payload.get("usage")) or self.usage
        choices = payload.get("choices")
        first: object = choices[0] if is_list(choices) and choices else None
        if is_mapping(first):
            self._add_choice(first)

    def to_reply(self) -> ModelReply:
        """Return the whole answer, or raise where it is not whole."""
        if not self.has_begun:
            raise ModelRefusedError(
                self.requested_model,
                "the stream ended without an event",
                status=HTTP_OK,
                remedy="send less, as some servers answer so when a request is too long, or choose another model",
            )
        if not (self.finish or self.is_done or self.is_overlong):
            raise ModelUnreachableError(self.requested_model, f"the stream was cut after {self.chars:,} characters")
        return ModelReply(
            text="".join(self.texts),
            model=self.model or self.requested_model,
            usage=self.usage,
            is_cut_off=self.finish in CUT_OFF_FINISH_REASONS or self.is_overlong,
            request_id=self.request_id,
        )

    def _add_choice(self, choice: Mapping[str, object]) -> None:
        self.has_begun = True
        piece: object = choice.get("delta") or choice.get("message")
        if is_mapping(piece):
            text = _text_of(piece.get("content"))
            self.texts.append(text)
            self.chars += len(text)
            if declined := piece.get("refusal"):
                raise ModelRefusedError(
                    self.requested_model, f"the model declined: {str(declined)[:200]}", status=HTTP_OK
                )
        finish = choice.get("finish_reason")
        if finish == CONTENT_FILTERED:
            raise ModelRefusedError(
                self.requested_model, "the provider's content filter stopped the answer", status=HTTP_OK
            )
        self.finish = str(finish) if finish else self.finish


def usage_from_chat(value: object) -> Usage | None:
    """Return what was billed; providers count what they read from the cache into the prompt, we apart."""
    if not is_mapping(value):
        return None
    details = value.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if is_mapping(details) else 0
    cached = cached or _count(value.get("prompt_cache_hit_tokens"))
    prompt = _count(value.get("prompt_tokens"))
    return Usage(
        input_tokens=max(0, prompt - cached),
        output_tokens=_count(value.get("completion_tokens")),
        cache_read_tokens=min(cached, prompt),
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _text_of(content: object) -> str:
    """Return the text of a content: a string, or blocks of which some are text."""
    if is_list(content):
        return "".join(str(block.get("text") or "") for block in content if is_mapping(block))
    return content if isinstance(content, str) else ""
