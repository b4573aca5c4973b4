"""Who is speaking: the conversation that a request belongs to, and its part in it.

A client may name its conversation: in the path, in a header, or in the body. Otherwise the messages do. Each answer
that passes through the gateway has a hash over the essential content of it and of all messages before it. A later list
with an answer of the same hash continues that conversation. The first messages alone never identify one: many clients
begin every conversation with the same words.

A conversation belongs to the gateway's own key (its namespace), never to the key of the upstream, which may change.

Clients also send requests that are not part of the conversation, under the same name: for a title, for memory, for a
summary. An agent is known by its system text and its tools, so another agent's request is a side call.
"""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import groupby
from typing import TypeVar
from urllib.parse import quote, unquote

import orjson

from holdfast.apps.gateway.recording.client_body import ClientBody, read_json, texts_of
from holdfast.core.history.events import SideCallPurpose
from holdfast.dataclass import dataclass
from holdfast.stores.base import Store, session_value_key
from holdfast.wire.answers import JsonMapping, Wire, read_answer
from holdfast.wire.formats import canonical_message
from holdfast.wire.json_reader import as_object, is_list, is_mapping, objects_in
from holdfast.wire.responses import COMPACTION_ITEM_TYPES

K = TypeVar("K")
V = TypeVar("V")
SESSION_HEADERS = (
    "x-holdfast-session",
    "x-claude-code-session-id",
    "thread-id",
    "session-id",
    "x-session-id",
    "x-session-affinity",
)
"""Headers that name a conversation, the first that is there; after them any `x-…-session-id`."""
AGENT_HEADERS = ("x-claude-code-agent-id", "x-agent-id", "x-subagent-id")
PARENT_HEADERS = ("x-parent-session-id",)
"""Headers of a sub-agent that names its own session and that of its parent."""
AGENT_TYPE_HEADERS = ("x-claude-code-agent-type", "x-agent-type")
UNNAMED_PREFIX = "conversation-"
"""How the ids of sessions begin whose clients give them no name."""
MAX_CLIENT_NAME_CHARS = 200
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.~-]*")
"""A name that stays as it is in the id of a session."""
ASCII_PRINTABLE = "".join(map(chr, range(32, 127)))
MAX_INDEXED_ANSWERS = 8_192
MAX_RECENT = 256
"""How many of the last conversations are kept in mind, with what they may be recognized by."""
MAX_STORE_LOOKUPS = 64
"""How many hashes of a list are looked up in the store, the newest first."""
MIN_SIMILAR_SHARE = 0.5
MAX_ORDER_CHARS = 4_000
MIN_ORDER_CHARS = 160
_SIDE_CLASSES: Mapping[str, SideCallPurpose] = {"compaction": "summary", "auxiliary": "other"}
_TITLE = re.compile(r"\btitles?\b", re.IGNORECASE)
_TALK = re.compile(r"\b(conversation|chat|session|thread|discussion|message|words)\b", re.IGNORECASE)
_SUMMARY_ORDER = re.compile(
    r"\b(?:create|write|provide|generate|produce|prepare|compose|output)\s(?:\W?\w+\W{1,2}){0,5}?(?:summary|handoff|checkpoint|\w*snapshot)\b"
    r"|\bsummari[sz](?:e|es|ing|ation)\s(?:\w+\s){0,4}?(?:conversation|history|session|discussion|context|chat|assistant)\b",
    re.IGNORECASE,
)
_PAST = re.compile(r"\b(conversation|chat|history|context|session|so far|handoff|transcript)\b|snapshot", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.\n]")
_SEALED_SUMMARY = "[The provider has compacted what came before. Only the provider can read its summary.]"
_CLIENT_ITEMS = frozenset({"item_reference", "mcp_approval_response", "compaction_trigger", "configuration_update"})
"""Items of Responses without a role that clients write, beside the outputs of calls."""
_FORMATS: Mapping[Wire, str] = {
    "openai-chat": "openai-chat",
    "openai-responses": "openai-responses",
    "anthropic": "anthropic-messages",
    "gemini": "gemini",
}


@dataclass(frozen=True, slots=True)
class Signals:
    """What a request says about itself, in its path, headers and body."""

    name: str | None = None
    """The conversation's name, if the client gives one that is its own."""
    cache_key: str | None = None
    """A name that several conversations may share, such as `prompt_cache_key`."""
    response_id: str | None = None
    """The response that this request continues at the provider."""
    agent: str | None = None
    """The id of the sub-agent that speaks."""
    agent_type: str = "agent"
    purpose: SideCallPurpose | None = None
    """What a side call is for, if the client says that this is one."""
    has_compacted: bool = False
    """Whether the client says that it has compacted its list."""
    window: str | None = None
    """Which window of its conversation the client is in: another one after each compaction of its own."""


TOOL_CLIENTS = ("GeminiCLI",)
"""Clients whose conversation always has tools: what they send without is a call of their own, such as the choice of a
model before each turn of the Gemini CLI."""


def read_signals(path_name: str | None, headers: Mapping[str, str], body: ClientBody) -> Signals:
    """Return what a request says about itself."""
    metadata = body.fields.get("metadata")
    turn = _json_header(headers, "x-codex-turn-metadata")
    name = name_outside_body(path_name, headers)
    parent = _first(headers, PARENT_HEADERS)
    agent = name if parent else _first(headers, AGENT_HEADERS)
    kinds = (
        headers.get("x-claude-code-request-class", ""),
        headers.get("x-interaction-type", "").removeprefix("conversation-"),
        str(turn.get("request_kind") or ""),
    )
    purpose: SideCallPurpose | None = None
    for kind in kinds:
        purpose = purpose or _SIDE_CLASSES.get(kind)
    if not body.has_tools and headers.get("user-agent", "").startswith(TOOL_CLIENTS):
        purpose = purpose or side_purpose_of_words(body) or "other"
    thread = as_object(body.fields.get("thread")) if body.wire == "anthropic" else {}
    response_id = thread.get("previous_message_id") or body.fields.get("previous_response_id")
    cache_key = body.fields.get("prompt_cache_key")
    return Signals(
        name=parent or name or _name_in_body(metadata, body.fields.get("conversation")),
        cache_key=cache_key if isinstance(cache_key, str) and cache_key else None,
        response_id=response_id if isinstance(response_id, str) and response_id else None,
        agent=agent,
        agent_type=_first(headers, AGENT_TYPE_HEADERS) or "agent",
        purpose=None if agent and purpose != "summary" else purpose,
        has_compacted=headers.get("x-claude-code-context-compacted", "").lower() in {"1", "true"},
        window=headers.get("x-codex-window-id"),
    )


def name_outside_body(path_name: str | None, headers: Mapping[str, str]) -> str | None:
    """Return the name of a conversation that the path or a header has.

    Our own header is decoded as the path is, so that both name the same session.
    """
    own = _first(headers, SESSION_HEADERS[:1])
    return path_name or (unquote(own) if own else _first(headers, SESSION_HEADERS) or _other_session_header(headers))


def session_id_for(namespace: str, name: str) -> str:
    """Return the id of a session in the store; ids of two namespaces never meet, because names have no slash.

    It is the name, with percent codes for a slash, a percent sign, and what cannot be shown or quoted in one line.
    Without a name it is how all ids of the namespace begin.
    """
    if _PLAIN_NAME.fullmatch(name):
        return _in_namespace(namespace, name)
    return _in_namespace(namespace, "".join(one if is_kept else _encoded(one) for one, is_kept in _characters(name)))


def agent_key(agent: str) -> str:
    """Return the name by which a sub-agent is found again in the log."""
    return session_id_for("", agent)


def encoded_session_id(namespace: str, name: str) -> str:
    """Return the id that an earlier version gave a session: letters beyond ASCII had percent codes, too."""
    return _in_namespace(namespace, _encoded(name))


def header_of_session(session_id: str) -> str:
    """Return a session id as the value of a header, which our own header and the path take."""
    return session_id if session_id.isascii() else quote(session_id, safe=ASCII_PRINTABLE)


def _in_namespace(namespace: str, own: str) -> str:
    if len(own) > MAX_CLIENT_NAME_CHARS:
        own = f"{own[: MAX_CLIENT_NAME_CHARS // 2]}~{hashlib.sha256(own.encode()).hexdigest()[:32]}"
    return f"{quote(namespace, safe='')}/{own}" if namespace else own


def _encoded(name: str) -> str:
    return quote(name, safe=" !#$&'()*+,:;=?@[]~", errors="replace")


def _characters(name: str) -> Iterable[tuple[str, bool]]:
    """Return each character, and whether it stays as it is although it is not ASCII."""
    return ((one, not one.isascii() and one.isprintable()) for one in name)


def is_unnamed_session(session_id: str, namespace: str, cache_key: str | None) -> bool:
    """Return whether a session is one of those without a name, or with that key, if the client sends one."""
    if cache_key is None:
        return session_id.startswith(session_id_for(namespace, UNNAMED_PREFIX))
    either = (session_id_for(namespace, cache_key), encoded_session_id(namespace, cache_key))
    return session_id in either or session_id.startswith(tuple(f"{first}." for first in either))


def _first(headers: Mapping[str, str], names: Iterable[str]) -> str | None:
    for name in names:
        if name in headers and (value := headers[name].strip()):
            return _as_utf8(value)
    return None


def _as_utf8(value: str) -> str:
    """Return the value of a header, which was decoded as Latin-1, as UTF-8 if it is that."""
    try:
        return value if value.isascii() else value.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return value


def _other_session_header(headers: Mapping[str, str]) -> str | None:
    names = sorted(name for name in headers if name.startswith("x-") and name.endswith("-session-id"))
    return _first(headers, [name for name in names if name not in PARENT_HEADERS])


def _name_in_body(metadata: object, conversation: object) -> str | None:
    found: list[object] = []
    if is_mapping(metadata):
        found.append(metadata.get("session_id"))
        user = metadata.get("user_id")
        if isinstance(user, str) and user.startswith("{"):
            try:
                value = read_json(user.encode())
            except ValueError:
                value = None
            found.append(value.get("session_id") if is_mapping(value) else None)
    found.append(conversation.get("id") if is_mapping(conversation) else conversation)
    return next((name for name in found if isinstance(name, str) and name), None)


def _json_header(headers: Mapping[str, str], name: str) -> JsonMapping:
    if name not in headers:
        return {}
    try:
        value = read_json(headers[name].encode())
    except ValueError:
        return {}
    return value if is_mapping(value) else {}


# Agents.


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent as its requests show it: the sentences of its system text, and its tools."""

    sentences: frozenset[str]
    tools: frozenset[str]

    @classmethod
    def of(cls, body: ClientBody) -> "Agent":
        """Return the agent that speaks in a request."""
        sentences = (one.strip() for one in _SENTENCE_END.split(body.system_text))
        hashes = (_digest(one.encode(errors="replace")).hex()[:12] for one in sentences if one)
        return cls(frozenset(hashes), body.tool_names)

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> "Agent":
        """Return an agent that `to_json` wrote."""
        return cls(*(frozenset(_texts_in(value.get(name))) for name in ("sentences", "tools")))

    def to_json(self) -> dict[str, object]:
        """Return the agent as JSON."""
        return {"sentences": sorted(self.sentences), "tools": sorted(self.tools)}

    def is_same(self, other: "Agent") -> bool:
        """Return whether a request of `other` may come from this agent, with a changed date or another tool.

        An agent that has tools never speaks without them.
        """
        if self.tools and not other.tools:
            return False
        is_same_text = _share(self.sentences, other.sentences) >= MIN_SIMILAR_SHARE
        return is_same_text or (bool(self.tools) and _share(self.tools, other.tools) >= MIN_SIMILAR_SHARE)


def _texts_in(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if is_list(value) else []


def _share(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one or other else 1.0


# Side calls that only their words show.


def side_purpose_of_words(body: ClientBody) -> SideCallPurpose | None:
    """Return what a request is for if it has no tools and orders a title or a summary of a conversation."""
    if body.has_tools:
        return None
    words = body.system_text[:MAX_ORDER_CHARS]
    first = "\n".join(texts_of(body.message(0)))[:MAX_ORDER_CHARS] if body.slices else ""
    for text in (words, first):
        if _TITLE.search(text) and _TALK.search(text):
            return "title"
    return "summary" if _orders_summary(words) else None


def orders_a_summary(message: JsonMapping) -> bool:
    """Return whether the last text of a user message orders a summary of the conversation."""
    if message.get("role") != "user":
        return False
    texts = texts_of(message)
    text = texts[-1][:MAX_ORDER_CHARS] if texts else ""
    return len(text) >= MIN_ORDER_CHARS and _orders_summary(text)


def _orders_summary(text: str) -> bool:
    return bool(_PAST.search(text) and _SUMMARY_ORDER.search(text))


# The chain.


def _digest(*pieces: bytes) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


@lru_cache(maxsize=256)
def chain_start(namespace: str, wire: Wire) -> bytes:
    """Return what the chain starts with, before the first message."""
    return _digest(f"{namespace}\0{wire}".encode())


def response_hash(namespace: str, response_id: str) -> bytes:
    """Return the hash that stands for a response that the provider stores."""
    return _digest(f"{namespace}\0response\0{response_id}".encode(errors="replace"))


def essential_fingerprint(wire: Wire, native: JsonMapping) -> bytes | None:
    """Return the fingerprint of what a message says; None for an optional item."""
    if is_optional(native):
        return None
    essential = _plain_message(wire, native) or canonical_message(_FORMATS[wire], native)
    try:
        content = orjson.dumps(essential, option=orjson.OPT_SORT_KEYS)
    except (TypeError, orjson.JSONEncodeError):
        content = repr(sorted(essential.items())).encode(errors="replace")  # half a surrogate pair, a huge number
    if is_from_model(wire, native):
        # Clients trim and join what a model said, but nobody edits only its white space.
        content = content.replace(b"\\n", b"").translate(None, b" ")
    return _digest(content)


def _plain_message(wire: Wire, native: JsonMapping) -> JsonMapping | None:
    """Return what a message says that is a role and a text, as most are; None for any other.

    It is what `canonical_message` returns, in a third of the time: an opened session compares its whole list.
    """
    role, text = native.get("role"), native.get("content")
    if len(native) != 2 or type(role) is not str or type(text) is not str or wire == "gemini":  # noqa: PLR2004
        return None
    text = text.rstrip() if role == "user" else text
    return {"role": role, "content": [{"type": "text", "text": text}] if text else []}


def is_optional(native: JsonMapping) -> bool:
    """Return whether clients may leave an item out later, so that it has no place in the chain."""
    return native.get("type") == "reasoning"


def reasoning_key(native: JsonMapping) -> bytes:
    """Return what identifies an item that has no fingerprint: its encrypted content, or its id."""
    return _digest(str(native.get("encrypted_content") or native.get("id")).encode(errors="replace"))


def is_from_model(wire: Wire, native: JsonMapping) -> bool:
    """Return whether the model said a message."""
    role, kind = native.get("role"), native.get("type")
    if wire == "openai-responses" and role is None:
        return isinstance(kind, str) and not kind.endswith("_output") and kind not in _CLIENT_ITEMS
    return role in ("assistant", "model")


def provider_compactions(natives: Iterable[JsonMapping]) -> list[tuple[str, str]]:
    """Return what identifies each compaction of a list that a provider has made, and its summary as far as it is known.

    Clients of OpenAI Responses and of Anthropic may then leave out everything that came before.
    """
    found: list[tuple[str, str]] = []
    for native in natives:
        pieces = [native] if _is_compaction(native) else objects_in(native.get("content"))
        for piece in filter(_is_compaction, pieces):
            text, sealed = piece.get("content"), piece.get("encrypted_content")
            if isinstance(name := sealed or text, str) and name:
                found.append((name, text if isinstance(text, str) and text else _SEALED_SUMMARY))
    return found


def _is_compaction(piece: JsonMapping) -> bool:
    kind = piece.get("type")
    return isinstance(kind, str) and kind in COMPACTION_ITEM_TYPES


def compaction_hash(namespace: str, name: str) -> bytes:
    """Return the hash that stands for a compaction that a provider has made."""
    return response_hash(namespace, f"compaction\0{name}")


def is_prompt(native: JsonMapping) -> bool:
    """Return whether a message is a person's prompt and not the result of a tool."""
    if native.get("role") != "user":
        return False
    content = native.get("content", native.get("parts"))
    blocks = content if is_list(content) else [content]
    return any(isinstance(block, str) or (is_mapping(block) and not _is_result(block)) for block in blocks)


def _is_result(block: JsonMapping) -> bool:
    return block.get("type") == "tool_result" or "functionResponse" in block


def is_content_of_model(wire: Wire, native: JsonMapping) -> bool:
    """Return whether a message is a content of Gemini's model: those that follow each other are one answer.

    One that breaks the rules of its format is left as it is: it would be hidden by the others.
    """
    if wire != "gemini" or not is_from_model(wire, native) or is_optional(native):
        return False
    parts = native.get("parts")
    return parts is None or (is_list(parts) and all(map(_is_joinable, parts)))


def _is_joinable(part: object) -> bool:
    return is_mapping(part) and isinstance(part.get("text", ""), str) and is_mapping(part.get("functionCall", {}))


def joined_contents(natives: Sequence[JsonMapping]) -> JsonMapping:
    """Return contents of Gemini's model as one, as the chunks of a stream are joined."""
    if len(natives) == 1:
        return natives[0]
    chunks: list[JsonMapping] = [{"content": native} for native in natives]
    events = [{"candidates": [chunk]} for chunk in [*chunks, {"finishReason": "STOP"}]]
    return read_answer("gemini", events).messages[0]


@dataclass(slots=True)
class Chain:
    """A hash for each message of a client's list, over it and all before it, without leading system messages.

    Google's library sends each chunk of a streamed answer back as a content of its own. So contents of Gemini's model
    that follow each other have one hash together, which is that of the whole answer.
    """

    start: bytes
    hashes: list[bytes] = field(default_factory=list[bytes])
    """For each message: it stands for that message and all before it."""
    from_model: list[bool] = field(default_factory=list[bool])
    last_contents: list[JsonMapping] = field(default_factory=list[JsonMapping])
    """The contents that have the last hash, if another one would share it with them."""

    @property
    def last_hash(self) -> bytes:
        """The hash of the last message; of an empty list, its start."""
        return self.hashes[-1] if self.hashes else self.start

    def extend(self, wire: Wire, natives: Sequence[JsonMapping]) -> list[int]:
        """Append messages, and return how many hashes there are after each; optional items have none."""
        lengths: list[int] = []
        for are_joined, group in groupby(natives, lambda native: is_content_of_model(wire, native)):
            if are_joined:
                contents = [*group]
                if self.last_contents:
                    del self.hashes[-1], self.from_model[-1]
                self.last_contents += contents
                self._add(wire, joined_contents(self.last_contents))
                lengths += [len(self.hashes)] * len(contents)
                continue
            self.last_contents = []
            for native in group:
                self._add(wire, native)
                lengths.append(len(self.hashes))
        return lengths

    def _add(self, wire: Wire, native: JsonMapping) -> None:
        if (fingerprint := essential_fingerprint(wire, native)) is not None:
            self.hashes.append(_digest(self.last_hash, fingerprint))
            self.from_model.append(is_from_model(wire, native))

    def first(self, length: int) -> "Chain":
        """Return the chain of the first messages, as a new value."""
        last = [*self.last_contents] if length == len(self.hashes) else []
        return Chain(self.start, self.hashes[:length], self.from_model[:length], last)

    def answers(self) -> list[int]:
        """Return how many messages there are up to the end of each answer, the last answer first."""
        ends = (
            index + 1
            for index, is_answer in enumerate(self.from_model)
            if is_answer and not (index + 1 < len(self.from_model) and self.from_model[index + 1])
        )
        return [*ends][::-1]

    def answer_hashes(self) -> list[bytes]:
        """Return the hash of the last message of each answer, the last answer first."""
        return [self.hashes[end - 1] for end in self.answers()]

    def end_of_answer(self, start: int) -> int:
        """Return where the messages of the model end that begin at an index."""
        return next((index for index in range(start, len(self.hashes)) if not self.from_model[index]), len(self.hashes))

    def start_of_last_answer(self) -> int:
        """Return where the messages of the model begin that are the last ones."""
        start = len(self.hashes)
        while start and self.from_model[start - 1]:
            start -= 1
        return start

    def shared_length(self, other: "Chain") -> int:
        """Return how many first messages two chains share."""
        low, high = 0, min(len(self.hashes), len(other.hashes))
        if high and self.hashes[high - 1] == other.hashes[high - 1]:  # as in nearly every list
            return high
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.hashes[middle - 1] == other.hashes[middle - 1] else (low, middle - 1)
        return low


class Newest(OrderedDict[K, V]):
    """The `MAX_RECENT` values that were set last."""

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > MAX_RECENT:
            self.popitem(last=False)


class AnswerIndex:
    """Which sessions have the answer with a hash: the newest in memory, all of them in the store."""

    def __init__(self, store: Store, max_entries: int = MAX_INDEXED_ANSWERS) -> None:
        self._store = store
        self._max_entries = max_entries
        self._known: OrderedDict[bytes, dict[str, None]] = OrderedDict()

    def remember(self, answer_hash: bytes, session: str) -> None:
        """Add an answer to the part in memory."""
        self._known.setdefault(answer_hash, {})[session] = None
        self._known.move_to_end(answer_hash)
        while len(self._known) > self._max_entries:
            self._known.popitem(last=False)

    async def add(self, answer_hash: bytes, session: str, *, goes_on_in: str = "") -> None:
        """Add an answer durably; `goes_on_in` is the provider's id of the response that has the rest of it."""
        self.remember(answer_hash, session)
        value = {"response": goes_on_in} if goes_on_in else {}
        await self._store.put_value(session_value_key(session, "answer", answer_hash.hex()), value)

    async def rest_of(self, answer_hash: bytes, session: str) -> str:
        """Return the id of the response that has the rest of an answer; empty if it was whole."""
        value = await self._store.get_value(session_value_key(session, "answer", answer_hash.hex()))
        return str((value or {}).get("response", ""))

    async def sessions_with(
        self, hashes: Sequence[bytes], is_candidate: Callable[[str], bool] = lambda _: True
    ) -> tuple[bytes, list[str]] | None:
        """Return the first of the hashes that any session has, and sessions that have it, the newest last."""
        for index, answer_hash in enumerate(hashes):
            found = [session for session in self._known.get(answer_hash, ()) if is_candidate(session)]
            if not found and index < MAX_STORE_LOOKUPS:
                found = [session for session in await self.stored_sessions(answer_hash) if is_candidate(session)]
            if found:
                return answer_hash, found
        return None

    async def stored_sessions(self, answer_hash: bytes) -> list[str]:
        """Return the sessions that have an answer with a hash, also those that memory does not have."""
        prefix = session_value_key("", "answer", answer_hash.hex())
        found = [key.removeprefix(prefix) for key in await self._store.values(prefix)]
        for session in found:
            self.remember(answer_hash, session)
        return found
