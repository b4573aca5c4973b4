"""The forms in which a client may have an answer that was recorded in another one.

A request may end with the beginning of an answer, which the model continues. The log has both as they came, one after
the other. The client makes one message of them, or keeps two, as Anthropic's API takes either.

The arguments of a call are cut where the answer reached its limit. The log has all that came of them. Each client
makes something else of them: no arguments, those that were whole, or the text as it came.

Contents of Gemini's model that follow each other are one answer, however a client divides it. It may have more of the
answer than the log, or less.
"""

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby

from holdfast.apps.gateway.recording.identity import essential_fingerprint
from holdfast.wire.answers import JsonMapping, JsonObject, Wire, has_cut_arguments
from holdfast.wire.equivalence import essential_gemini_content
from holdfast.wire.json_reader import as_object, is_list, is_mapping, objects_in

_JOINING_WIRES: tuple[Wire, ...] = ("openai-chat", "anthropic")
"""Where a client may have several messages as one. Items of Responses stay as they are."""
_CONTINUE_MARKS = ("prefix", "partial")
"""Members of a chat message that tell a server to continue it."""
MAX_JOINED_MESSAGES = 16
"""How many messages of the model that follow each other are compared with one of the client's."""
_PLAIN_TEXTS = (frozenset({"type", "text"}), frozenset({"text"}))


def count_joined(wire: Wire, recorded: Sequence[JsonMapping], native: JsonMapping) -> int:
    """Return how many of the recorded messages a client has as one message; 0 if it has another one."""
    wanted = _fingerprint(wire, native)
    for count in range(1, len(recorded) + 1 if wire in _JOINING_WIRES else 2):
        joined = _joined(wire, recorded[:count])
        if wanted in {_fingerprint(wire, joined), _fingerprint(wire, _with_arguments_of(wire, joined, native))}:
            return count
    return 0


def client_forms(wire: Wire, recorded: Sequence[JsonMapping]) -> list[list[JsonObject]]:
    """Return the messages that a client may have instead of recorded ones, as far as they can be known."""
    forms = [[{**native} for native in recorded]]
    if wire in _JOINING_WIRES and len(recorded) > 1:
        forms += [[_joined(wire, recorded, merges_texts=merges)] for merges in (True, False)]
    forms += [[_without_cut_arguments(wire, native) for native in form] for form in forms]
    return [form for index, form in enumerate(forms) if form not in forms[:index]][1:]


def count_shared_contents(recorded: Sequence[JsonMapping], given: Sequence[JsonMapping]) -> tuple[int, int]:
    """Return how many first contents of the log say the same as how many first ones of a client; both 0 if none do."""
    one, other = [*map(_said, recorded)], [*map(_said, given)]
    ends, other_ends = [*accumulate(map(len, one))], [*accumulate(map(len, other))]
    text, other_text, shared = "".join(one), "".join(other), 0
    for end in sorted({*ends} & {*other_ends}):
        if text[shared:end] != other_text[shared:end]:
            break
        shared = end
    counts = bisect_right(ends, shared), bisect_right(other_ends, shared)
    return counts if all(counts) else (0, 0)


def _said(content: JsonMapping) -> str:
    """Return what a content says, so that several say together what one with all their parts says."""
    parts = essential_gemini_content(content).get("parts")
    listed = parts if is_list(parts) else [] if parts is None else [parts]
    said: list[str] = []
    for part in listed:
        text = _plain_text(part)
        whole = json.dumps([part] if text is None else "".join(text.split()), default=str, sort_keys=True)
        said.append(whole if text is None else whole[1:-1])
    return "".join(said)


def has_cut_calls(wire: Wire, recorded: Sequence[JsonMapping]) -> bool:
    """Return whether any call has arguments that are not whole."""
    return any(has_cut_arguments(wire, call) for native in recorded for call in _calls_in(wire, native))


def _fingerprint(wire: Wire, native: JsonMapping) -> bytes | None:
    return essential_fingerprint(wire, _joined(wire, [native]))


def _joined(wire: Wire, natives: Sequence[JsonMapping], *, merges_texts: bool = True) -> JsonObject:
    """Return messages as one, with neighboring texts as one too."""
    if wire not in _JOINING_WIRES:
        return {**natives[0]}
    joined: JsonObject = {}
    blocks: list[object] = []
    calls: list[object] = []
    for native in natives:
        joined |= {name: value for name, value in native.items() if name not in _CONTINUE_MARKS}
        content = native.get("content")
        calls += objects_in(native.get("tool_calls"))
        given = content if is_list(content) else [{"type": "text", "text": content}] if content else ()
        blocks += map(_bare, given)
    if merges_texts:
        blocks = _with_texts_merged(blocks)
    return joined | {"content": blocks} | ({"tool_calls": calls} if calls else {})


def _with_texts_merged(blocks: Sequence[object]) -> list[object]:
    """Return blocks in which plain texts that follow each other are one."""
    merged: list[object] = []
    for is_text, group in groupby(blocks, key=lambda block: _plain_text(block) is not None):
        run = [*group]
        merged += [as_object(run[0]) | {"text": "".join(_plain_text(one) or "" for one in run)}] if is_text else run
    return merged


def _bare(block: object) -> object:
    """Return a block without marks of the cache and members that are null."""
    if not is_mapping(block):
        return block
    return {name: value for name, value in block.items() if value is not None and name != "cache_control"}


def _plain_text(block: object) -> str | None:
    """Return the text of a block that has nothing else; None for any other."""
    text = as_object(block).get("text")
    return text if isinstance(text, str) and frozenset(as_object(block)) in _PLAIN_TEXTS else None


def _with_arguments_of(wire: Wire, recorded: JsonMapping, native: JsonMapping) -> JsonObject:
    """Return a message with a client's arguments of the calls whose own were cut."""
    return _with_arguments(wire, recorded, {_id_of(call): call for call in _calls_in(wire, native)})


def _without_cut_arguments(wire: Wire, recorded: JsonMapping) -> JsonObject:
    """Return a message in which calls whose arguments were cut have none."""
    empty: Mapping[Wire, JsonObject] = {
        "anthropic": {"input": {}},
        "openai-chat": {"function": {"arguments": "{}"}},
        "openai-responses": {"arguments": "{}"},
    }
    return _with_arguments(wire, recorded, {_id_of(call): empty[wire] for call in _calls_in(wire, recorded)})


def _with_arguments(wire: Wire, recorded: JsonMapping, given: Mapping[object, JsonMapping]) -> JsonObject:
    def changed(call: JsonObject) -> JsonObject:
        other = given.get(_id_of(call))
        if other is None or not has_cut_arguments(wire, call):
            return call
        if wire == "openai-chat":
            arguments = as_object(other.get("function")).get("arguments")
            return call | {"function": as_object(call.get("function")) | {"arguments": arguments}}
        name = "input" if wire == "anthropic" else "arguments"
        return call | {name: other.get(name)}

    match wire:
        case "openai-chat" if "tool_calls" in recorded:
            return {**recorded, "tool_calls": [changed(call) for call in objects_in(recorded.get("tool_calls"))]}
        case "anthropic" if is_list(recorded.get("content")):
            return {**recorded, "content": [changed(block) for block in objects_in(recorded.get("content"))]}
        case "openai-responses":
            return changed({**recorded})
        case _:
            return {**recorded}


def _calls_in(wire: Wire, native: JsonMapping) -> list[JsonObject]:
    match wire:
        case "openai-chat":
            return objects_in(native.get("tool_calls"))
        case "anthropic":
            return [block for block in objects_in(native.get("content")) if "input" in block]
        case "openai-responses":
            return [{**native}] if "arguments" in native else []
        case "gemini":
            return []


def _id_of(call: JsonMapping) -> str:
    return json.dumps(call.get("call_id") or call.get("id"), default=str)
