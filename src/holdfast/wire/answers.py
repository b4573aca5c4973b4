"""The answer of a provider, put together from its stream, as a client sends it back with its next request.

Each wire sends an answer in pieces of its own. `read_answer` takes the events of a stream, or the one object of a
response without a stream, and returns the same messages for both. A stream may end at any point: what came is
returned, without calls whose arguments are not whole, and the answer says that it is not complete. If the provider
ends an answer in the middle of a call, because it reached its limit, the call has the arguments that came.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, cast

from holdfast.wire.json_reader import as_object, objects_in

Wire: TypeAlias = Literal["openai-chat", "openai-responses", "anthropic", "gemini"]
"""A provider's API: its paths, its requests and its streams."""
JsonObject: TypeAlias = dict[str, Any]
JsonMapping: TypeAlias = Mapping[str, Any]
_FUNCTION_CALL = -1
"""The index of a call in the older form, of which a message has one."""
_APPENDED_TEXTS = ("content", "refusal", "reasoning_content", "reasoning")
_BLOCK_LISTS = ("content", "reasoning_details", "images", "annotations")
"""Members of a chat delta that may be lists: Mistral's thinking and references, OpenRouter's reasoning and images, and
what an answer refers to."""
_SOUND = ("data", "transcript")
"""The pieces of a spoken answer: the sound is not kept, because an answer is sent back by its id."""
_CALL_TEXTS = {"function": ("name", "arguments"), "custom": ("name", "input")}
_NEEDS_ITS_END = ("tool_use", "server_tool_use", "mcp_tool_use", "thinking", "redacted_thinking", "compaction")
"""Blocks that cannot be sent again in part: a call without its arguments, thinking without its signature. A part of a
compaction would stand for all that was said before it."""
_PROGRESS = ("estimated_tokens",)
"""Members of a piece of thinking that tell how far it is. A block with one is refused."""
_PIECE_TYPES = ("text", "thinking")
"""Blocks whose pieces say what they are a part of."""
_CUT_ARGUMENTS = "arguments"
"""The member of an Anthropic call's input that has the text of arguments that are no JSON: an input is an object."""
_PATH_STEP = r"""\.([^.\[\]]+)|\[(\d{1,6})\]|\[('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]"""
"""A step of a JSON path: a name, an index, or a name in quotes."""
_ARGUMENT_VALUES = ("stringValue", "numberValue", "boolValue")
"""The values that a piece of an argument may have; any other piece is null."""
_PART_EVENTS = ("response.output_text.", "response.refusal.", "response.content_part.")
_PART_TEXTS = {"output_text": "text", "refusal": "refusal"}
"""The member that has the text of a part of a message."""
_RESPONSE_ENDS = ("response.completed", "response.incomplete", "response.failed")


@dataclass(slots=True)
class Answer:
    """What a provider answered, as far as it came."""

    messages: list[JsonObject] = field(default_factory=list[JsonObject])
    """The messages or items of the answer, in the format of the request."""
    is_complete: bool = False
    """Whether the provider said that the answer ends here."""
    usage: Mapping[str, object] | None = None
    """What was billed, as the provider reported it."""
    model: str | None = None
    response_id: str | None = None


def read_answer(wire: Wire, events: Iterable[object]) -> Answer:
    """Return the answer of a stream's events; a response without a stream is one event."""
    reader = _READERS[wire]()
    for event in events:
        if isinstance(event, dict):
            reader.add(cast("JsonObject", event))
    return reader.answer()


def answer_text(answer: Answer) -> str:
    """Return the text of an answer, without thinking and calls."""
    texts: list[str] = []
    for message in answer.messages:
        content = message.get("content", message.get("parts"))
        spoken = as_object(message.get("audio")).get("transcript")
        texts += [text for text in (content, spoken) if isinstance(text, str)]
        texts += [
            text
            for block in objects_in(content)
            if not block.get("thought") and isinstance(text := block.get("text"), str)
        ]
    return "".join(texts)


def argument_texts(answer: Answer) -> list[str]:
    """Return the texts among the arguments of an answer's calls."""
    found: list[str] = []
    for message in answer.messages:
        blocks = objects_in(message.get("content")) + objects_in(message.get("parts"))
        calls = [as_object(call.get("function")).get("arguments") for call in objects_in(message.get("tool_calls"))]
        calls += [message.get("arguments"), *(block.get("input") for block in blocks)]
        calls += [as_object(block.get("functionCall")).get("args") for block in blocks]
        for call in calls:
            value = json.loads(call) if isinstance(call, str) and _is_json(call) else call
            found += [text for text in as_object(value).values() if isinstance(text, str)]
    return found


def has_cut_arguments(wire: Wire, call: JsonMapping) -> bool:
    """Return whether the arguments of a recorded call are not whole, because its answer reached its limit."""
    if wire == "anthropic":
        given = as_object(call.get("input"))
        text = given.get(_CUT_ARGUMENTS) if len(given) == 1 else None
    else:
        text = (as_object(call.get("function")) if wire == "openai-chat" else call).get("arguments")
    return isinstance(text, str) and bool(text) and not _is_json(text)


class _Reader(Protocol):
    """Collects the events of one stream."""

    def add(self, event: JsonObject) -> None: ...

    def answer(self) -> Answer: ...


class _JoinedBlocks:
    """Blocks that arrive in pieces. Their texts are joined once, at the end: one by one takes quadratic time."""

    def __init__(self) -> None:
        self._blocks: list[JsonObject] = []
        self._texts: list[dict[str, list[str]]] = []
        self._lists: list[dict[str, _JoinedBlocks]] = []

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def add(self, piece: JsonObject) -> None:
        """Add a piece, to the last block if it continues that one."""
        names = ("type", "index")
        is_same = bool(self._blocks) and all(self._blocks[-1].get(name) == piece.get(name) for name in names)
        if not is_same or not ("index" in piece or piece.get("type") in {"text", "thinking"}):
            self._blocks.append({})
            self._texts.append({})
            self._lists.append({})
        for name, value in piece.items():
            if name in {"text", "summary"} and isinstance(value, str):
                self._texts[-1].setdefault(name, []).append(value)
            elif name == "thinking" and isinstance(value, list):
                inner = self._lists[-1].setdefault(name, _JoinedBlocks())
                for one in objects_in(cast("object", value)):
                    inner.add(one)
            elif value is not None:
                self._blocks[-1][name] = value

    def whole(self) -> list[JsonObject]:
        """Return the blocks as far as they came."""
        return [
            block
            | {name: inner.whole() for name, inner in lists.items()}
            | {name: _joined_text(pieces) for name, pieces in texts.items()}
            for block, lists, texts in zip(self._blocks, self._lists, self._texts, strict=True)
        ]


class _ChatReader:
    """OpenAI chat completions: deltas of one message, its calls numbered by `index`."""

    def __init__(self) -> None:
        self._answer = Answer()
        self._texts: dict[str, list[str]] = {}
        self._blocks = {name: _JoinedBlocks() for name in _BLOCK_LISTS}
        self._audio: JsonObject = {}
        self._transcript: list[str] = []
        self._calls: dict[int, JsonObject] = {}
        self._call_texts: dict[tuple[int, str, str], list[str]] = {}
        """By index, kind and member, the pieces of a call's name and of its arguments."""
        self._renumbered: dict[int, int] = {}
        """By index that a provider has used for several calls, the number of the newest of them."""
        self._has_deltas = False

    def add(self, event: JsonObject) -> None:
        # Nearly every event is one more piece of text, and nothing else in it matters.
        try:
            choice = event["choices"][0]
            delta = choice["delta"]
            text = delta["content"]
            is_only_text = isinstance(text, str) and len(delta) == 1 and choice["finish_reason"] is None
            if self._has_deltas and is_only_text and not choice["index"] and not event.get("usage"):
                self._add_text(text)
                return
        except (KeyError, IndexError, TypeError):
            pass
        self._add_any(event)

    def _add_any(self, event: JsonObject) -> None:
        if usage := event.get("usage"):
            self._answer.usage = as_object(usage) or None
        choice = next((one for one in objects_in(event.get("choices")) if not one.get("index")), None)
        if not choice:
            return
        if not self._has_deltas:
            _read_names(self._answer, event)
            self._has_deltas = True
        if (whole := choice.get("message")) and isinstance(whole, dict):
            self._answer.messages = [_without_sound(cast("JsonObject", whole))]
            self._answer.is_complete = True
        if choice.get("finish_reason"):  # older Ollama and SGLang have an empty one in every event
            self._answer.is_complete = True
        for name, value in as_object(choice.get("delta")).items():
            self._add_member(name, value)

    def _add_member(self, name: str, value: object) -> None:
        if isinstance(value, str):
            if name == "content":
                self._add_text(value)
            elif name in _APPENDED_TEXTS:
                self._texts.setdefault(name, []).append(value)
        elif name == "tool_calls":
            self._add_calls(objects_in(value))
        elif name == "function_call":
            self._add_call_texts(_FUNCTION_CALL, "function", as_object(value))
        elif name in _BLOCK_LISTS:
            self._add_blocks(name, objects_in(value))
        elif name == "audio":
            self._audio.update({key: one for key, one in as_object(value).items() if key not in _SOUND})
            self._transcript.append(str(as_object(value).get("transcript") or ""))

    def _add_text(self, text: str) -> None:
        if not self._blocks["content"]:
            self._texts.setdefault("content", []).append(text)
        elif text:
            self._blocks["content"].add({"type": "text", "text": text})

    def _add_blocks(self, name: str, pieces: list[JsonObject]) -> None:
        blocks = self._blocks[name]
        if pieces and not blocks and name == "content" and (text := _joined_text(self._texts.pop(name, ()))):
            blocks.add({"type": "text", "text": text})
        for piece in pieces:
            blocks.add(piece)

    def _add_calls(self, pieces: list[JsonObject]) -> None:
        for number, piece in enumerate(pieces):
            given = piece.get("index")
            index = self._index_of(piece, given if isinstance(given, int) else number)
            call = self._calls.setdefault(index, {"id": "", "type": "function"})
            for key, value in piece.items():
                if key in _CALL_TEXTS:
                    self._add_call_texts(index, key, as_object(value))
                elif value and key != "index":
                    call[key] = value

    def _add_call_texts(self, index: int, kind: str, piece: JsonObject) -> None:
        for name, value in piece.items():
            text = json.dumps(value) if isinstance(value, dict) else value  # some servers send arguments as an object
            if text and isinstance(text, str):
                self._call_texts.setdefault((index, kind, name), []).append(text)

    def _call_body(self, index: int, kind: str) -> JsonObject:
        """Return the name and the arguments of a call; nothing if they are not whole."""
        said = {name: _joined_text(self._call_texts.get((index, kind, name), ())) for name in _CALL_TEXTS[kind]}
        is_whole = self._answer.is_complete or (kind == "function" and _is_json(said["arguments"]))
        return said if is_whole else {}

    def _index_of(self, piece: JsonObject, given: int) -> int:
        """Return the number of a call. Ollama and others number every call 0, or none: a new id is a new call."""
        index = self._renumbered.get(given, given)
        known, call_id = self._calls.get(index, {}).get("id"), piece.get("id")
        if not known or not call_id or known == call_id:
            return index
        if not any(as_object(piece.get(kind)).get("name") for kind in _CALL_TEXTS):
            return index
        same = next((number for number, call in self._calls.items() if call.get("id") == call_id), None)
        number = max(self._calls) + 1 if same is None else same
        self._renumbered[given] = number
        return number

    def answer(self) -> Answer:
        answer = self._answer
        if answer.messages or not self._has_deltas:
            return answer
        message: JsonObject = {"role": "assistant", "content": None}
        message |= {name: _joined_text(self._texts[name]) for name in _APPENDED_TEXTS if name in self._texts}
        message |= {name: blocks.whole() for name, blocks in self._blocks.items() if blocks}
        if self._audio:
            message["audio"] = self._audio | {"transcript": _joined_text(self._transcript)}
        calls: list[JsonObject] = []
        for index, call in sorted(self._calls.items()):
            kind = "custom" if call["type"] == "custom" else "function"
            if said := self._call_body(index, kind):
                calls.append({**call, kind: said})
        if calls:
            message["tool_calls"] = calls
        is_older_call = (_FUNCTION_CALL, "function", "name") in self._call_texts
        if is_older_call and (said := self._call_body(_FUNCTION_CALL, "function")):
            message["function_call"] = said
        is_said = any((*self._texts.values(), *self._blocks.values(), self._audio))
        if answer.is_complete or calls or "function_call" in message or is_said:
            answer.messages = [message]
        return answer


class _AnthropicReader:
    """Anthropic Messages: content blocks, each with a start, deltas and a stop."""

    def __init__(self) -> None:
        self._answer = Answer()
        self._blocks: dict[int, JsonObject] = {}
        self._texts: dict[int, dict[str, list[str]]] = {}
        """By index and member, the pieces of a block's texts; those of its arguments are `partial_json`."""
        self._citations: dict[int, list[object]] = {}
        self._ended: set[int] = set()
        self._usage: JsonObject = {}

    def add(self, event: JsonObject) -> None:
        index = _index(event.get("index"))
        match event.get("type"):
            case "message_start":
                self._start(as_object(event.get("message")))
            case "message":
                self._start(event)
                self._blocks = dict(enumerate(objects_in(event.get("content"))))
                self._ended = set(self._blocks)
                self._answer.is_complete = True
            case "content_block_start":
                self._blocks[index] = dict(as_object(event.get("content_block")))
            case "content_block_delta":
                self._add_delta(index, as_object(event.get("delta")))
            case "content_block_stop":
                self._ended.add(index)
            case "message_delta":
                reported = as_object(event.get("usage")).items()
                self._usage |= {key: value for key, value in reported if value is not None}
            case "message_stop":
                self._answer.is_complete = True
            case _:
                pass

    def _start(self, message: JsonObject) -> None:
        _read_names(self._answer, message)
        self._usage |= as_object(message.get("usage"))

    def _add_delta(self, index: int, delta: JsonObject) -> None:
        # A block whose start is missing is what its first piece is.
        kind = str(delta.get("type")).removesuffix("_delta")
        block = self._blocks.setdefault(index, {"type": kind} if kind in _PIECE_TYPES else {})
        if delta.get("type") == "citations_delta":
            self._citations.setdefault(index, []).append(delta.get("citation"))
            return
        for name, value in delta.items():
            if isinstance(value, str):
                if name != "type":
                    self._texts.setdefault(index, {}).setdefault(name, []).append(value)
            elif name not in _PROGRESS:
                block[name] = value

    def answer(self) -> Answer:
        answer = self._answer
        content: list[JsonObject] = []
        for index, block in sorted(self._blocks.items()):
            texts = {name: _joined_text(pieces) for name, pieces in self._texts.get(index, {}).items()}
            arguments = texts.pop("partial_json", "")
            is_ended = index in self._ended
            if block.get("type") in _NEEDS_ITS_END and not is_ended and not (arguments and _is_json(arguments)):
                continue
            for name, text in texts.items():
                before = block.get(name)
                block[name] = before + text if isinstance(before, str) else text
            if citations := self._citations.get(index):
                block["citations"] = [*(block.get("citations") or ()), *citations]
            if arguments:
                block["input"] = json.loads(arguments) if _is_json(arguments) else {_CUT_ARGUMENTS: arguments}
            content.append(block)
        if content or answer.is_complete:
            answer.messages = [{"role": "assistant", "content": content}]
        answer.usage = self._usage or None
        return answer


class _ResponsesReader:
    """OpenAI Responses: items, each added and done, and the whole response at the end."""

    def __init__(self) -> None:
        self._answer = Answer()
        self._items: dict[int, JsonObject] = {}
        self._started: dict[int, JsonObject] = {}
        self._parts: dict[tuple[int, int], _ResponsePart] = {}
        """By the numbers of an item and of its content, what came of it."""
        self._numbers: dict[str, int] = {}
        """By id, the numbers of items that came without an index."""

    def add(self, event: JsonObject) -> None:
        kind = str(event.get("type"))
        if kind.startswith(_PART_EVENTS):
            self._add_to_part(kind.removeprefix("response.").split("."), event)
        elif kind == "response.output_item.added":
            self._started[self._number(event)] = as_object(event.get("item"))
        elif kind == "response.output_item.done":
            self._items[self._number(event)] = as_object(event.get("item"))
        elif response := as_object(event.get("response")) or (event if "output" in event else {}):
            _read_names(self._answer, response)
            self._answer.usage = as_object(response.get("usage")) or self._answer.usage
            if kind in _RESPONSE_ENDS or event.get("type") is None:
                self._answer.is_complete = response.get("status") in ("completed", "incomplete")
                self._items = dict(enumerate(objects_in(response.get("output")))) or self._items

    def _number(self, event: JsonObject) -> int:
        """Return the number of the item that an event is about. Some servers leave the index out."""
        if isinstance(index := event.get("output_index"), int):
            return index
        item_id = event.get("item_id") or as_object(event.get("item")).get("id")
        newest = len(self._numbers) - 1
        if not isinstance(item_id, str) and newest >= 0 and newest not in self._items:
            return newest
        return self._numbers.setdefault(str(item_id or len(self._numbers)), len(self._numbers))

    def _add_to_part(self, names: list[str], event: JsonObject) -> None:
        place = self._number(event), _index(event.get("content_index"))
        part = self._parts.setdefault(place, _ResponsePart())
        match names:
            case [("output_text" | "refusal") as name, "delta"]:
                part.add(_PART_TEXTS[name], event.get("delta"))
            case [("output_text" | "refusal") as name, "done"]:
                part.texts[_PART_TEXTS[name]] = []
                part.add(_PART_TEXTS[name], event.get(_PART_TEXTS[name]))
            case ["output_text", "annotation", "added"]:
                part.annotations.append(event.get("annotation"))
            case ["content_part", "done"]:
                part.whole = as_object(event.get("part"))
            case _:
                pass

    def answer(self) -> Answer:
        contents: dict[int, list[JsonObject]] = {}
        for (index, _), part in sorted(self._parts.items()):
            if index not in self._items and (content := part.content()):
                contents.setdefault(index, []).append(content)
        for index, content in contents.items():
            item = {"type": "message", "role": "assistant"} | self._started.get(index, {})
            if item["type"] == "message":
                self._items[index] = item | {"content": content, "status": "incomplete"}
        self._answer.messages = [item for _, item in sorted(self._items.items())]
        return self._answer


class _ResponsePart:
    """A part of a message as far as it came: a text with its annotations, or a refusal."""

    def __init__(self) -> None:
        self.texts: dict[str, list[str]] = {}
        self.annotations: list[object] = []
        self.whole: JsonObject = {}

    def add(self, name: str, piece: object) -> None:
        if isinstance(piece, str):
            self.texts.setdefault(name, []).append(piece)

    def content(self) -> JsonObject:
        """Return the part; nothing if it says nothing."""
        if self.whole:
            return self.whole
        texts = {name: _joined_text(pieces) for name, pieces in self.texts.items()}
        if refusal := texts.get("refusal"):
            return {"type": "refusal", "refusal": refusal}
        text = texts.get("text", "")
        return {"type": "output_text", "text": text, "annotations": self.annotations} if text else {}


class _GeminiReader:
    """Gemini: chunks of parts; the arguments of a call may come in pieces, each with its path."""

    def __init__(self) -> None:
        self._answer = Answer()
        self._parts: list[JsonObject] = []
        self._texts: list[list[str]] = []
        """For each part, the pieces of its text."""
        self._open_call: JsonObject | None = None
        """The part with a call whose arguments are still to come."""

    def add(self, event: JsonObject) -> None:
        answer = self._answer
        _read_names(answer, {"model": event.get("modelVersion"), "id": event.get("responseId")})
        answer.usage = as_object(event.get("usageMetadata")) or answer.usage
        candidate = next((one for one in objects_in(event.get("candidates")) if not one.get("index")), JsonObject())
        answer.is_complete = answer.is_complete or bool(candidate.get("finishReason"))
        for part in objects_in(as_object(candidate.get("content")).get("parts")):
            if "functionCall" in part and self._add_call_piece(part):
                continue
            last = self._parts[-1] if self._parts else {}
            is_continued = "text" in last and "text" in part and "thoughtSignature" not in last
            if is_continued and bool(last.get("thought")) == bool(part.get("thought")):
                self._parts[-1] = last | part
            else:
                self._parts.append(part)
                self._texts.append([])
            self._texts[-1].append(str(part.get("text", "")))

    def _add_call_piece(self, part: JsonObject) -> bool:
        """Add a piece of a call, and return whether the part is one: only the first piece has a name."""
        call, whole = as_object(part.get("functionCall")), self._open_call
        if call.get("name"):
            whole = None
        if whole is None and not (call.get("name") and ("partialArgs" in call or "willContinue" in call)):
            return False
        if whole is None:
            whole = part | {"functionCall": JsonObject(args=JsonObject())}
            self._parts.append(whole)
            self._texts.append([])
        joined: JsonObject = whole["functionCall"]
        whole |= {name: value for name, value in part.items() if name != "functionCall"}
        joined |= {name: value for name, value in call.items() if name not in {"args", "partialArgs", "willContinue"}}
        joined["args"] |= as_object(call.get("args"))
        for piece in objects_in(call.get("partialArgs")):
            _add_argument(joined["args"], piece)
        self._open_call = whole if call.get("willContinue") else None
        return True

    def answer(self) -> Answer:
        if self._parts or self._answer.is_complete:
            parts = [
                part | {"text": _joined_text(pieces)} if len(pieces) > 1 else part
                for part, pieces in zip(self._parts, self._texts, strict=True)
                if self._answer.is_complete or part is not self._open_call
            ]
            self._answer.messages = [{"role": "model", "parts": parts}]
        return self._answer


def _add_argument(arguments: JsonObject, piece: JsonObject) -> None:
    """Add a piece of an argument at its JSON path, such as `$.files[0].name`; the pieces of a text are joined."""
    steps: list[str | int] = [
        int(index) if index else name or re.sub(r"\\(.)", r"\1", quoted[1:-1])
        for name, index, quoted in re.findall(_PATH_STEP, str(piece.get("jsonPath")))
    ]
    value = next((piece[name] for name in _ARGUMENT_VALUES if name in piece), None)
    place: Any = arguments
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        if not _has_step(place, step):
            return
        key: Any = step
        if isinstance(step, int) and step >= len(place):
            place.append(None)  # values come in their order
            key = -1
        held: Any = place[key] if isinstance(step, int) else place.get(step)
        if following is None:
            held = held + value if isinstance(held, str) and isinstance(value, str) else value
        elif held is None:
            held = list[object]() if isinstance(following, int) else JsonObject()
        place[key] = held
        place = held


def _has_step(place: object, step: str | int) -> bool:
    return isinstance(place, list if isinstance(step, int) else dict)


_READERS: Mapping[Wire, Callable[[], _Reader]] = {
    "openai-chat": _ChatReader,
    "openai-responses": _ResponsesReader,
    "anthropic": _AnthropicReader,
    "gemini": _GeminiReader,
}


def _without_sound(message: JsonObject) -> JsonObject:
    audio = as_object(message.get("audio"))
    return message | {"audio": {key: value for key, value in audio.items() if key != "data"}} if audio else message


def _read_names(answer: Answer, event: JsonObject) -> None:
    model, response_id = event.get("model"), event.get("id")
    answer.model = model if isinstance(model, str) else answer.model
    answer.response_id = response_id if isinstance(response_id, str) else answer.response_id


def _joined_text(pieces: Iterable[str]) -> str:
    """Return the pieces of a text as one; a character may be cut into the halves of a surrogate pair."""
    text = "".join(pieces)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


def _index(value: object) -> int:
    return value if isinstance(value, int) else 0


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
