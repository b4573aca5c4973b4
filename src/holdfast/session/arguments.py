"""Checks the arguments of session calls; each error says which values are accepted."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar, cast

from holdfast.core.conversation.json_values import copied_json, dump_json, is_sendable_json, replace_surrogates
from holdfast.core.conversation.messages import Message
from holdfast.core.conversation.transcript import MessageFormat
from holdfast.core.schema import is_integer, is_number, short_repr
from holdfast.errors import MalformedInputError, SettingsError
from holdfast.redaction import redact_text
from holdfast.wire.formats import split_elements, without_response_fields
from holdfast.wire.json_reader import InputPath, check_tools

T = TypeVar("T")
MAX_ENDPOINT_CHARS = 2_000
PARSED_FIELDS = frozenset({"parsed", "parsed_arguments"})
LIST_TYPES = list, Sequence
"""For `isinstance`, which recognizes a plain list ten times as fast as another sequence."""
LOCAL_HOSTS, FIRST_EPHEMERAL_PORT = {"127.0.0.1", "localhost", "[::1]"}, 32_768
MESSAGES_OF_RESPONSES = {
    "choices": "[response.choices[0].message]",
    "output": "response.output",
    "candidates": "[response.candidates[0].content]",
}
"""By the field of a provider's whole response that holds its messages, how to take them out of it."""


def as_json_messages(messages: object, *, copies: bool) -> list[Mapping[str, object]]:
    """Return messages as JSON objects; messages of the libraries of OpenAI and Anthropic become what is sent back.

    With `copies`, what the caller does to its own list later is no change of what was recorded.
    """
    if not isinstance(messages, LIST_TYPES) or isinstance(messages, str | bytes):
        raise MalformedInputError("messages", f"must be a list of objects, not {messages!r:.60}")
    natives: list[Mapping[str, object]] = []
    for element in cast("Sequence[object]", messages):
        native = _as_json_message(element, len(natives))
        if "role" not in native:
            _refuse_whole_response(native, len(natives))
        native = without_response_fields(native) if "stop_reason" in native else native
        natives.append(copied_json(native) if copies else native)
    return natives


def _as_json_message(element: object, index: int) -> Mapping[str, object]:
    if type(element) is dict:
        known = cast("dict[str, object]", element)
        return _with_json_blocks(known) if type(known.get("content")) is list else known
    native = _as_json(element)
    if not isinstance(native, Mapping):
        problem = f"must be a message as a dict, or an object of the provider's library, not {short_repr(element)}"
        raise MalformedInputError(f"messages[{index}]", problem)
    return cast("Mapping[str, object]", native)


def _refuse_whole_response(native: Mapping[str, object], index: int) -> None:
    """Raise a `MalformedInputError` for what a provider answers, if its messages are inside it."""
    for name, messages in MESSAGES_OF_RESPONSES.items():
        if isinstance(native.get(name), list) and "type" not in native:
            raise MalformedInputError(f"messages[{index}]", f"is a whole response; record {messages} instead")


def _with_json_blocks(native: dict[str, object]) -> Mapping[str, object]:
    """Return a message; objects of a provider's library in its content, as in `response.content`, become JSON."""
    content = cast("list[object]", native["content"])
    if all(type(block) is dict for block in content):
        return native
    return {**native, "content": [_as_json(block) for block in content]}


def _as_json(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    return _without_parsed(dump(mode="json", exclude_none=True, warnings=False)) if callable(dump) else value


def _without_parsed(value: object) -> object:
    """Return a message or a part of it without what `parse` of OpenAI's library adds to it, which the API refuses."""
    if not isinstance(value, dict):
        return value
    kept = {name: inner for name, inner in cast("dict[str, object]", value).items() if name not in PARSED_FIELDS}
    for name in ("content", "tool_calls"):
        if isinstance(parts := kept.get(name), list):
            kept[name] = [_without_parsed(part) for part in cast("list[object]", parts)]
    return {**kept, "function": _without_parsed(kept["function"])} if "function" in kept else kept


def decode_messages(
    messages: Sequence[Mapping[str, object]], message_format: MessageFormat
) -> tuple[list[Mapping[str, object]], list[Message]]:
    """Return messages as single elements of their format, and decoded."""
    natives, indexes = split_elements(message_format, [*messages])
    decoded = [message_format.decode(native, index) for index, native in zip(indexes, natives, strict=True)]
    return natives, decoded


def check_extras(system: object, tools: object) -> tuple[object, Sequence[Mapping[str, object]] | None]:
    """Return system text and tools; `extras_json` checks their content when they change."""
    if isinstance(system, str):
        system = system if system.isascii() else replace_surrogates(system)
    elif system is not None:
        system = _as_dicts(system)
    return system, None if tools is None else _as_dicts(check_tools(tools))


def _as_dicts(value: T) -> T:
    """Return a list in which other mappings are dicts, which is all that encoders take; the list itself if it is."""
    items = cast("object", value)
    is_plain = not isinstance(items, list | tuple) or all(type(item) is dict for item in cast("list[object]", items))
    return value if is_plain else copied_json(value)


def check_position(where: str, value: object) -> int:
    """Check that a value is the position of a message."""
    if not is_integer(value):
        raise MalformedInputError(where, f"must be the position of a message, a whole number, not {short_repr(value)}")
    return value


def check_scope(value: object) -> str:
    """Check that a value is the name of a scope."""
    if not isinstance(value, str) or not value:
        raise SettingsError("scope", f"must be the name of an agent's scope, such as 'main', not {short_repr(value)}")
    return value


def check_model(value: object) -> str | None:
    """Check that a value is the name of a model, or None."""
    if value is not None and not isinstance(value, str):
        raise SettingsError("model", f"must be the name of a model, not {short_repr(value)}")
    return value


def check_endpoint(value: object) -> str | None:
    """Return the address of an endpoint, or None; without user, password, query and keys, because it is stored."""
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_ENDPOINT_CHARS:
        raise SettingsError("endpoint", f"must be the address that serves the model, not {short_repr(value)}")
    return _address_of(value)


@lru_cache(maxsize=256)
def _address_of(value: str) -> str:
    """Return an address without what is secret or temporary in it; there is one for every request."""
    address = "".join(redact_text(value).split()).partition("?")[0].partition("#")[0]
    scheme, separator, rest = address.rpartition("://")
    host, slash, path = rest.rpartition("@")[2].partition("/")
    name, _, port = host.rpartition(":")
    if name in LOCAL_HOSTS and port.isdecimal() and int(port) >= FIRST_EPHEMERAL_PORT:
        # The system chose this port: the same server has another one after each start.
        host = name
    return f"{scheme}{separator}{host}".lower() + f"{slash}{path}".rstrip("/")


def check_text(setting: str, value: object) -> str:
    """Check that a value is a string."""
    if not isinstance(value, str):
        raise SettingsError(setting, f"must be text, not {short_repr(value)}")
    return value


def check_texts(setting: str, value: object) -> Sequence[str]:
    """Check that a value is a list of strings, and not one string, which is a sequence of its characters."""
    if not isinstance(value, LIST_TYPES) or isinstance(value, str | bytes):
        raise SettingsError(setting, f"must be a list of texts, not {short_repr(value)}")
    return [check_text(setting, text) for text in cast("Sequence[object]", value)]


def check_clock(clock: Callable[[], float]) -> Callable[[], int]:
    """Return a clock that counts whole milliseconds; it raises if the given one returns no number."""
    if not callable(clock):
        raise SettingsError("clock", f"must be a function that returns milliseconds, not {short_repr(clock)}")

    def whole_milliseconds() -> int:
        now: object = clock()
        if not is_number(now) or not math.isfinite(now):
            raise SettingsError("clock", f"must return milliseconds as a number, not {short_repr(now)}")
        return int(now)

    return whole_milliseconds


def check_deletion(delete_files: Callable[[str], object] | None) -> Callable[[str], object] | None:
    """Return a function that removes the files of a session; raises for anything else but None."""
    if delete_files is not None and not callable(delete_files):
        raise SettingsError("delete_files", f"must be a function of a session's id, not {short_repr(delete_files)}")
    return delete_files


def check_line(setting: str, value: object) -> str:
    """Check that a value is a string without line breaks and other control characters."""
    text = check_text(setting, value)
    if any(char != " " and not char.isprintable() for char in text):
        raise SettingsError(setting, f"must be one line without control characters, not {short_repr(value)}")
    return text


def check_count(setting: str, value: object) -> int:
    """Check that a value is a whole number, 0 or more."""
    if not is_integer(value) or value < 0:
        raise SettingsError(setting, f"must be a whole number from 0 on, not {short_repr(value)}")
    return value


def extras_json(name: str, value: object) -> str:
    """Return system content or tools as JSON; raises if a provider could not read it."""
    InputPath(name).json_text(value, "")
    if not is_sendable_json(value):
        raise MalformedInputError(name, "contains lone surrogates, NaN or infinity; remove them first")
    return dump_json(value)
