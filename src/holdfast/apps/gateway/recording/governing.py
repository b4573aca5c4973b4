"""Govern a request: what the model is sent instead of a list that has outgrown its budget.

The session prepares every request. Where it left everything as it was, the client's own bytes go on, to the last one.
Where it compacted, the list of messages is rebuilt: untouched messages are the slices that the client sent, and only
the replacement is new. All other members of the body stay as they came, in their order.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Literal, TypeAlias

import msgspec

from holdfast.apps.gateway.recording.client_body import ClientBody, members_of, read_json, write_json
from holdfast.core.conversation.repair import NO_NEW_MESSAGE_NOTICE
from holdfast.core.planning.situation import MAX_LIMIT
from holdfast.counters.models import binds_thinking
from holdfast.dataclass import dataclass
from holdfast.errors import SettingsError
from holdfast.wire.answers import JsonMapping, Wire
from holdfast.wire.anthropic import MAX_CACHE_MARKS
from holdfast.wire.json_reader import as_object, is_list, is_mapping, objects_in
from holdfast.wire.openai_chat import join_same_roles
from holdfast.wire.request import Request

_SYSTEM_ROLES = ("system", "developer")
JOINABLE_WIRES: tuple[Wire, ...] = ("openai-chat", "anthropic")
"""Where neighbors of one role can be joined, for servers that want user and assistant to alternate."""


CompactionMode: TypeAlias = Literal["auto", "ask", "off"]
"""When a conversation is compacted: as its policy says; when somebody approves it; when somebody asks for it."""
POLICY_HEADER, COMPACTION_HEADER, BUDGET_HEADER = "x-holdfast-policy", "x-holdfast-compaction", "x-holdfast-budget"
RECALL_HEADER = "x-holdfast-recall"
_GOVERNING_HEADERS = frozenset({POLICY_HEADER, COMPACTION_HEADER, BUDGET_HEADER, RECALL_HEADER})
COMPACT_NOW = "now"
MIN_BUDGET = 256
_SWITCHES: Mapping[str, bool | None] = {"": None, "on": True, "1": True, "off": False, "0": False}


class GoverningChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How somebody wants a conversation to be governed; None leaves a question to whoever else has a say."""

    policy: str | None = None
    compaction: CompactionMode | None = None
    budget: Annotated[int, msgspec.Meta(ge=MIN_BUDGET, extra_json_schema={"maximum": MAX_LIMIT})] | None = None

    def otherwise(self, other: "GoverningChoice") -> "GoverningChoice":
        """Return this choice, and where it has none the other."""
        return GoverningChoice(
            policy=self.policy or other.policy,
            compaction=self.compaction or other.compaction,
            budget=self.budget or other.budget,
        )


NO_CHOICE = GoverningChoice()


@dataclass(frozen=True, slots=True)
class RequestedGoverning:
    """What the path and the headers of a request say about governing."""

    choice: GoverningChoice = NO_CHOICE
    compacts_now: bool = False
    """Whether the conversation is compacted before this request."""
    recalls: bool | None = None
    """Whether the model gets the recall tool, if the conversation begins with this request; None if it is not said."""


NOTHING_REQUESTED = RequestedGoverning()


def requested_governing(headers: Mapping[str, str], policy_in_path: str | None) -> RequestedGoverning:
    """Return how a request wants to be governed; raises `SettingsError` that names the wrong header."""
    if not policy_in_path and _GOVERNING_HEADERS.isdisjoint(headers):
        return NOTHING_REQUESTED
    said = {
        "policy": policy_in_path or headers.get(POLICY_HEADER),
        "compaction": headers.get(COMPACTION_HEADER, "").lower(),
        "budget": headers.get(BUDGET_HEADER, ""),
    }
    recall = headers.get(RECALL_HEADER, "").strip().lower()
    if not recall and not any(said.values()):
        return NOTHING_REQUESTED
    if recall not in _SWITCHES:
        raise SettingsError(RECALL_HEADER, f"is on or off, not {recall!r:.40}")
    compacts_now = said["compaction"] == COMPACT_NOW
    found = {name: value for name, value in said.items() if value and not (name == "compaction" and compacts_now)}
    try:
        # Headers are text, so a number may be written as one.
        choice = msgspec.convert(found, GoverningChoice, strict=False)
    except msgspec.ValidationError as error:
        problem = f"{error}; compaction is auto, ask, off or now, and a budget has at least {MIN_BUDGET} tokens"
        raise SettingsError("x-holdfast-…", problem) from error
    return RequestedGoverning(choice, compacts_now, _SWITCHES[recall])


_GEMINI_SCHEMAS = "responseSchema", "response_schema", "responseJsonSchema", "response_json_schema"


@dataclass(frozen=True, slots=True)
class BodyExtras:
    """What a request carries beside its messages, as the session counts it."""

    system: object
    tools: list[Mapping[str, object]] | None


def extras_of(body: ClientBody) -> BodyExtras:
    """Return the system text and the tools of a request; leading system messages belong to the list."""
    beside = body.system_slices[: body.beside_count]
    tools = read_json(body.tools_slice)
    listed = [tool for tool in tools if is_mapping(tool)] if is_list(tools) else None
    if defined := [one for raw in body.definition_slices for one in _definitions(read_json(raw))]:
        listed = [*(listed or ()), *defined]
    return BodyExtras(read_json(beside[0]) if beside else None, listed)


def _definitions(value: object) -> list[Mapping[str, object]]:
    """Return the functions of the older form, or the schema of the answer, that a member of a request holds."""
    if is_list(value):
        return [one for one in value if is_mapping(one)]
    if not is_mapping(value):
        return []
    if is_mapping(value.get("schema")):
        return [value]
    inner = [value.get(name) for name in ("json_schema", *_GEMINI_SCHEMAS)]
    return [*(one for one in inner if is_mapping(one)), *_definitions(value.get("format"))]


def model_of(path: str, body: ClientBody) -> str | None:
    """Return the model that a request names: in its body, or in its path as Gemini's do."""
    if body.model is not None or body.wire != "gemini":
        return body.model
    return path.partition("/models/")[2].partition(":")[0].partition("?")[0] or None


def is_whole(request: Request, slices: Mapping[int, msgspec.Raw]) -> bool:
    """Return whether a prepared request has all of a client's messages, unshortened.

    What the client has compacted by itself is not in its list any more. Repairs do not count: what the client sends is
    between it and its provider, until it has to change anyway.
    """
    if not slices:
        return True
    receipt = request.receipt
    shortened = {*receipt.clipped, *receipt.elided}
    whole = {*receipt.kept, *receipt.without_thinking, *(repair.position for repair in receipt.repairs)}
    return slices.keys().isdisjoint(shortened) and whole.issuperset(slices)


def governed_body(
    raw: bytes,
    body: ClientBody,
    slices: Mapping[int, msgspec.Raw],
    request: Request,
    hidden: Mapping[int, msgspec.Raw | None] = MappingProxyType({}),
    *,
    joined: Mapping[int, int] = MappingProxyType({}),
    joins: bool = False,
) -> bytes:
    """Return a body with the messages of a prepared request.

    `slices` are the client's bytes of its messages, by the position where each was recorded; `hidden` are messages
    that the client does not have, because the gateway answered them, by their positions: with the bytes of what the
    client has instead, whose cache mark they get. `joined` are the positions of messages that the client has as a part
    of an earlier one, each with that one's. With `joins`, neighbors of one role become one message.
    """
    kept, own = frozenset(request.receipt.kept), _own_slices(slices, request, joined)
    head, tail = body.around_messages(raw)
    sent: list[bytes] = [bytes(one) for one in body.leading]
    unsent, whole, last = dict(slices), list[int](), max(slices, default=None)
    replacement: tuple[int, JsonMapping] | None = None
    is_own = True
    for before, native, position in zip([None, *request.positions], request.messages, request.positions, strict=False):
        # A client may have given ids to calls of Gemini and to their results: both are its own, or both the log's.
        is_own = position in own and (is_own or not _has_results(native)) and not _lacks_role(body.wire, own[position])
        if is_own and position is not None:
            sent.append(bytes(unsent.pop(position)))
            whole.append(position)
        elif position is None and before in kept and before == last and _is_closing(native):
            # The client wants its last message, the beginning of an answer, to be continued.
            continue
        elif position is None:
            replacement = len(sent), native
            sent.append(write_json(native))
        elif position in slices or position in hidden or not _is_left_to_client(native):
            instead = hidden.get(position)
            mark = None if instead is None or body.wire != "anthropic" else _cache_mark(bytes(instead))
            sent.append(write_json(native if mark is None else _with_cache_mark(native, mark)))
    if body.wire == "anthropic" and replacement is not None:
        beside, at_kept = _mark_count(head) + _mark_count(tail), sum(_mark_count(bytes(slices[one])) for one in whole)
        if beside + sum(map(_mark_count, sent)) < MAX_CACHE_MARKS and beside + at_kept < _mark_count(raw):
            at, native = replacement
            found = (mark for one in reversed(unsent.values()) if (mark := _cache_mark(bytes(one))) is not None)
            if (mark := next(found, None)) is not None:
                sent[at] = write_json(_with_cache_mark(native, mark))
    sent = [*filter(None, sent)]
    if joins:
        sent = _joined(sent)
    return head + b",".join(sent) + tail


def has_pieces(slices: Mapping[int, msgspec.Raw]) -> bool:
    """Return whether the client has any of its messages in pieces, so that it has no bytes of its own."""
    return not all(memoryview(raw).nbytes for raw in slices.values())


def _own_slices(
    slices: Mapping[int, msgspec.Raw], request: Request, joined: Mapping[int, int]
) -> dict[int, msgspec.Raw]:
    """Return the client's bytes of the messages that a request has as the client does.

    Others are sent as the log has them: those that the client has in several pieces, and those that it has as one
    message of which a part is left out now, or does not follow the part before.
    """
    kept = frozenset(request.receipt.kept)
    firsts = [place if place is None else joined.get(place, place) for place in request.positions]
    following = {
        place for place, (one, other) in zip(request.positions[1:], pairwise(firsts), strict=True) if one == other
    }
    changed = {
        first for place, first in joined.items() if not kept.issuperset((place, first)) or place not in following
    }
    changed |= {place for place, raw in slices.items() if place not in joined and not memoryview(raw).nbytes}
    return {place: raw for place, raw in slices.items() if place in kept and joined.get(place, place) not in changed}


def _has_results(native: JsonMapping) -> bool:
    return any("functionResponse" in part for part in objects_in(native.get("parts")))


def _lacks_role(wire: Wire, raw: msgspec.Raw) -> bool:
    """Return whether a message is a content of Gemini without a role, which only a list of one may have."""
    if wire != "gemini" or not memoryview(raw).nbytes:
        return False
    return not read_json(members_of(bytes(raw)).get("role", b"null"))


def _is_closing(native: JsonMapping) -> bool:
    """Return whether a message only lets a list end with the user."""
    return native.get("content") == NO_NEW_MESSAGE_NOTICE or native.get("parts") == [{"text": NO_NEW_MESSAGE_NOTICE}]


def _joined(sent: Sequence[bytes]) -> list[bytes]:
    """Return messages with neighbors of one role as one; all others keep their bytes."""
    messages = [one for one in map(read_json, sent) if is_mapping(one)]
    unchanged = {id(message): raw for message, raw in zip(messages, sent, strict=True)}
    return [unchanged.get(id(message)) or write_json(message) for message in join_same_roles(messages)]


def with_members(raw: bytes, changed: Mapping[str, bytes]) -> bytes:
    """Return a body with other values of some of its members, or new ones; the rest stays as it came, in its order."""
    members = {name: bytes(value) for name, value in members_of(raw).items()} | dict(changed)
    return b"{%s}" % b",".join(b"%s:%s" % (write_json(name), value) for name, value in members.items())


def _is_left_to_client(native: JsonMapping) -> bool:
    """Return whether a recorded message is sent only if the client's list has it.

    The client's system messages, as they are now, are at the front; reasoning that it left out may be out of date.
    """
    return native.get("role") in _SYSTEM_ROLES or native.get("type") == "reasoning"


# Thinking.

BINDING_BETA = "thinking-binding-controls-2026-08-01"
_DROP_BLOCK = {"prefix_mismatch_behavior": "drop_block"}


def thinking_that_drops_blocks(wire: Wire, raw: bytes) -> bytes | None:
    """Return the member `thinking` of a request so that a mismatch drops a block; None if it says so or has none.

    Newer Claude models refuse thinking that was said after another prefix. The view holds none that the log knows to be
    such; a client that goes back to an earlier state may still send some.
    """
    if wire != "anthropic":
        return None
    members = members_of(raw)
    thinking, model = (read_json(members.get(name, b"null")) for name in ("thinking", "model"))
    if not binds_thinking(model if isinstance(model, str) else None, "anthropic-messages"):
        return None
    if not is_mapping(thinking) or "block_binding" in thinking or thinking.get("type") == "disabled":
        return None
    return write_json({**thinking, "block_binding": _DROP_BLOCK})


# Cache marks.


def _with_cache_mark(message: JsonMapping, mark: object) -> JsonMapping:
    """Return a message with the cache mark of one that it replaces; as it is if it has nothing that can be marked."""
    content = message.get("content")
    blocks: object = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not is_list(blocks) or not blocks or not is_mapping(blocks[-1]):
        return message
    return {**message, "content": [*blocks[:-1], {**blocks[-1], "cache_control": mark}]}


def _cache_mark(raw: bytes) -> object:
    """Return the last cache mark in a message; None if it has none."""
    if b'"cache_control"' not in raw:
        return None
    blocks = objects_in(as_object(read_json(raw)).get("content"))
    marks = [mark for block in blocks if (mark := block.get("cache_control"))]
    return marks[-1] if marks else None


def _mark_count(raw: bytes) -> int:
    return raw.count(b'"cache_control"')
