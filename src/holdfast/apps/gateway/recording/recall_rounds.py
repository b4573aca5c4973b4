"""The recall tool for clients that do not have it: the model calls it, the gateway answers, the client sees one answer.

A conversation that asks for it with its first request gets the tool added to its tools, in every request. When the
model calls it, the provider is asked again with the result, and a client gets the pieces of all rounds as one answer,
with ids, indexes and usage that fit together. What it never sees, the calls and their results, is in the log and in
every later request, so that what the provider has cached stays valid.

Everything here is about the forms of the four APIs, and changes nothing but its own state.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from holdfast.apps.gateway.encodings import BodyTooLargeError
from holdfast.apps.gateway.provider_apis import EventSplitter, event_data, read_as_client
from holdfast.apps.gateway.recording.client_body import ClientBody, members_of, read_json, write_json, write_json_line
from holdfast.core.conversation.shorten import RECALL_TOOL
from holdfast.core.recall.query import RECALL_DESCRIPTION, RECALL_PARAMETERS
from holdfast.wire.answers import JsonMapping, JsonObject, Wire
from holdfast.wire.json_reader import as_object, is_list, is_mapping, objects_in

MAX_ROUND_BYTES = 64 << 20
"""How large an event of a stream may be, and an answer without one, so that the gateway reads it."""
MAX_RECALL_ROUNDS = 8
"""How often a model may recall within one answer."""
NO_MORE_ROUNDS = (
    f"[Recall: it was called {MAX_RECALL_ROUNDS} times for this answer, which is the limit. Answer with what you have.]"
)
_DECLARATION: JsonObject = {"name": RECALL_TOOL, "description": RECALL_DESCRIPTION}
RECALL_DEFINITIONS: Mapping[Wire, JsonObject] = {
    "openai-chat": {"type": "function", "function": _DECLARATION | {"parameters": RECALL_PARAMETERS}},
    "openai-responses": {"type": "function", **_DECLARATION, "parameters": RECALL_PARAMETERS, "strict": False},
    "anthropic": _DECLARATION | {"input_schema": RECALL_PARAMETERS},
    "gemini": _DECLARATION | {"parametersJsonSchema": RECALL_PARAMETERS},
}
"""The tool as the requests of each API have it."""
_DECLARED = ("functionDeclarations", "function_declarations")
_CALL_LISTS: Mapping[Wire, str] = {"openai-chat": "tool_calls", "anthropic": "content", "gemini": "parts"}
"""The member of a message that holds its calls; an item of Responses is a call itself."""
_RUN_BY_PROVIDER = frozenset(
    {"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"}
)
"""Items whose results the provider adds by itself."""
_LAST_EVENTS = ("message_stop", "response.completed", "response.incomplete", "response.failed", "error")
"""The last events of streams that end with an event of their own."""
_DONE = b"[DONE]"
"""The data with which a chat ends, which is no JSON."""
_JOINED_TEXTS = ("content", "refusal", "reasoning_content", "reasoning", "reasoning_details")
_CUT_SHORT = frozenset({"length", "content_filter"})
Stop: TypeAlias = Literal["", "called", "other"]
"""Why a round ended: it did not; so that calls are answered; for another reason."""


# The tool.


def tools_with_recall(body: ClientBody) -> bytes | None:
    """Return the tools of a request with the recall tool as the last one; None if it cannot have it.

    The client may have a tool of that name, or only tools that Gemini does not combine with functions.
    """
    wire, raw = body.wire, bytes(body.tools_slice).strip()
    if RECALL_TOOL in body.tool_names:
        return None
    own = write_json(RECALL_DEFINITIONS[wire])
    tools = read_json(raw)
    if not is_list(tools) or not tools:
        return b'[{"functionDeclarations":[%s]}]' % own if wire == "gemini" else b"[%s]" % own
    if wire != "gemini":
        return b"%s,%s]" % (raw[:-1].rstrip(), own)
    for at, tool in enumerate(tools):
        name = next((name for name in _DECLARED if is_mapping(tool) and is_list(tool.get(name))), None)
        if is_mapping(tool) and name is not None:
            declared = {**tool, name: [*tool[name], RECALL_DEFINITIONS[wire]]}
            return write_json([*tools[:at], declared, *tools[at + 1 :]])
    return None


def has_one_choice(wire: Wire, raw: bytes) -> bool:
    """Return whether a request asks for one answer; only then can it be continued."""
    count: object = None
    if wire == "openai-chat" and b'"n"' in raw:
        count = read_json(members_of(raw).get("n", b"null"))
    elif wire == "gemini" and b"andidate" in raw:
        config = read_json(members_of(raw).get("generationConfig", b"null"))
        count = config.get("candidateCount", config.get("candidate_count")) if is_mapping(config) else None
    return count is None or count == 1


# Calls and results.


@dataclass(frozen=True, slots=True)
class RecallCall:
    """A call of the recall tool."""

    id: str
    arguments: Mapping[str, object]


def _name_of(wire: Wire, item: JsonMapping) -> object:
    """Return the name of the tool that an item calls; None if it calls none that the client has to run."""
    match wire:
        case "openai-chat":
            return as_object(item.get("function")).get("name") or item.get("type")
        case "anthropic":
            return item.get("name") if item.get("type") == "tool_use" else None
        case "gemini":
            return item["functionCall"].get("name") if is_mapping(item.get("functionCall")) else None
        case "openai-responses":
            kind = str(item.get("type"))
            waits = (kind.endswith("_call") and kind not in _RUN_BY_PROVIDER) or kind == "mcp_approval_request"
            return (item.get("name") or kind) if waits else None


def _items(wire: Wire, native: JsonMapping) -> list[JsonMapping]:
    if wire == "openai-responses":
        return [native]
    return [*objects_in(native.get(_CALL_LISTS[wire]))]


def recall_calls(wire: Wire, natives: Sequence[JsonMapping]) -> list[RecallCall]:
    """Return the calls of our tool in an answer."""
    return [
        _read_call(wire, item)
        for native in natives
        for item in _items(wire, native)
        if _name_of(wire, item) == RECALL_TOOL
    ]


def has_other_calls(wire: Wire, natives: Sequence[JsonMapping]) -> bool:
    """Return whether an answer has calls that the client has to answer."""
    names = [_name_of(wire, item) for native in natives for item in _items(wire, native)]
    return any(name not in (None, RECALL_TOOL) for name in names)


def _read_call(wire: Wire, item: JsonMapping) -> RecallCall:
    match wire:
        case "openai-chat":
            return RecallCall(str(item.get("id") or ""), _parsed(as_object(item.get("function")).get("arguments")))
        case "anthropic":
            return RecallCall(str(item.get("id") or ""), as_object(item.get("input")))
        case "gemini":
            return RecallCall(str(item["functionCall"].get("id") or ""), as_object(item["functionCall"].get("args")))
        case "openai-responses":
            return RecallCall(str(item.get("call_id") or ""), _parsed(item.get("arguments")))


def _parsed(arguments: object) -> JsonObject:
    """Return the arguments that a model wrote as JSON; empty if they are not: the tool says what it needs."""
    try:
        return as_object(json.loads(arguments) if isinstance(arguments, str) else arguments)
    except (ValueError, RecursionError):
        return {}


def recall_results(wire: Wire, calls: Sequence[RecallCall], texts: Sequence[str]) -> list[JsonObject]:
    """Return the messages that answer calls."""
    pairs = list(zip(calls, texts, strict=True))
    match wire:
        case "openai-chat":
            return [{"role": "tool", "tool_call_id": call.id, "content": text} for call, text in pairs]
        case "anthropic":
            blocks = [{"type": "tool_result", "tool_use_id": call.id, "content": text} for call, text in pairs]
            return [{"role": "user", "content": blocks}]
        case "gemini":
            answers = [
                ({"id": call.id} if call.id else {}) | {"name": RECALL_TOOL, "response": {"output": text}}
                for call, text in pairs
            ]
            return [{"role": "user", "parts": [{"functionResponse": answer} for answer in answers]}]
        case "openai-responses":
            return [{"type": "function_call_output", "call_id": call.id, "output": text} for call, text in pairs]


def is_recall_result(wire: Wire, native: JsonMapping, call_ids: frozenset[str]) -> bool:
    """Return whether a message answers only calls of our tool, which had these ids."""
    match wire:
        case "openai-chat":
            return native.get("role") == "tool" and native.get("tool_call_id") in call_ids
        case "openai-responses":
            return native.get("type") == "function_call_output" and native.get("call_id") in call_ids
        case "anthropic":
            blocks = _items(wire, native)
            return bool(blocks) and all(
                block.get("type") == "tool_result" and block.get("tool_use_id") in call_ids for block in blocks
            )
        case "gemini":
            parts = _items(wire, native)
            return bool(parts) and all(
                as_object(part.get("functionResponse")).get("name") == RECALL_TOOL for part in parts
            )


def without_recall_calls(wire: Wire, natives: Sequence[JsonMapping]) -> list[JsonMapping]:
    """Return an answer without calls of our tool."""
    if wire == "openai-responses":
        return [native for native in natives if _name_of(wire, native) != RECALL_TOOL]
    return [_without_own_calls(wire, native) for native in natives]


def _without_own_calls(wire: Wire, native: JsonMapping) -> JsonMapping:
    items, member = _items(wire, native), _CALL_LISTS[wire]
    kept = [item for item in items if _name_of(wire, item) != RECALL_TOOL]
    if len(kept) == len(items):
        return native
    if not kept and wire == "openai-chat":
        return {name: value for name, value in native.items() if name != member}
    return {**native, member: kept}


def joined_message(wire: Wire, natives: Sequence[JsonMapping]) -> JsonObject:
    """Return the messages of an answer's rounds as the one message that the client has."""
    visible = [_without_own_calls(wire, native) for native in natives]
    member = _CALL_LISTS[wire]
    joined: JsonObject = {**visible[0]}
    for native in visible[1:]:
        listed = [*_items(wire, joined), *_items(wire, native)]
        texts = {name: (joined.get(name), native.get(name)) for name in _JOINED_TEXTS if wire == "openai-chat"}
        joined |= native
        joined |= {name: _joined_texts(one, two) for name, (one, two) in texts.items() if one or two}
        if listed or member in joined:
            joined[member] = listed
    return joined


def _joined_texts(one: object, two: object) -> object:
    """Return two texts, or lists of blocks as Mistral writes them, as one."""
    if not is_list(one) and not is_list(two):
        return "".join(text for text in (one, two) if isinstance(text, str))
    blocks: list[object] = []
    for value in (one, two):
        blocks += value if is_list(value) else [{"type": "text", "text": value}] if value else []
    return blocks


def with_messages(wire: Wire, raw: bytes, natives: Sequence[JsonMapping]) -> bytes:
    """Return the value of a list of messages with more messages after them; a text is a prompt of Responses."""
    added = b",".join(map(write_json, natives))
    listed = raw.strip()
    if wire == "openai-responses" and listed.startswith(b'"'):
        listed = b'[{"role":"user","content":%s}]' % listed
    return b"%s,%s]" % (listed[:-1].rstrip(), added) if listed[1:-1].strip() else b"[%s]" % added


# Usage.


def summed_usage(one: JsonMapping, two: JsonMapping) -> JsonObject:
    """Return the usage of two rounds together; a member that is no number is that of the later one."""
    summed: JsonObject = {**one, **{name: value for name, value in two.items() if value is not None}}
    for name in one.keys() & two.keys():
        first, second = one[name], two[name]
        if is_mapping(first) and is_mapping(second):
            summed[name] = summed_usage(first, second)
        elif _is_count(first) and _is_count(second):
            summed[name] = first + second
        elif is_list(first) and is_list(second):
            summed[name] = _summed_details(first, second)
    return summed


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _summed_details(one: Sequence[object], two: Sequence[object]) -> list[object]:
    """Return Gemini's counts by modality, summed."""
    counts: dict[object, JsonObject] = {}
    for detail in (*one, *two):
        if not is_mapping(detail) or not _is_count(detail.get("tokenCount")):
            return list(two)
        known = counts.setdefault(detail.get("modality"), {**detail, "tokenCount": 0})
        known["tokenCount"] += detail["tokenCount"]
    return list(counts.values())


# Answers without a stream.


def joined_answer(wire: Wire, rounds: Sequence[JsonObject]) -> JsonObject:
    """Return the answers of all rounds as one: the last one, with what the others said and cost."""
    last: JsonObject = {**rounds[-1]}
    member = "usageMetadata" if wire == "gemini" else "usage"
    usage: JsonMapping = {}
    for one in rounds:
        usage = summed_usage(usage, as_object(one.get(member)))
    if usage:
        last[member] = usage
    match wire:
        case "openai-chat":
            message = joined_message(wire, [as_object(_first(one.get("choices")).get("message")) for one in rounds])
            choice = {**_first(last.get("choices")), "message": message}
            if choice.get("finish_reason") == "tool_calls" and not message.get("tool_calls"):
                choice["finish_reason"] = "stop"
            last["choices"] = [choice]
        case "anthropic":
            last["content"] = [block for one in rounds for block in _visible(wire, one)]
            if last.get("stop_reason") == "tool_use" and not has_other_calls(wire, [last]):
                last["stop_reason"] = "end_turn"
        case "openai-responses":
            listed = [item for one in rounds for item in objects_in(one.get("output"))]
            last["output"] = without_recall_calls(wire, listed)
        case "gemini":
            candidates = [_first(one.get("candidates")) for one in rounds]
            parts = [part for one in candidates for part in _visible(wire, as_object(one.get("content")))]
            content = {**as_object(candidates[-1].get("content")), "parts": parts}
            last["candidates"] = [{**candidates[-1], "content": content}]
    return last


def _visible(wire: Wire, native: JsonMapping) -> list[JsonMapping]:
    return [item for item in _items(wire, native) if _name_of(wire, item) != RECALL_TOOL]


def stop_of(wire: Wire, answer: JsonMapping) -> Stop:
    """Return why an answer without a stream ended."""
    match wire:
        case "openai-chat":
            return _stop(_first(answer.get("choices")).get("finish_reason"), _CUT_SHORT)
        case "anthropic":
            return "called" if answer.get("stop_reason") == "tool_use" else "other"
        case "openai-responses":
            return "called" if answer.get("status") == "completed" else "other"
        case "gemini":
            return "called" if _first(answer.get("candidates")).get("finishReason") == "STOP" else "other"


def _stop(reason: object, cut_short: frozenset[str]) -> Stop:
    return "" if reason is None else "other" if reason in cut_short else "called"


# Streams.


class StreamJoiner(Protocol):
    """Joins the streams of an answer's rounds; `add` and `end` return the events that the client gets.

    An event that the client gets as it came is returned as the same object.
    """

    stop: Stop
    """Why the running round ended."""

    def add(self, event: JsonObject) -> list[JsonObject]:
        """Take an event of the running round; its last events are held back."""
        ...

    def continue_round(self) -> list[JsonObject]:
        """Begin another round; what was held back is dropped, but for what it said."""
        ...

    def end(self) -> list[JsonObject]:
        """Return the end of the answer, which was held back."""
        ...


class _ChatJoiner:
    """Chat completions: pieces of one message, its calls numbered by `index`."""

    def __init__(self) -> None:
        self.stop: Stop = ""
        self._names: JsonObject | None = None
        """The members that are the same in all events of a stream."""
        self._own: set[object] = set()
        self._indexes: dict[object, int] = {}
        """By the index of a call in this round, that for the client."""
        self._calls = 0
        self._held: list[JsonObject] = []
        self._usage: JsonMapping = {}
        """What the rounds before have cost."""
        self._round_usage: JsonMapping = {}
        self._is_first = True

    def add(self, event: JsonObject) -> list[JsonObject]:
        if self._names is None:
            self._names = {name: event[name] for name in ("id", "created") if name in event}
        if is_mapping(event.get("usage")):
            self._round_usage = event["usage"]
        choice = _first(event.get("choices"))
        if not choice:
            if is_mapping(event.get("usage")) or self.stop:
                self._held.append(event)
                return []
            return [event]
        shown = self._shown(event, choice)
        if choice.get("finish_reason"):  # some servers have an empty one in every event
            self.stop = _stop(choice["finish_reason"], _CUT_SHORT)
            self._held.append(shown or event)
            return []
        return [] if shown is None else [shown]

    def _shown(self, event: JsonObject, choice: JsonObject) -> JsonObject | None:
        """Return an event as the client gets it; None if nothing of it is for the client."""
        given = as_object(choice.get("delta"))
        delta: JsonObject = {**given}
        if is_list(given.get("tool_calls")):
            delta["tool_calls"] = self._shown_calls(objects_in(given["tool_calls"]))
            if not delta["tool_calls"]:
                del delta["tool_calls"]
        if not self._is_first:
            delta.pop("role", None)
        if delta == given and self._is_first:
            return event
        if not any(delta.values()) and not choice.get("finish_reason"):
            return None
        return {**event, **(self._names or {}), "choices": [{**choice, "delta": delta}]}

    def _shown_calls(self, pieces: list[JsonObject]) -> list[JsonObject]:
        shown: list[JsonObject] = []
        for number, piece in enumerate(pieces):
            index = piece.get("index", number)
            if as_object(piece.get("function")).get("name") == RECALL_TOOL:
                self._own.add(index)
            if index in self._own:
                continue
            if index not in self._indexes:
                self._indexes[index] = self._calls
                self._calls += 1
            at = self._indexes[index]
            shown.append(piece if piece.get("index") == at else {**piece, "index": at})
        return shown

    def continue_round(self) -> list[JsonObject]:
        self._usage = summed_usage(self._usage, self._round_usage)
        held, self._held, self._round_usage = self._held, [], {}
        self.stop, self._is_first = "", False
        self._own, self._indexes = set(), {}
        return [
            {**event, "choices": [{**choice, "finish_reason": None}]}
            for event in held
            if (choice := _first(event.get("choices"))) and any(as_object(choice.get("delta")).values())
        ]

    def end(self) -> list[JsonObject]:
        shown: list[JsonObject] = []
        for held in self._held:
            event, choice = held, _first(held.get("choices"))
            if choice.get("finish_reason") == "tool_calls" and not self._calls:
                event = {**event, "choices": [{**choice, "finish_reason": "stop"}]}
            if self._usage and is_mapping(held.get("usage")):
                event = {**event, "usage": summed_usage(self._usage, held["usage"])}
            shown.append(event if self._is_first else {**event, **(self._names or {})})
        self._held = []
        return shown


class _AnthropicJoiner:
    """Anthropic Messages: numbered blocks between the start of a message and its end."""

    def __init__(self) -> None:
        self.stop: Stop = ""
        self._indexes: dict[object, int | None] = {}
        """By the index of a block in this round, that for the client; None for a call of ours."""
        self._blocks = self._calls = 0
        self._held: list[JsonObject] = []
        self._usage: JsonMapping = {}
        self._round_usage: JsonMapping = {}
        self._is_first = True

    def add(self, event: JsonObject) -> list[JsonObject]:
        match event.get("type"):
            case "message_start":
                self._round_usage = as_object(as_object(event.get("message")).get("usage"))
                return [event] if self._is_first else []
            case "content_block_start" | "content_block_delta" | "content_block_stop":
                return self._add_block_event(event)
            case "message_delta":
                reported = as_object(event.get("usage"))
                self._round_usage = {**self._round_usage, **{k: v for k, v in reported.items() if v is not None}}
                self.stop = "called" if as_object(event.get("delta")).get("stop_reason") == "tool_use" else "other"
                self._held.append(event)
                return []
            case "message_stop":
                self._held.append(event)
                return []
            case _:
                return [event]

    def _add_block_event(self, event: JsonObject) -> list[JsonObject]:
        index = event.get("index")
        if event["type"] == "content_block_start":
            block = as_object(event.get("content_block"))
            if _name_of("anthropic", block) == RECALL_TOOL:
                self._indexes[index] = None
            else:
                self._calls += block.get("type") == "tool_use"
                self._indexes[index] = self._blocks
                self._blocks += 1
        number = self._indexes.get(index)
        if number is None:
            return []
        return [event if number == index else {**event, "index": number}]

    def continue_round(self) -> list[JsonObject]:
        self._usage = summed_usage(self._usage, self._round_usage)
        self._held, self._round_usage, self._indexes = [], {}, {}
        self.stop, self._is_first = "", False
        return []

    def end(self) -> list[JsonObject]:
        held, self._held = self._held, []
        return [self._end_event(event) if event.get("type") == "message_delta" else event for event in held]

    def _end_event(self, event: JsonObject) -> JsonObject:
        delta = as_object(event.get("delta"))
        if delta.get("stop_reason") == "tool_use" and not self._calls:
            event = {**event, "delta": {**delta, "stop_reason": "end_turn"}}
        return event if self._is_first else {**event, "usage": summed_usage(self._usage, self._round_usage)}


class _ResponsesJoiner:
    """Responses: numbered events of numbered items, and the whole response in the last event."""

    def __init__(self) -> None:
        self.stop: Stop = ""
        self._names: JsonObject = {}
        """The members that are the same in all forms of a response."""
        self._indexes: dict[object, int | None] = {}
        self._items = self._events = 0
        self._output: list[JsonMapping] = []
        """The items of the rounds before."""
        self._held: list[JsonObject] = []
        self._usage: JsonMapping = {}
        self._is_first = True

    def add(self, event: JsonObject) -> list[JsonObject]:
        kind, response = event.get("type"), as_object(event.get("response"))
        if kind in {"response.created", "response.in_progress", "response.queued"}:
            if not self._is_first:
                return []
            self._names = {name: response[name] for name in ("id", "created_at") if name in response}
        elif kind in {"response.completed", "response.incomplete", "response.failed"}:
            self.stop = "called" if kind == "response.completed" else "other"
            self._held.append(event)
            return []
        if "output_index" in event:
            index = event["output_index"]
            if kind == "response.output_item.added":
                is_own = _name_of("openai-responses", as_object(event.get("item"))) == RECALL_TOOL
                self._indexes[index] = None if is_own else self._items
                self._items += not is_own
            number = self._indexes.get(index)
            if number is None:
                return []
            event = event if number == index else {**event, "output_index": number}
        return [self._numbered(event)]

    def _numbered(self, event: JsonObject) -> JsonObject:
        number, self._events = self._events, self._events + 1
        return event if event.get("sequence_number", number) == number else {**event, "sequence_number": number}

    def continue_round(self) -> list[JsonObject]:
        for event in self._held:
            response = as_object(event.get("response"))
            self._usage = summed_usage(self._usage, as_object(response.get("usage")))
            self._output += without_recall_calls("openai-responses", objects_in(response.get("output")))
        self._held, self._indexes = [], {}
        self.stop, self._is_first = "", False
        return []

    def end(self) -> list[JsonObject]:
        held, self._held = self._held, []
        return [self._numbered(self._end_event(event)) for event in held]

    def _end_event(self, event: JsonObject) -> JsonObject:
        response = as_object(event.get("response"))
        listed = objects_in(response.get("output"))
        visible = without_recall_calls("openai-responses", listed)
        if self._is_first and len(visible) == len(listed):
            return event
        whole: JsonObject = {**response, **self._names, "output": [*self._output, *visible]}
        if self._usage and is_mapping(response.get("usage")):
            whole["usage"] = summed_usage(self._usage, response["usage"])
        return {**event, "response": whole}


class _GeminiJoiner:
    """Gemini: chunks of parts; the last one has a reason why it ends, but others may have one too."""

    def __init__(self) -> None:
        self.stop: Stop = ""
        self._response_id: object = None
        self._held: JsonObject | None = None
        self._usage: JsonMapping = {}
        self._round_usage: JsonMapping = {}
        self._is_first = True
        self._is_recalling = False
        """Whether arguments of a recall call are still to come, in parts without its name."""

    def add(self, event: JsonObject) -> list[JsonObject]:
        self._response_id = self._response_id or event.get("responseId")
        self._round_usage = as_object(event.get("usageMetadata")) or self._round_usage
        before = [] if self._held is None else [self._held]
        self._held = None
        candidate = _first(event.get("candidates"))
        shown = self._shown(event, candidate)
        if reason := candidate.get("finishReason"):
            self.stop = "called" if reason == "STOP" else "other"
            self._held = shown or event
            return before
        return before if shown is None else [*before, shown]

    def _shown(self, event: JsonObject, candidate: JsonObject) -> JsonObject | None:
        content = as_object(candidate.get("content"))
        parts = _items("gemini", content)
        visible = [part for part in parts if "functionCall" not in part or not self._is_recall(part["functionCall"])]
        if len(visible) < len(parts):
            if not visible and not candidate.get("finishReason"):
                return None
            event = {**event, "candidates": [{**candidate, "content": {**content, "parts": visible}}]}
        if self._is_first:
            return event
        event = {**event} if self._response_id is None else {**event, "responseId": self._response_id}
        if is_mapping(event.get("usageMetadata")):
            event["usageMetadata"] = summed_usage(self._usage, event["usageMetadata"])
        return event

    def _is_recall(self, value: object) -> bool:
        """Return whether a call, or the next piece of one, is one of our tool."""
        call = as_object(value)
        name = call.get("name")
        is_recall = name == RECALL_TOOL or (not name and self._is_recalling)
        self._is_recalling = is_recall and bool(call.get("willContinue"))
        return is_recall

    def continue_round(self) -> list[JsonObject]:
        held, self._held = self._held, None
        self._usage = summed_usage(self._usage, self._round_usage)
        self.stop, self._round_usage, self._is_first = "", {}, False
        if held is None:
            return []
        candidate = _first(held.get("candidates"))
        if not _items("gemini", as_object(candidate.get("content"))):
            return []
        return [{**held, "candidates": [{name: candidate[name] for name in candidate if name != "finishReason"}]}]

    def end(self) -> list[JsonObject]:
        held, self._held = self._held, None
        return [] if held is None else [held]


_JOINERS: Mapping[Wire, Callable[[], StreamJoiner]] = {
    "openai-chat": _ChatJoiner,
    "openai-responses": _ResponsesJoiner,
    "anthropic": _AnthropicJoiner,
    "gemini": _GeminiJoiner,
}


class AnswerRounds:
    """The rounds of one answer, as bytes come from the provider and go to the client.

    A stream is passed on as it comes; any other answer is collected and joined at its end.
    """

    def __init__(self, wire: Wire, *, is_stream: bool, is_list: bool = False) -> None:
        """`is_list` says that an answer without a stream is the list of its events, as Gemini's may be."""
        self._wire: Wire = wire
        self._is_stream, self._is_list = is_stream, is_list
        self._joiner = _JOINERS[wire]()
        self._splitter = EventSplitter()
        """Has what is no whole event yet."""
        self._pieces: list[bytes] = []
        """Without a stream, the running round as far as it came."""
        self._size = 0
        self._whole = b""
        """Without a stream, all of the last round that has ended."""
        self._is_passed_on = False
        """Whether an event is too large to be read, so that the rest of the stream is passed on as it comes."""
        self._last_marks: list[bytes] = []
        """The ends of streams that are no event of their API."""
        self._answers: list[JsonObject] = []
        """Without a stream, the rounds so far, or the events that the client gets in the end."""
        self._is_changed = False
        self.is_over = False
        """Whether the last event of the running round is here."""

    def add(self, data: bytes) -> bytes:
        """Take bytes of the running round, and return what the client gets now.

        Raises `BodyTooLargeError` if an answer without a stream is too large to be kept.
        """
        if self._is_passed_on:
            return data
        if not self._is_stream:
            self._pieces.append(data)
            self._size += len(data)
            if self._size > MAX_ROUND_BYTES:
                raise BodyTooLargeError
            return b""
        shown = b"".join(map(self._add_event, self._splitter.split(data)))
        if self._splitter.unread_bytes > MAX_ROUND_BYTES:
            self._is_passed_on = True
            return shown + self._splitter.take_rest()
        return shown

    def _add_event(self, raw: bytes) -> bytes:
        data = event_data(raw)
        if data == _DONE:
            self.is_over = True
            self._last_marks.append(raw)
            return b""
        try:
            event = as_object(read_as_client(data))
        except ValueError:
            event = JsonObject()
        if not event:
            return raw
        self.is_over = self.is_over or event.get("type") in _LAST_EVENTS
        return self._encoded(self._joiner.add(event), raw, event)

    def _encoded(self, events: Sequence[JsonObject], raw: bytes = b"", unchanged: object = None) -> bytes:
        return b"".join(raw if event is unchanged else encoded_event(self._wire, event) for event in events)

    def end_round(self) -> Stop:
        """Return why the running round has ended."""
        if self._is_stream:
            return self._joiner.stop
        self._whole = b"".join(self._pieces)
        try:
            value = read_as_client(self._whole)
        except ValueError:
            return ""
        if self._is_list:
            events = objects_in(value)
            shown = [one for event in events for one in self._joiner.add(event)]
            self._is_changed = self._is_changed or len(shown) < len(events) - 1
            self._answers += shown
            return self._joiner.stop
        self._answers += objects_in([value])
        return stop_of(self._wire, self._answers[-1]) if self._answers else ""

    def next_round(self) -> bytes:
        """Begin another round, and return what is left of this one for the client."""
        events = self._joiner.continue_round()
        self._splitter, self._pieces, self._size = EventSplitter(), [], 0
        self._last_marks, self.is_over, self._is_changed = [], False, True
        if self._is_stream:
            return self._encoded(events)
        if self._is_list:
            self._answers += events
        return b""

    def end(self) -> bytes:
        """Return the end of the answer, or all of it if there was no stream."""
        if self._is_stream:
            return self._encoded(self._joiner.end()) + b"".join(self._last_marks) + self._splitter.take_rest()
        if not self._answers:
            return self._whole  # it is not what this API answers
        if self._is_list:
            joined: object = [*self._answers, *self._joiner.end()]
            return write_json(joined) if self._is_changed else self._whole
        joined = joined_answer(self._wire, self._answers)
        return self._whole if joined == self._answers[0] else write_json(joined)


def encoded_event(wire: Wire, event: JsonMapping) -> bytes:
    """Return an event as a stream of the wire has it."""
    name = (
        b"event: %s\n" % str(event.get("type")).encode(errors="replace")
        if wire in {"anthropic", "openai-responses"}
        else b""
    )
    return b"%sdata: %s\n\n" % (name, write_json_line(event))


def error_event(wire: Wire, body: bytes) -> bytes:
    """Return an error of a provider as an event of a stream that has begun; `body` is what it answered."""
    try:
        value = read_json(body)
    except ValueError:
        value = None
    error: JsonMapping = (
        value
        if is_mapping(value) and "error" in value
        else {"error": {"type": "api_error", "message": body[:1_000].decode(errors="replace")}}
    )
    if wire == "anthropic":
        return encoded_event(wire, {**error, "type": "error"})
    if wire == "openai-responses":
        inner = as_object(error.get("error"))
        said = {name: inner.get(name) for name in ("code", "message", "param")}
        return encoded_event(wire, {**error, **said, "type": "error"})
    return encoded_event(wire, error)


def _first(value: object) -> JsonObject:
    return next(iter(objects_in(value)), JsonObject())
