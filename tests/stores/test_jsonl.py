"""JSON lines files are read to the last readable byte, and every loss is reported."""

import json
import os
import stat
import threading
from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import HoldfastError, MalformedInputError, convert, validate
from holdfast.errors import StoreUnavailableError
from holdfast.stores import jsonl
from holdfast.stores.base import StoredRecord
from holdfast.stores.files import write_private_lines
from holdfast.stores.jsonl import LoadedFile, UnreadableLine, export_lines, load_bytes, load_file
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.store_contract import NOW_MS, message_record
from holdfast.wire.formats import format_named

CORPUS = Path(__file__).parent.parent / "corpus"


def texts(found: LoadedFile) -> list[object]:
    return [record["data"]["native"]["content"] for _, _, record in found.conversations[0].records]  # type: ignore[index]


def test_an_export_is_read_back_unchanged() -> None:
    odd = {"type": "x.y", "schema": 1, "data": {"text": 'a\u2028b\x00\n"\ud800'}}
    records = [StoredRecord(0, NOW_MS, message_record("one")), StoredRecord(1, NOW_MS + 1, odd)]

    found = load_bytes("".join(export_lines("c1", "Parser", records)).encode())

    assert (found.source, found.session, found.conversations[0].name) == ("holdfast", "c1", "Parser")
    assert found.conversations[0].records == [(2, NOW_MS, message_record("one")), (3, NOW_MS + 1, odd)]
    assert (found.losses, found.notes) == ([], [])


def test_each_line_of_an_export_is_json_that_other_programs_read() -> None:
    native = {"role": "user", "content": "x", "score": float("nan"), "of": [1.5, float("inf"), {"a": float("-inf")}]}
    record = {"type": "message.appended", "schema": 1, "data": {"format": "openai-chat", "native": native}}

    written = "".join(export_lines("c1", "", [StoredRecord(0, NOW_MS, record)]))
    found = load_bytes(written.encode())

    assert (orjson.loads(written.splitlines()[1]))["data"]["native"] == {
        "role": "user",
        "content": "x",
        "score": None,
        "of": [1.5, None, {"a": None}],
    }
    assert (found.losses, found.notes, found.is_text_lost) == ([], [], False)


def test_numbers_that_json_has_not_are_told_with_their_line() -> None:
    found = load_bytes(
        b'{"role": "user", "content": "x"}\n{"role": "assistant", "content": "y", "a": [NaN, 1e999, 1e9]}\n'
    )

    assert [message for _, message in found.conversations[0].messages] == [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "y", "a": [None, None, 1e9]},
    ]
    assert found.notes == ["line 2: NaN, or a number too large for a float, became null"]
    assert found.is_text_lost


@pytest.mark.parametrize(
    ("name", "expected", "losses"),
    [
        ("export", ["Why does it fail?", "It splits on spaces.", "Fix it."], []),
        ("nul_padding", ["one", "two"], []),
        ("torn_last_line", ["one", "two"], [(4, 60)]),
        ("glued_records", ["one", "two", "three"], [(2, 40)]),
        ("raw_newlines", ['first\n\n    indented "quoted"', "two\u2028and\u2029more"], []),
        ("byte_order_mark", ["one"], []),
    ],
)
def test_a_damaged_export_yields_everything_readable(
    name: str, expected: list[str], losses: list[tuple[int, int]]
) -> None:
    found = load_file(CORPUS / f"{name}.jsonl")

    assert texts(found) == expected
    assert [(loss.line, loss.bytes) for loss in found.losses] == losses


def test_a_torn_end_is_reported() -> None:
    (loss,) = load_file(CORPUS / "torn_last_line.jsonl").losses

    assert loss.reason.startswith("the file ends in the middle of it")


def test_a_torn_line_in_the_middle_of_a_file_loses_only_that_line() -> None:
    lines = [json.dumps({"role": "user", "content": str(number)}) for number in range(5)]
    lines[2] = lines[2][:-4]

    found = load_bytes("\n".join(lines).encode())

    assert [message["content"] for _, message in found.conversations[0].messages] == ["0", "1", "3", "4"]
    assert [loss.line for loss in found.losses] == [3]


@pytest.mark.parametrize("name", ["unknown_kind", "newer_schema"])
def test_records_of_other_programs_are_kept(name: str) -> None:
    lines = (CORPUS / f"{name}.jsonl").read_text().splitlines()

    kept = [record for _, _, record in load_file(CORPUS / f"{name}.jsonl").conversations[0].records]

    assert [record["data"] for record in kept] == [json.loads(line)["data"] for line in lines[1:]]


def test_single_messages_are_one_conversation_and_lists_of_messages_are_several() -> None:
    single = load_file(CORPUS / "chat_messages.jsonl")
    several = load_file(CORPUS / "chat_conversations.jsonl")

    assert (single.source, several.source) == ("openai-chat", "openai-chat")
    assert [message["role"] for _, message in single.conversations[0].messages] == ["system", "user", "assistant"]
    assert [len(one.messages) for one in several.conversations] == [2, 2]


def test_a_pydantic_ai_history_is_one_conversation_with_separate_system_text() -> None:
    found = load_file(CORPUS / "pydantic_ai.json")

    (conversation,) = found.conversations
    natives = [dict(message) for _, message in conversation.messages]

    assert (found.source, conversation.format, found.losses) == ("pydantic-ai", "pydantic-ai", [])
    assert [native["kind"] for native in natives] == ["request", *["request", "response"] * 3]
    read = format_named("pydantic-ai").decode
    assert [read(native, index).role for index, native in enumerate(natives)] == ["system", *["user", "assistant"] * 3]
    messages = convert(natives, source="pydantic-ai", target="openai-chat").messages
    assert [message["role"] for message in messages] == [
        "system", "user", "assistant", "tool", "assistant", "tool", "user", "assistant", "user",
    ]  # fmt: skip
    assert messages[2] == {
        "role": "assistant",
        "content": "Reading.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path":"a.py"}'}},
        ],
    }
    assert messages[5]["content"] == "n must be a number"
    assert validate(messages, "openai-chat") == []


def test_entries_of_another_kind_are_reported() -> None:
    content = b'{"role":"user","content":"a"}\n{"x":1}\n7\n{"type":"t","data":{}}\n'

    assert load_bytes(content).losses == [
        UnreadableLine(2, 7, "neither a record nor a message"),
        UnreadableLine(3, 1, "neither a record nor a message"),
        UnreadableLine(4, 22, "holdfast entry in a file of format openai-chat"),
    ]


def test_bytes_that_are_not_utf8_are_replaced_with_a_note() -> None:
    found = load_bytes(b'{"role":"user","content":"a\xffb"}')

    assert found.conversations[0].messages == [(1, {"role": "user", "content": "a\ufffdb"})]
    assert found.notes == ["bytes that are not UTF-8 were replaced, the first at 27"]
    assert found.is_text_lost


@pytest.mark.parametrize(
    "content", [b"", b"\x00\x00", b"hello", b"{", b"[]", b'{"a": 1}', b"[" * 100_000, b"1" * 9_999]
)
def test_a_file_without_a_conversation_is_rejected(content: bytes) -> None:
    with pytest.raises(MalformedInputError):
        load_bytes(content)


@given(st.binary(max_size=300), st.integers(0, 10_000), st.integers(0, 40))
def test_no_damage_raises_any_other_error(noise: bytes, place: int, cut: int) -> None:
    content = (CORPUS / "export.jsonl").read_bytes()
    at = place % len(content)

    try:
        found = load_bytes(content[:at] + noise + content[at + cut :])
    except HoldfastError:
        return

    assert all(loss.line >= 1 and loss.bytes >= 0 for loss in found.losses)


def test_only_the_owner_can_read_an_export_and_a_failure_leaves_no_partial_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    write_private_lines(path, ["one\n"])

    def failing() -> list[str]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_private_lines(path, (line for line in failing()))

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["out.jsonl"]
    assert path.read_text() == "one\n"
    with pytest.raises(StoreUnavailableError):
        write_private_lines(tmp_path / "nowhere" / "x", ["one\n"])
    with pytest.raises(StoreUnavailableError):
        load_file(tmp_path / "nothing.jsonl")


def test_a_device_without_end_is_refused_and_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=[(CORPUS / "export.jsonl").read_bytes()])
    writer.start()

    assert texts(load_file(pipe)) == ["Why does it fail?", "It splits on spaces.", "Fix it."]
    writer.join()
    with pytest.raises(StoreUnavailableError, match=r"^/dev/zero: it is a device, not a file; name a file or a pipe$"):
        load_file(Path("/dev/zero"))


async def test_a_sqlite_store_is_not_read_as_lines_but_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    store = SqliteStore(path)
    await store.append("s", [message_record("short")], after=0, time_ms=NOW_MS)
    await store.close()

    with pytest.raises(MalformedInputError) as refusal:
        load_file(path)

    assert str(refusal.value) == (
        f"{path}: it is a SQLite file; open it with --store, or save it with `holdfast recover`"
    )


def test_a_utf16_file_is_read_with_a_note() -> None:
    line = json.dumps({"id": "s1", "messages": [{"role": "user", "content": "moin"}, {"content": "no role"}]})

    found = load_bytes((line + "\n").encode("utf-16"))

    assert found.notes == ["it was written in UTF-16"]
    assert not found.is_text_lost
    assert [loss.reason for loss in found.losses] == ["1 of its messages have no role"]


TOOL_USE = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
SAID: dict[str, list[Mapping[str, object]]] = {
    "openai-chat": [{"role": "user", "content": "x"}, {"role": "tool", "tool_call_id": "a", "content": "y"}],
    "anthropic-messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [TOOL_USE]}],
    "gemini": [{"role": "user", "parts": [{"text": "x"}]}],
    "openai-responses": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}],
}


def lines(*values: object) -> bytes:
    return "\n".join(map(json.dumps, values)).encode()


@pytest.mark.parametrize("name", SAID)
def test_plain_messages_are_read_in_the_format_that_they_show(name: str) -> None:
    of_lines, of_list = load_bytes(lines(*SAID[name])), load_bytes(lines(SAID[name]))
    of_messages = load_bytes(lines({"messages": SAID[name]}))

    assert {one.conversations[0].format for one in (of_lines, of_list, of_messages)} == {name}
    assert [message for _, message in of_lines.conversations[0].messages] == SAID[name]


RESPONSES_ITEMS: list[Mapping[str, object]] = [
    {"role": "user", "content": "x"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAA"},
    {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "a", "output": "y"},
]


def test_items_of_openai_responses_that_have_no_role_are_read_too() -> None:
    loaded = [load_bytes(lines(*RESPONSES_ITEMS)), load_bytes(lines(RESPONSES_ITEMS))]

    assert [one.conversations[0].format for one in loaded] == ["openai-responses"] * 2
    assert [[message for _, message in one.conversations[0].messages] for one in loaded] == [RESPONSES_ITEMS] * 2
    assert [one.losses for one in loaded] == [[], []]


@pytest.mark.parametrize(
    ("request_body", "messages", "notes"),
    [
        ({"model": "m", "input": RESPONSES_ITEMS}, RESPONSES_ITEMS, []),
        (
            {"contents": SAID["gemini"], "systemInstruction": {"parts": [{"text": "s"}]}},
            SAID["gemini"],
            ["line 1: only messages are imported, not systemInstruction"],
        ),
        (
            {"system": "s", "tools": [{}], "messages": SAID["anthropic-messages"]},
            SAID["anthropic-messages"],
            ["line 1: only messages are imported, not system and tools"],
        ),
    ],
    ids=["responses", "gemini", "anthropic"],
)
def test_the_messages_of_a_request_are_read_and_what_is_left_out_is_noted(
    request_body: object, messages: list[Mapping[str, object]], notes: list[str]
) -> None:
    found = load_bytes(lines(request_body))

    assert [[message for _, message in one.messages] for one in found.conversations] == [messages]
    assert (found.losses, found.notes) == ([], notes)


@pytest.mark.parametrize(
    "value",
    [
        {"input": ["a text to embed"]},
        {"type": "assistant", "message": {}},
        {"contents": 3},
        [{"type": "human", "data": {"content": "as LangChain dumps a message"}}],
    ],
)
def test_what_holds_no_messages_is_refused(value: object) -> None:
    with pytest.raises(MalformedInputError, match="it holds neither a Holdfast export nor chat messages"):
        load_bytes(lines(value))


def test_a_list_without_messages_is_reported_and_the_conversations_after_it_are_read() -> None:
    said = {"role": "user", "content": "x"}

    found = load_bytes(lines({"messages": []}, {"messages": [said]}, {"messages": [5]}))

    assert [one.messages for one in found.conversations] == [[(2, said)]]
    assert [(loss.line, loss.reason) for loss in found.losses] == [
        (1, "its messages are an empty list"),
        (3, "1 of its messages have no role"),
    ]
    with pytest.raises(MalformedInputError, match=r"^input: it holds no message: its messages are an empty list$"):
        load_bytes(lines({"messages": []}))


def test_messages_of_two_formats_are_refused_with_the_line() -> None:
    mixed = lines({"role": "user", "content": "x"}, *SAID["gemini"], *SAID["openai-chat"])

    with pytest.raises(MalformedInputError, match=r"input, line 4: its message is of format openai-chat, but that of"):
        load_bytes(mixed)


def test_records_of_two_formats_are_refused_with_the_line() -> None:
    records = [
        {"timeMs": 1, "type": "message.appended", "schema": 1, "data": {"format": name, "native": SAID[name][0]}}
        for name in ("openai-chat", "openai-chat", "gemini")
    ]

    with pytest.raises(
        MalformedInputError, match=r"input, line 3: its message is of format gemini, but that of line 1"
    ):
        load_bytes(lines(*records))


@pytest.mark.parametrize("time_ms", [10**23, -1, "soon", 1.5])
def test_a_time_that_is_none_is_noted_with_its_line_and_the_record_stays(time_ms: object) -> None:
    native = {"format": "openai-chat", "native": {"role": "user", "content": "x"}}

    found = load_bytes(lines({"timeMs": time_ms, "type": "message.appended", "schema": 1, "data": native}))

    assert [time for _, time, _ in found.conversations[0].records] == [None]
    assert found.notes == ["line 1: timeMs is not a time in milliseconds; the time before it was used"]


def test_an_open_line_is_joined_with_no_more_than_a_limit_of_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_JOINED_CHARS", 100)
    lines = ['{"role": "user", "content": "begins', *("line " * 8 for _ in range(8)), 'ends"}']
    whole = json.dumps({"role": "user", "content": "hello"})

    found = load_bytes("\n".join([whole, *lines, whole]).encode())

    assert [message["content"] for _, message in found.conversations[0].messages] == ["hello", "hello"]
    assert found.losses[0].line == 2
