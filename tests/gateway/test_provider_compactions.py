"""Compactions that a provider makes: its client then leaves out of its list what came before."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.apps.gateway.recording.exchange import ClientRequest
from holdfast.apps.gateway.recording.identity import provider_compactions
from holdfast.apps.gateway.recording.recorder import Recorder
from holdfast.core.history import events as log
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.wire.answers import Wire

Json = dict[str, Any]
CODE: Json = {"role": "user", "content": "the code word is marzipan"}
MORE: Json = {"role": "user", "content": "and now?"}
WIRES: dict[str, Wire] = {
    "/v1/responses": "openai-responses",
    "/v1/responses/compact": "openai-responses",
    "/v1/messages": "anthropic",
}
SEALED = "[The provider has compacted what came before. Only the provider can read its summary.]"


def spoken(text: str) -> Json:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "status": "completed", "content": content}


@dataclass(frozen=True)
class Case:
    """A conversation whose second answer begins with a compaction."""

    path: str
    noted: list[Json]
    compacted: list[Json]
    summary: str
    done: list[Json]


CASES = [
    Case(
        "/v1/responses",
        [spoken("Noted.")],
        [{"type": "compaction", "id": "cmp_1", "encrypted_content": "sealed"}, spoken("Compacted.")],
        SEALED,
        [spoken("Done.")],
    ),
    Case(
        "/v1/messages",
        [{"role": "assistant", "content": [{"type": "text", "text": "Noted."}]}],
        [
            {
                "role": "assistant",
                "content": [
                    {"type": "compaction", "content": "A code word was told.", "encrypted_content": None},
                    {"type": "text", "text": "Compacted."},
                ],
            }
        ],
        "A code word was told.",
        [{"role": "assistant", "content": [{"type": "text", "text": "Done."}]}],
    ),
]


def answer_of(wire: Wire, said: list[Json]) -> bytes:
    if wire == "anthropic":
        return json.dumps({"type": "message", "stop_reason": "end_turn", "usage": {}, **said[0]}).encode()
    return json.dumps({"id": "resp_1", "object": "response", "status": "completed", "output": said}).encode()


async def ask(
    kept_in: Store, path: str, listed: list[Json], said: list[Json], name: str | None = None, **fields: Any
) -> tuple[str, bool]:
    """Send a list to a gateway that has just started; return its session, and whether its bytes were sent."""
    recorder, wire = Recorder(kept_in), WIRES[path]
    member = "messages" if wire == "anthropic" else "input"
    body = json.dumps({"model": "m", "store": False} | ({member: listed} if listed else {}) | fields).encode()
    exchange = await recorder.receive(ClientRequest(wire, path, name, {}, body, "", "x"))
    exchange.feed(answer_of(wire, said))
    await exchange.finish("complete", 200)
    await recorder.close()
    return exchange.session_id, exchange.body is body


async def happened(store: Store, session_id: str) -> tuple[list[Json], list[tuple[str, str]], str]:
    """Return what is in a session's view, its side calls and what changed its context, and what recall finds."""
    recorder = Recorder(store)
    async with recorder.session(session_id) as opened:
        said = [{**native} for native in await opened.session.messages()]
        changes = [
            (type(event).__name__, event.summary.text if isinstance(event, log.CompactionCompleted) else "")
            for event in await opened.session.events()
            if isinstance(event, (log.CompactionCompleted, log.Rewound, log.SideCallRecorded))
        ]
        found = str(await opened.session.recall("marzipan"))
    await recorder.close()
    return said, changes, found


@pytest.mark.parametrize("name", ["talk", None], ids=["named", "unnamed"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: WIRES[case.path])
async def test_a_list_that_begins_with_the_providers_compaction_continues_its_conversation(
    case: Case, name: str | None
) -> None:
    store = MemoryStore()
    whole = [CODE, *case.noted, MORE]

    first, _ = await ask(store, case.path, [CODE], case.noted, name)
    await ask(store, case.path, whole, case.compacted, name)
    third = await ask(store, case.path, [*case.compacted, CODE | {"content": "go"}], case.done, name)

    said, changes, found = await happened(store, first)
    assert third == (first, True)
    assert said == [*case.compacted, CODE | {"content": "go"}, *case.done]
    assert changes == [("CompactionCompleted", case.summary)]
    assert CODE["content"] in found
    assert [session.id for session in await store.sessions(limit=9)] == [first]


@pytest.mark.parametrize(
    ("order", "stored"),
    [([CODE, spoken("Noted.")], {}), ([], {"store": True, "previous_response_id": "resp_1"})],
    ids=["stateless", "stored"],
)
async def test_a_compaction_that_a_client_asks_openai_for_is_a_side_call_and_its_next_list_begins_with_it(
    order: list[Json], stored: Json
) -> None:
    store = MemoryStore()
    compaction: Json = {"type": "compaction", "id": "cmp_1", "encrypted_content": "sealed"}
    kept: Json = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "keep this"}]}

    first, _ = await ask(store, "/v1/responses", [CODE], [spoken("Noted.")], store=bool(stored))
    ordered = await ask(store, "/v1/responses/compact", order, [kept, compaction], **stored)
    last = await ask(store, "/v1/responses", [kept, compaction, MORE], [spoken("Done.")])

    said, changes, found = await happened(store, first)
    assert (ordered, last) == ((first, True), (first, True))
    assert said == [kept, compaction, MORE, spoken("Done.")]
    assert changes == [("SideCallRecorded", ""), ("CompactionCompleted", SEALED)]
    assert CODE["content"] in found
    assert [session.id for session in await store.sessions(limit=9)] == [first]


async def test_a_message_that_is_edited_before_the_providers_compaction_is_a_rewind() -> None:
    store, case = MemoryStore(), CASES[0]
    whole = [CODE, *case.noted, MORE]

    await ask(store, case.path, [CODE], case.noted, "talk")
    await ask(store, case.path, whole, case.compacted, "talk")
    await ask(store, case.path, [CODE, *case.noted, CODE | {"content": "or?"}], case.done, "talk")

    said, changes, _ = await happened(store, "talk")
    assert said == [CODE, *case.noted, CODE | {"content": "or?"}, *case.done]
    assert changes == [("Rewound", "")]


@pytest.mark.parametrize("kind", [["compaction"], {"a": 1}, None, 7])
def test_items_and_blocks_of_any_type_are_looked_at(kind: object) -> None:
    block = {"type": kind, "content": "x"}
    natives = [{"type": kind, "role": "assistant", "content": [block, {"type": "compaction", "content": "so far"}]}]

    assert provider_compactions(natives) == [("so far", "so far")]
