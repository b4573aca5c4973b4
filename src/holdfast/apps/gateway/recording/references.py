"""The items of answers to which clients of OpenAI Responses refer by their ids, because the provider keeps them.

A client that has its responses stored may send `{"type": "item_reference", "id": "msg_1"}` instead of the message. The
log has the message itself, so a reference is compared and recorded as what it stands for; the request is sent as it
came.
"""

from collections import OrderedDict
from collections.abc import Sequence

from holdfast.apps.gateway.recording.client_body import ClientBody
from holdfast.apps.gateway.recording.identity import AnswerIndex, response_hash
from holdfast.apps.gateway.recording.open_sessions import OpenSessions
from holdfast.core.conversation.json_values import encode_json
from holdfast.wire.answers import JsonMapping, JsonObject

MAX_KNOWN_ITEMS, MAX_KNOWN_BYTES = 2_048, 16_000_000
"""What is kept in memory, by number and by JSON: an image that the provider made is an item of megabytes."""
MAX_SEARCHED_REFERENCES = 8
"""How many references that memory does not know are looked up in the store, the newest first."""
_MARK = b'"item_reference"'


class ReferredItems:
    """Finds the items of recorded answers by their ids: the newest in memory, the others in the logs."""

    def __init__(self, sessions: OpenSessions) -> None:
        self._sessions = sessions
        self._index: AnswerIndex = sessions.index
        self._known = OrderedDict[bytes, tuple[JsonObject, int]]()
        self.size = 0
        """How many bytes of JSON are kept in memory."""

    def note(self, namespace: str, natives: Sequence[JsonMapping]) -> None:
        """Keep the items of an answer in memory."""
        for native in natives:
            if isinstance(item_id := native.get("id"), str) and item_id:
                key, size = _key(namespace, item_id), len(encode_json(native))
                self.size += size - self._known.pop(key, ({}, 0))[1]
                self._known[key] = {**native}, size
        while len(self._known) > MAX_KNOWN_ITEMS or self.size > MAX_KNOWN_BYTES:
            _, (_, size) = self._known.popitem(last=False)
            self.size -= size

    async def add(self, namespace: str, session_id: str, natives: Sequence[JsonMapping]) -> None:
        """Remember durably which session has an answer, by the id of its last item."""
        named = [item_id for native in natives if isinstance(item_id := native.get("id"), str) and item_id]
        if named:
            await self._index.add(_key(namespace, named[-1]), session_id)

    async def resolve(self, namespace: str, body: ClientBody, raw: bytes) -> None:
        """Read the references of a body as the items that they stand for, as far as these are known."""
        if body.wire != "openai-responses" or _MARK not in raw:
            return
        keys = {index: _key(namespace, item_id) for index, item_id in _references(body)}
        missing = [key for key in keys.values() if key not in self._known]
        stored = await self._stored(namespace, missing[::-1]) if missing else {}
        for index, key in keys.items():
            if (native := stored.get(key) or self._known.get(key, (None, 0))[0]) is not None:
                body.replace_message(index, native)

    async def _stored(self, namespace: str, missing: Sequence[bytes]) -> dict[bytes, JsonObject]:
        """Return the items of the session that has one of the missing ones."""
        found = await self._index.sessions_with(missing[:MAX_SEARCHED_REFERENCES])
        if found is None:
            return {}
        async with self._sessions.session(found[1][-1]) as opened, opened.lock:
            natives = await opened.session.messages()
        self.note(namespace, natives)
        return {_key(namespace, str(native["id"])): {**native} for native in natives if native.get("id")}


def _references(body: ClientBody) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for index, raw in enumerate(body.slices):
        if _MARK in bytes(raw) and (native := body.message(index)).get("type") == "item_reference":
            found.append((index, str(native.get("id"))))
    return found


def _key(namespace: str, item_id: str) -> bytes:
    return response_hash(namespace, f"item\0{item_id}")
