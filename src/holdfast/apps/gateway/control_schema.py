"""What the control API takes and returns, as types, and its OpenAPI description, which is made of them.

Bodies of requests are decoded by these types, so what the description says is what is accepted.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias, TypedDict, cast

import msgspec

from holdfast.apps.gateway.recording.governing import CompactionMode
from holdfast.core.planning.situation import MAX_LIMIT, MIN_BUDGET_TOKENS
from holdfast.core.recall.query import MAX_RECALL_TOKENS, MIN_RECALL_TOKENS
from holdfast.wire.answers import JsonObject

DEFAULT_RECALL_TOKENS = 2_000
JSON_TYPE, LINES_TYPE = "application/json", "application/jsonl"
RecallTokens: TypeAlias = Annotated[int, msgspec.Meta(ge=MIN_RECALL_TOKENS, le=MAX_RECALL_TOKENS)]
BudgetTokens: TypeAlias = Annotated[int, msgspec.Meta(ge=MIN_BUDGET_TOKENS, le=MAX_LIMIT)]
Position: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


# Bodies of requests.


class RecallBody(msgspec.Struct, forbid_unknown_fields=True):
    """What to look for."""

    query: str
    tokens: RecallTokens = DEFAULT_RECALL_TOKENS


class EmptyBody(msgspec.Struct, forbid_unknown_fields=True):
    """An operation without options."""


class PreviewBody(msgspec.Struct, forbid_unknown_fields=True):
    """How a compaction would be made; with `draft` a model writes the summary that would be used."""

    focus: str = ""
    budget: BudgetTokens | None = None
    draft: bool = False


class CompactBody(msgspec.Struct, forbid_unknown_fields=True):
    """How to compact; `preview` is the id of a preview that is approved."""

    focus: str = ""
    budget: BudgetTokens | None = None
    preview: str = ""


class RewindBody(msgspec.Struct, forbid_unknown_fields=True):
    """Before which message to continue."""

    to: Position


class PinBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which message."""

    position: Position


class ForkBody(msgspec.Struct, forbid_unknown_fields=True):
    """The id of the copy, and how many messages it has; both may be left out."""

    id: str = ""
    at: Position | None = None


# Answers.


class SessionAnswer(TypedDict):
    """One session."""

    id: str
    title: str
    client: str
    model: str | None
    messages: int
    tokens: int
    compactions: int
    cost: float
    compaction_due: str
    updated_at: str


class SessionsAnswer(TypedDict):
    """A page of sessions; `next` is the `after` of the next one."""

    sessions: list[SessionAnswer]
    next: str | None


class DeletedAnswer(TypedDict):
    """Whether there was something to delete."""

    deleted: bool


class MessageAnswer(TypedDict):
    """A message where it was recorded; `scope` is the agent that said it."""

    position: int
    scope: str
    message: JsonObject


class MessagesAnswer(TypedDict):
    """A page of messages."""

    messages: list[MessageAnswer]
    next: int | None


class RequestAnswer(TypedDict):
    """A request that was prepared; `sha256` is that of the bytes that were sent."""

    number: int
    scope: str
    tokens: int | None
    sha256: str | None
    hash: str
    policy: str


class RequestsAnswer(TypedDict):
    """All requests of a session."""

    requests: list[RequestAnswer]


class RequestReceiptAnswer(TypedDict):
    """What was done for a request, and what is needed to build it again."""

    number: int
    scope: str
    view: list[JsonObject]
    situation: JsonObject
    policy: str
    engine: str
    payload_hash: str
    body_hash: str | None
    chain_hash: str | None
    prefix_hash: str | None
    extras_hash: str | None
    prefix_break: JsonObject | None


class EventAnswer(TypedDict):
    """A record of the log."""

    position: int
    time_ms: int
    record: JsonObject


class EventsAnswer(TypedDict):
    """A page of records."""

    events: list[EventAnswer]
    next: int | None


class ReceiptAnswer(TypedDict):
    """A change of the context, in words."""

    at_ms: int
    kind: str
    text: str


class ReceiptsAnswer(TypedDict):
    """All changes of the context."""

    receipts: list[ReceiptAnswer]


class SettingsAnswer(TypedDict):
    """How a session is governed."""

    policy: str | None
    compaction: CompactionMode
    budget: int | None


class RecallAnswerBody(TypedDict):
    """Exact excerpts, and where they are."""

    text: str
    references: list[str]
    found: int


class CompactionAnswer(TypedDict):
    """What a compaction replaces, by what, and what that costs."""

    success: bool
    trigger: str
    start: int
    stop: int
    kept: list[int]
    messages: int
    tokens_before: int
    tokens_after: int
    summary: list[str]
    by: str
    reason: str


class PreviewAnswer(CompactionAnswer):
    """A compaction that was not made; its id approves it."""

    id: str


class UndoneAnswer(TypedDict):
    """Whether there was a change to undo."""

    undone: bool


class RedoneAnswer(TypedDict):
    """Whether there was a change to redo."""

    redone: bool


class RewoundAnswer(TypedDict):
    """Before which message the session continues."""

    rewound_to: int


class PinnedAnswer(TypedDict):
    """Which message is pinned."""

    pinned: int


class UnpinnedAnswer(TypedDict):
    """Which message is not pinned any more."""

    unpinned: int


class ForkedAnswer(TypedDict):
    """The id of the new session."""

    id: str


class ErrorAnswer(TypedDict):
    """What is wrong, and what to do."""

    error: str


# The description.


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the API."""

    method: str
    path: str
    about: str
    answer: type[object] | None = None
    """None for bytes that have no type here."""
    body: type[object] | None = None
    is_body_needed: bool = False
    query: tuple[str, ...] = ()
    media: tuple[str, ...] = (JSON_TYPE,)


_QUERY: Mapping[str, tuple[JsonObject, str]] = {
    "limit": ({"type": "integer", "minimum": 0, "default": 100}, "How many to return."),
    "after": ({"type": "string"}, "The `next` of the page before."),
    "q": ({"type": "string"}, "Words in the id or the title."),
}
TOO_LARGE = "413"
_REFUSALS: Mapping[str, str] = {
    "400": "The request is malformed.",
    "401": "The token is missing or wrong.",
    "403": "The key may not use the control API, or a web page asks.",
    "404": "There is no such session, message or request.",
    "409": "Nothing could be compacted.",
    TOO_LARGE: "The body is too large.",
    "500": "The log was changed.",
    "503": "The store cannot be used.",
}
_PARAMETERS = (("id", "string"), ("number", "integer"))


def plain_path(path: str) -> str:
    """Return a route's path as OpenAPI writes it."""
    return path.replace("{id:path}", "{id}").replace("{number:short}", "{number}")


def openapi(operations: Sequence[Operation]) -> JsonObject:
    """Return the description of the API."""
    types = {one for operation in operations for one in (operation.answer, operation.body) if one is not None}
    ordered = [ErrorAnswer, *sorted(types, key=lambda one: one.__name__)]
    schemas, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    by_type = cast("dict[type[object], JsonObject]", dict(zip(ordered, schemas, strict=True)))
    paths: dict[str, JsonObject] = {}
    for operation in operations:
        described = _described(operation, by_type)
        paths.setdefault(f"/holdfast/v1{plain_path(operation.path)}", {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast control API", "version": "1"},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": list[str]()}],
    }


def _described(operation: Operation, schemas: Mapping[type[object], JsonObject]) -> JsonObject:
    name = plain_path(operation.path)
    parameters: list[JsonObject] = [
        {"name": one, "in": "path", "required": True, "schema": {"type": kind}}
        for one, kind in _PARAMETERS
        if f"{{{one}}}" in name
    ]
    parameters += [
        {"name": one, "in": "query", "required": False, "schema": _QUERY[one][0], "description": _QUERY[one][1]}
        for one in operation.query
    ]
    answer = schemas[operation.answer] if operation.answer is not None else {}
    content = {media: {"schema": answer if media == JSON_TYPE else {"type": "string"}} for media in operation.media}
    refusal = {JSON_TYPE: {"schema": schemas[ErrorAnswer]}}
    described: JsonObject = {
        "operationId": "_".join([operation.method.lower(), *re.findall(r"\w+", name)]),
        "summary": operation.about,
        "parameters": parameters,
        "responses": {"200": {"description": operation.about, "content": content}}
        | {
            status: {"description": text, "content": refusal}
            for status, text in _REFUSALS.items()
            if status != TOO_LARGE or operation.method == "POST"
        },
    }
    if operation.body is not None:
        schema = {JSON_TYPE: {"schema": schemas[operation.body]}}
        described["requestBody"] = {"required": operation.is_body_needed, "content": schema}
    return described
