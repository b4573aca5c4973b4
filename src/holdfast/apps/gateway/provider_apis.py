"""What tells the providers' APIs apart: which one a request speaks, its streams and their ends, and its errors.

Clients recover from errors by their wording and stop at the last event of a stream, so an answer that the gateway
makes up must look like one of the API that the client speaks.
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Literal, TypeAlias
from urllib.parse import unquote

import msgspec
import orjson

from holdfast.apps.gateway.recording.client_body import read_json
from holdfast.dataclass import dataclass
from holdfast.wire.answers import Wire
from holdfast.wire.json_reader import is_list, is_mapping

Provider: TypeAlias = Literal["openai", "anthropic", "gemini"]
"""The APIs that requests are forwarded to; it is also the name of the upstream if the path names none."""

_PREFIX = re.compile(r"/(?P<kind>[sup])/(?P<name>[^/]+)(?=/|$)")
_ANTHROPIC_MESSAGES = re.compile(r"/v1/messages(?=/|$)")
_GOOGLE_OPENAI = "/v1beta/openai/"
"""How the paths begin with which Google's own upstream speaks as OpenAI does."""
_GEMINI_METHOD = re.compile(r"/models/[^/]+:(?P<method>\w+)$")
RECORDED_GEMINI_METHODS = frozenset({"generateContent", "streamGenerateContent", "countTokens"})


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a request goes, read from its path and headers."""

    upstream: str
    """The name of the upstream."""
    provider: Provider
    wire: Wire | None
    """The API whose messages the body has; None for a request that is only passed on."""
    path: str
    """The path after session, upstream and policy, percent-encoded as it came."""
    session: str | None
    """The session that the path names."""
    policy: str | None = None
    """The policy that the path names."""


def destination_of(raw_path: str, method: str, headers: Mapping[str, str]) -> Destination:
    """Return where a request goes.

    `/s/ID` names its session, `/u/NAME` its upstream and `/p/NAME` its policy, in any order.
    """
    named: dict[str, str] = {}
    path = raw_path
    while (prefix := _PREFIX.match(path)) and prefix["kind"] not in named:
        named[prefix["kind"]] = unquote(prefix["name"])
        path = path[prefix.end() :]
    path = path or "/"
    provider = _provider_of(path, headers)
    wire = _wire_of(path, provider) if method == "POST" else None
    upstream = named.get("u", "gemini" if path.startswith(_GOOGLE_OPENAI) else provider)
    return Destination(upstream, provider, wire, path, named.get("s"), named.get("p"))


def _provider_of(path: str, headers: Mapping[str, str]) -> Provider:
    # Others that speak as Anthropic does have something before it: `/anthropic/v1/messages`.
    if _ANTHROPIC_MESSAGES.search(path):
        return "anthropic"
    if path.startswith(_GOOGLE_OPENAI):
        return "openai"
    if path.startswith("/v1beta") or _GEMINI_METHOD.search(path):
        return "gemini"
    if path.startswith(("/v1/chat/", "/v1/responses", "/v1/embeddings", "/v1/completions")):
        return "openai"
    # `/v1/models` and unknown paths: each provider's own headers tell.
    if "anthropic-version" in headers or "x-api-key" in headers:
        return "anthropic"
    return "gemini" if "x-goog-api-key" in headers else "openai"


def _wire_of(path: str, provider: Provider) -> Wire | None:
    if provider == "anthropic":
        return "anthropic" if path.endswith(("/v1/messages", "/v1/messages/count_tokens")) else None
    if provider == "gemini":
        found = _GEMINI_METHOD.search(path)
        return "gemini" if found and found["method"] in RECORDED_GEMINI_METHODS else None
    if path.endswith("/chat/completions"):
        return "openai-chat"
    return "openai-responses" if path.endswith(("/responses", "/responses/compact")) else None


def upstream_path(base_path: str, path: str, provider: Provider) -> str:
    """Return the path of a request at its upstream, whose base URL has the path `base_path`.

    The base URL of an OpenAI client contains the version, `/v1`; those of the others do not.
    """
    base = base_path.rstrip("/")
    is_versioned = provider == "openai" or base.endswith("/v1")
    if is_versioned and (path == "/v1" or path.startswith("/v1/")):
        path = path.removeprefix("/v1")
    return base + path


# Streams.

STREAM_TYPE = "text/event-stream"
STREAM_METHOD = ":streamGenerateContent"
"""How the path of a Gemini stream ends; without `alt=sse` it is a JSON list."""
_DONE = re.compile(rb"^data: ?\[DONE\]", re.MULTILINE)
_DONE_WIRES: tuple[Wire, ...] = ("openai-chat", "openai-responses")
_LAST_EVENTS: Mapping[Wire, re.Pattern[bytes]] = {
    "openai-chat": _DONE,
    "openai-responses": re.compile(
        rb'^(?:event: ?|data: ?\{"type": ?")(?:response\.(?:completed|failed|incomplete)|error)\b', re.MULTILINE
    ),
    "anthropic": re.compile(rb'^(?:event: ?|data: ?\{"type": ?")(?:message_stop|error)\b', re.MULTILINE),
    # Google marks the last event by a member of it, and some versions mark every event.
    "gemini": re.compile(rb'"finishReason"'),
}
_LAST_EVENT_WORDS: Mapping[Wire, tuple[bytes, ...]] = {
    "openai-chat": (b"[DONE]",),
    "openai-responses": (b"completed", b"failed", b"incomplete", b"error"),
    "anthropic": (b"message_stop", b"error"),
    "gemini": (b"finishReason",),
}
"""One of them is in every mark; most chunks have none, and need not be searched for lines."""
_FIRST_LINES = (b"data:", b"event:", b"id:", b"retry:", b":")
EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
LONGEST_EVENT_END = max(map(len, EVENT_ENDS))
_EVENT_END = re.compile(b"|".join(EVENT_ENDS))
_BARE_ERROR = re.compile(rb'\s*\{\s*"error"')
_ANNOUNCEMENTS = frozenset({"response.created", "response.queued", "response.in_progress", "ping"})
"""Events that say nothing of an answer yet."""
LONGEST_MARK = 64
"""How many bytes before a chunk may belong to a mark that continues in it."""
MAX_HEADER_CHARS = 200
PINGS: Mapping[Wire, bytes] = {
    "anthropic": b'event: ping\ndata: {"type": "ping"}\n\n',
    "openai-chat": b": ping\n\n",
    "openai-responses": b": ping\n\n",
}
"""What fills a silence. Google's own clients read no comments, so a Gemini stream gets none."""


class LastEventFinder:
    """Finds the last event of a stream in chunks that end anywhere.

    The answer is stored before its last event is passed on, so that a client that has seen it all can rely on it.
    """

    def __init__(self, wire: Wire) -> None:
        self._mark, self._words = _LAST_EVENTS[wire], _LAST_EVENT_WORDS[wire]
        self._before = b""
        """The end of what came before: the last line, or a mark may seem to begin a line that was cut here."""
        self.is_certain = wire != "gemini"
        """Whether the mark is only in the last event."""

    def find(self, chunk: bytes) -> int | None:
        """Return where to stop in a chunk so that the last event stays incomplete; None if it is not in there."""
        window = self._before + chunk
        tail = window[-LONGEST_MARK:]
        line = tail.rfind(b"\n")
        # With the three bytes before it, the end of an event is seen that continues in the next chunk.
        self._before = tail[max(0, line - 3) :] if line >= 0 else b"." + tail
        # `find`, because for bytes `in` raises and catches an error first.
        places = [place for word in self._words if (place := window.find(word)) >= 0]
        if not places:
            return None
        found = self._mark.search(window, window.rfind(b"\n", 0, min(places)) + 1)
        if found is None:
            return None
        last = 0
        # None begins inside of another, so each is looked for after the one before.
        for end in EVENT_ENDS if window.find(b"\r") >= 0 else EVENT_ENDS[:1]:
            if (place := window.rfind(end, last, found.start())) >= 0:
                last = place + len(end)
        return max(0, last - len(window) + len(chunk))


def begins_as_stream(data: bytes) -> bool | None:
    """Return whether an answer begins with a line of an event stream; None if too little of it is here."""
    start = data.removeprefix(BOM_UTF8).lstrip()
    if start.startswith(_FIRST_LINES):
        return True
    return None if any(line.startswith(start) for line in (*_FIRST_LINES, BOM_UTF8)) else False


def has_event_end(data: bytes) -> bool:
    """Return whether an event ends in these bytes."""
    return _EVENT_END.search(data) is not None


def split_events(data: bytes) -> tuple[list[bytes], bytes]:
    """Return the whole events at the beginning of a stream, as they came, and what is left."""
    if b"\r" not in data:  # as most providers write them: a tenth of the time that the pattern takes
        *events, rest = data.split(b"\n\n")
        return [event + b"\n\n" for event in events], rest
    ends = [end.end() for end in _EVENT_END.finditer(data)]
    events = [data[start:end] for start, end in pairwise((0, *ends))]
    return events, data[ends[-1] :] if ends else data


class EventSplitter:
    """Splits a stream that comes in pieces into its events, in time that is in proportion to its bytes."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        """What is no whole event yet."""
        self._end = b""
        """Its last bytes: the end of an event may begin in them."""
        self.unread_bytes = 0

    def split(self, piece: bytes) -> list[bytes]:
        """Return the events that end in a piece, as they came."""
        self._pieces.append(piece)
        self.unread_bytes += len(piece)
        window = self._end + piece
        if not has_event_end(window):
            self._end = window[1 - LONGEST_EVENT_END :]
            return []
        events, rest = split_events(self.take_rest())
        self._pieces, self.unread_bytes, self._end = [rest], len(rest), rest[1 - LONGEST_EVENT_END :]
        return events

    def take_rest(self) -> bytes:
        """Return what is no whole event, and begin anew."""
        rest = b"".join(self._pieces)
        self._pieces, self.unread_bytes, self._end = [], 0, b""
        return rest


def event_data(event: bytes) -> bytes:
    """Return the data of an event."""
    lines = event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))


def begins_as_error(data: bytes) -> bool:
    """Return whether an answer begins as the JSON of an error, whatever its status is."""
    return _BARE_ERROR.match(data) is not None


def first_error(data: bytes) -> bytes | None:
    """Return the error that a stream begins with; empty if it begins with something else, None if that is not here yet.

    OpenAI refuses a request as too long with the status 200, after events that only announce an answer. Others answer
    with an error that is no event.
    """
    if _BARE_ERROR.match(data):
        try:
            value = read_json(data)
            return data if is_mapping(value) and value.get("error") else b""
        except ValueError:
            return None
    start = 0
    while end := _EVENT_END.search(data, start):
        text, start = event_data(data[start : end.end()]), end.end()
        if not text:
            continue
        try:
            value = read_json(text)
        except ValueError:
            return b""
        if not is_mapping(value):
            return b""
        kind = str(value.get("type"))
        if kind not in _ANNOUNCEMENTS:
            return text if value.get("error") or kind in {"error", "response.failed"} else b""
    return None


# Answers.

_DECODER = json.JSONDecoder()
_CHAT_STREAM_END = b"\n\ndata: [DONE]\n\n"
CLOSING_EVENTS = 2
"""How many events at the end of a stream are no pieces of text: the reason why it ends, and what it cost."""


class _TextDelta(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    content: str


class _TextChoice(msgspec.Struct, gc=False):
    delta: _TextDelta
    index: Literal[0]
    finish_reason: None
    message: None = None


class _TextEvent(msgspec.Struct, gc=False):
    """An event of OpenAI chat that has one piece of text, and nothing else that an answer is made of."""

    choices: tuple[_TextChoice]
    usage: None = None


_TEXT_EVENTS = msgspec.json.Decoder(list[_TextEvent])


def answer_events(wire: Wire, raw: bytes) -> list[object]:
    """Return the events of an answer: those of a stream, or the JSON of a response without one."""
    raw = raw.removeprefix(BOM_UTF8)  # which servers on .NET write first
    start = raw[:64].lstrip()
    if start.startswith((b"{", b"[")):
        with suppress(ValueError):
            whole = read_as_client(raw)
            return list(whole) if is_list(whole) else [whole]
        return _whole_values(raw)
    if b"\r" in raw:  # JSON has it only escaped
        raw = raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    # Nearly every event is one line: reading all of them at once takes a third of the time.
    if wire == "openai-chat" and raw.startswith(b"data: {") and raw.endswith(_CHAT_STREAM_END):
        with suppress(ValueError):
            return _chat_events(raw[6 : -len(_CHAT_STREAM_END)].split(b"\n\ndata: "))
    if wire in _DONE_WIRES and b"[DONE]" in raw and (done := _DONE.search(raw)):
        raw = raw[: done.start()]  # OpenAI's clients read no further
    texts = [line[5:].lstrip() for line in raw.split(b"\n") if line.startswith(b"data:")]
    lines = [text for text in texts if text.startswith(b"{")]
    with suppress(ValueError):
        return _chat_events(lines) if wire == "openai-chat" else orjson.loads(_array(lines))
    found: list[object] = []
    for event in raw.split(b"\n\n"):
        with suppress(ValueError):
            found.append(read_as_client(event_data(event)))
    return found


def read_as_client(raw: bytes) -> object:
    """Return a JSON value; bytes that are no UTF-8 become U+FFFD, as in most clients. Raises `ValueError`."""
    try:
        return read_json(raw)
    except UnicodeDecodeError:
        return read_json(raw.decode(errors="replace").encode())


def _whole_values(raw: bytes) -> list[object]:
    """Return the values at the beginning of a JSON list that was cut, as Gemini streams one without `alt=sse`."""
    text, found, place = raw.decode(errors="replace"), list[object](), 0
    with suppress(ValueError, RecursionError):
        while start := _next_value(text, place):
            value, place = _DECODER.raw_decode(text, start)
            found.append(value)
    return found


def _next_value(text: str, place: int) -> int:
    """Return where the next value of a JSON list begins, after a bracket or a comma; 0 if there is none."""
    mark = _after_space(text, place)
    return _after_space(text, mark + 1) if text[mark : mark + 1] in ("[", ",") else 0


def _after_space(text: str, place: int) -> int:
    while text[place : place + 1].isspace():
        place += 1
    return place


def _chat_events(lines: list[bytes]) -> list[object]:
    """Return the events of a chat stream, with the text between the first and the last ones as one event."""
    try:
        pieces = _TEXT_EVENTS.decode(_array(lines[1:-CLOSING_EVENTS]))
    except msgspec.MsgspecError:  # there are calls, thinking or something new
        pieces = []
    if not pieces:
        return orjson.loads(_array(lines))
    first, joined, *last = orjson.loads(_array([*lines[:2], *lines[-CLOSING_EVENTS:]]))
    joined["choices"][0]["delta"]["content"] = "".join([piece.choices[0].delta.content for piece in pieces])
    return [first, joined, *last]


def _array(values: list[bytes]) -> bytes:
    return b"[%s]" % b",".join(values)


# Errors.

_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}
_GEMINI_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
FIRST_SERVER_ERROR = 500


def header_line(text: str) -> str:
    """Return a text as the value of a header: one short line."""
    return "".join(char if char.isprintable() else " " for char in text)[:MAX_HEADER_CHARS]


def error_body(provider: Provider, status: int, message: str) -> bytes:
    """Return the body of an error as the provider's API would write it."""
    is_server = status >= FIRST_SERVER_ERROR
    if provider == "anthropic":
        kind = _ANTHROPIC_TYPES.get(status, "api_error" if is_server else "invalid_request_error")
        body: object = {"type": "error", "error": {"type": kind, "message": message}}
    elif provider == "gemini":
        kind = _GEMINI_STATUSES.get(status, "INTERNAL" if is_server else "FAILED_PRECONDITION")
        body = {"error": {"code": status, "message": message, "status": kind}}
    else:
        kind = _OPENAI_TYPES.get(status, "server_error" if is_server else "invalid_request_error")
        body = {"error": {"message": message, "type": kind, "param": None, "code": None}}
    return json.dumps(body, ensure_ascii=False).encode()
