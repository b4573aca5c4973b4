"""Wherever a conversation was kept, the laboratory plays what was said, and says what it cannot play."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.apps.lab.recordings import Recording, concatenate
from holdfast.apps.lab.replay import DEFAULT_STATIC_TOKENS
from holdfast.apps.lab.runner import make_jobs, play_job
from holdfast.apps.lab.simulation import full_message_text
from holdfast.apps.lab.sources import load_program_sessions, load_recordings
from holdfast.core.planning.situation import PROVIDER_PRICES
from holdfast.importers.programs import program_named
from holdfast.session.maintenance.transfer import import_session, records_from_file
from holdfast.session.session import Session
from holdfast.stores.base import Store
from holdfast.stores.jsonl import load_file
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import (
    JsonMessage,
    assistant_message,
    system_message,
    tool_call_message,
    tool_result_message,
    user_message,
)
from holdfast.testing.sessions import generate_session
from holdfast.wire.convert import convert
from holdfast.wire.formats import format_named
from tests.importers.reading import copy_of

BUDGET = 5_000
MEASURED_IN_TIME = ("M10", "M12")
"""What depends on the machine."""
SYSTEM = "You are a build bot."
TALK = [
    system_message(SYSTEM),
    user_message("Look at src/a.py"),
    tool_call_message("c1", "c2", arguments={"path": "src/a.py"}),
    tool_result_message("c1", "one"),
    tool_result_message("c2", "two"),
    assistant_message("Both are fine."),
    user_message("And src/b.py?"),
    tool_call_message("c3", arguments={"path": "src/b.py"}),
    tool_result_message("c3", "three"),
    assistant_message("So is that."),
    user_message("Thanks."),
]


async def figures(recording: Recording) -> dict[str, float]:
    """Return what the default does with a recording, without what depends on the machine."""
    jobs = make_jobs(
        [recording], ["default"], [BUDGET], [PROVIDER_PRICES["anthropic"]], static=DEFAULT_STATIC_TOKENS, seconds=60
    )
    (found,) = [await play_job(job) for job in jobs if job.aspect == "main"]
    assert found.problem == ""
    return {name: value for name, value in found.figures.items() if not name.startswith(MEASURED_IN_TIME)}


def shape(native: Mapping[str, object]) -> tuple[str, str, int]:
    """Return what a message says, and how many calls it makes: ids are the format's own."""
    message = format_named("openai-chat").decode(native, 0)
    return message.role, full_message_text(native), len(message.calls)


async def read(source: str | Path, store: Store | None = None) -> Recording:
    (found,), problems = await load_recordings([str(source)], store or MemoryStore())
    assert problems == []
    return found


async def kept(messages: Sequence[Mapping[str, object]], wire: str, system: object = None) -> Store:
    """Return a store in which a conversation was recorded, as a program records it."""
    store = MemoryStore()
    async with Session.open("talk", store=store) as session:
        await session.record(messages, format=wire)
        if system is not None:
            await session.prepare(10**6, system=system)
    return store


def lines(path: Path, *values: object) -> Path:
    path.write_text("\n".join(map(json.dumps, values)) + "\n")
    return path


async def test_a_file_its_bare_messages_its_import_and_its_session_give_the_same_figures(tmp_path: Path) -> None:
    messages = [*generate_session(40)]
    file = lines(tmp_path / "talk.jsonl", {"id": "talk", "messages": messages})
    bare = lines(tmp_path / "bare.jsonl", *messages)
    brought = MemoryStore()
    await import_session(brought, "talk", records_from_file(load_file(file).conversations[0], 1_000))

    found = [
        await read(file),
        await read(bare),
        await read("talk", brought),
        await read("talk", await kept(messages, "openai-chat")),
    ]

    assert [one.messages for one in found] == [messages] * 4
    assert [await figures(one) for one in found[1:]] == [await figures(found[0])] * 3


@pytest.mark.parametrize("wire", ["anthropic-messages", "pydantic-ai", "openai-responses", "gemini"])
async def test_a_session_in_another_format_is_played_as_it_was_said(wire: str) -> None:
    there = convert(TALK, source="openai-chat", target=wire)
    store = await kept(there.messages, wire, there.system)

    found = await read("tal", store)

    assert [*map(shape, found.messages)] == [*map(shape, TALK)]


async def test_a_long_session_of_anthropics_and_of_pydantic_ais_gives_the_figures_of_its_file() -> None:
    messages = [*generate_session(40)]
    plain = replace(await read("talk", await kept(messages, "openai-chat")), static=0)

    for wire in ("anthropic-messages", "pydantic-ai"):
        there = convert(messages, source="openai-chat", target=wire)
        found = await read("talk", await kept(there.messages, wire, there.system))

        assert found.notes == ()
        assert await figures(replace(found, static=0)) == await figures(plain)


async def test_a_history_that_pydantic_ai_wrote_to_a_file_is_played_as_it_was_said(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_text(json.dumps(convert(TALK, source="openai-chat", target="pydantic-ai").messages))

    found = await read(path)

    assert (found.name, [*map(shape, found.messages)]) == ("history", [*map(shape, TALK)])


async def test_what_is_broken_is_played_broken_and_nothing_is_made_up() -> None:
    torn = [
        user_message("go"),
        tool_call_message("a"),
        user_message("still there?"),
        tool_result_message("zzz", "whose?"),
        assistant_message("yes"),
    ]

    found = await read("talk", await kept(torn, "openai-chat"))

    assert found.messages == torn


async def test_a_file_written_for_anthropic_is_read_as_that(tmp_path: Path) -> None:
    there = convert(TALK[1:], source="openai-chat", target="anthropic-messages").messages

    found = await read(lines(tmp_path / "talk.jsonl", {"id": "talk", "messages": there}))

    assert [*map(shape, found.messages)] == [*map(shape, TALK[1:])]


async def test_a_file_written_for_anthropic_keeps_compactions_and_inserted_texts_in_their_places(
    tmp_path: Path,
) -> None:
    there = convert(TALK[1:], source="openai-chat", target="anthropic-messages").messages
    question = next(at for at, native in enumerate(there) if "src/b.py?" in json.dumps(native))
    messages = [{**native, "x_meta": True} if at == question else native for at, native in enumerate(there)]
    record = {"messages": messages, "meta": {"compactions": [{"at_message": question, "summary": "a.py is fine."}]}}
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps(record))

    [recording], problems = await load_recordings([str(path)], MemoryStore())

    written = [full_message_text(recording.messages[index]) for index in sorted(recording.inserted)]
    (compaction,) = recording.compactions
    assert (problems, written) == ([], ["And src/b.py?"])
    assert recording.messages[compaction.index] == user_message("And src/b.py?")


async def test_system_text_and_tools_of_a_session_come_from_its_log() -> None:
    store, tool = MemoryStore(), {"type": "function", "function": {"name": "read_file"}}
    async with Session.open("talk", store=store, model="gpt-5") as session:
        await session.record([user_message("hello")])
        prepared = await session.prepare(8_000, system=SYSTEM, tools=[tool])
        await session.record([assistant_message("hi")], usage={"input_tokens": prepared.tokens.total})

    found = await read("talk", store)

    assert found.messages == [system_message(SYSTEM), user_message("hello"), assistant_message("hi")]
    assert found.static == prepared.tokens.tools > 0
    (full,) = make_jobs(
        [found], ["full"], [BUDGET], [PROVIDER_PRICES["none"]], static=DEFAULT_STATIC_TOKENS, seconds=60
    )
    assert (await play_job(full)).figures["bills.prompt_tokens"] == pytest.approx(1, abs=0.25)
    assert concatenate([found, found]).static == found.static


async def test_annotations_of_an_imported_recording_are_taken_off_and_heeded(tmp_path: Path) -> None:
    messages: list[JsonMessage] = [
        {**user_message("a"), "x_ts": "2026-01-01T00:00:00Z"},
        {**assistant_message("b"), "x_ts": "2026-01-01T00:01:00Z", "x_usage": {"input": 9}},
    ]
    file = lines(tmp_path / "talk.jsonl", {"messages": messages})
    store = MemoryStore()
    await import_session(store, "talk", records_from_file(load_file(file).conversations[0], 1_000))

    there, here = await read("talk", store), await read(file)

    assert (there.messages, there.times, there.usage) == (here.messages, here.times, here.usage)
    assert there.messages == [user_message("a"), assistant_message("b")]


async def test_what_cannot_be_played_is_told_once_with_file_line_and_session_and_left_out(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "talks.jsonl",
        {"id": "good", "messages": [user_message("a"), assistant_message("b")]},
        {"id": "odd", "messages": [user_message("a"), {"role": "user", "content": 5}, assistant_message("b")]},
        {"id": "none", "messages": [user_message("a")]},
        {"id": "text", "messages": "hello"},
        {"id": "roles", "messages": [user_message("a"), "b"]},
    )
    empty = lines(tmp_path / "empty.jsonl", {"type": "a note"})
    torn = tmp_path / "torn.jsonl"
    torn.write_text('{"id": "x", "messages": [\n')
    bare = lines(tmp_path / "bare.jsonl", user_message("a"), {"role": "user", "content": 5}, assistant_message("b"))

    found, problems = await load_recordings(
        [str(path), str(torn), str(bare), str(empty), "tlaks.jsonl", f"{tmp_path}/"], MemoryStore()
    )

    assert [one.name for one in found] == ["good"]
    assert problems == [
        f"{path}, line 2: session 'odd': messages[1].content: must be a string or a list of blocks, not a number",
        f"{path}, line 3: session 'none': there is no assistant turn to replay",
        f"{path}, line 4: session 'text': must be an object with a list of messages",
        f"{path}, line 5: session 'roles': messages[1]: must be an object with a role",
        f"{torn}: nothing in it can be read as JSON",
        f"{bare}: line 2: session 'bare': messages[1].content: must be a string or a list of blocks, not a number",
        f"{empty}: it holds neither a Holdfast export nor chat messages nor pydantic-ai messages",
        "tlaks.jsonl: there is no such file, and no such session",
        f"{tmp_path}/: it is a folder; name its files, such as {tmp_path}/*.jsonl",
    ]


async def test_a_line_that_is_nested_too_deeply_is_a_problem_of_its_own(tmp_path: Path) -> None:
    path = lines(tmp_path / "talks.jsonl", {"id": "good", "messages": TALK})
    with path.open("a") as file:
        file.write("[" * 100_000 + "\n")

    found, problems = await load_recordings([str(path)], MemoryStore())

    assert [one.name for one in found] == ["good"]
    assert [problem.partition(": maximum recursion")[0] for problem in problems] == [f"{path}, line 2"]


async def test_recordings_of_one_name_are_told_apart(tmp_path: Path) -> None:
    talk = {"id": "x", "messages": [user_message("a"), assistant_message("b")]}

    found, _ = await load_recordings([str(lines(tmp_path / "talks.jsonl", talk, talk))], MemoryStore())

    assert [one.name for one in found] == ["x", "x (2)"]


async def test_the_name_of_a_recording_stays_on_the_line_of_its_results(tmp_path: Path) -> None:
    said = [user_message("hello"), assistant_message("hi")]
    file = lines(
        tmp_path / "talk.jsonl", *({"id": name, "messages": said} for name in ("one\nall  0.1", "one all  0.1"))
    )

    recordings, problems = await load_recordings([str(file)], MemoryStore())

    assert (problems, [one.name for one in recordings]) == ([], ["one all  0.1", "one all  0.1 (2)"])


async def test_sessions_of_another_program_are_replayed_with_its_own_compactions(tmp_path: Path) -> None:
    root = copy_of("claude-code", tmp_path)

    (recording,), problems = await load_program_sessions(program_named("claude-code"), [str(root)], 10)

    assert problems == []
    assert recording.messages[0] == {"role": "system", "content": "You are a gardener.\n\nBe brief."}
    (compaction,) = recording.compactions
    assert compaction.summary == "This session is being continued. Summary: twelve tulips, four roses."
    assert recording.messages[compaction.index - 1]["content"] == "Four roses. I did not look for lilies."
    written = [str(recording.messages[index]["content"])[:20] for index in sorted(recording.inserted)]
    assert written == ["<local-command-cavea", "<local-command-stdou", "<system-reminder>\nRe"]
    assert recording.is_claude
    assert recording.static is not None


async def test_a_link_that_leads_elsewhere_is_named_with_the_reason_why_it_is_not_read(tmp_path: Path) -> None:
    root, elsewhere = copy_of("claude-code", tmp_path / "sessions"), tmp_path / "elsewhere.jsonl"
    elsewhere.write_text("{}\n")
    (root / "link.jsonl").symlink_to(elsewhere)

    _, problems = await load_program_sessions(program_named("claude-code"), [str(root)], 10)

    assert problems == [f"not read: {root}/link.jsonl is a link that leads elsewhere"]


async def test_the_newest_sessions_of_a_program_are_replayed_and_empty_ones_are_not(tmp_path: Path) -> None:
    root = copy_of("codex", tmp_path)
    fork, main = (next(root.rglob(f"*{number}.jsonl")) for number in ("0003", "0001"))
    empty = main.with_name("rollout-2026-03-02T10-00-00-0009.jsonl")
    empty.write_text('{"type": "session_meta", "payload": {"id": "0009"}}\n')
    for number, path in enumerate((main, fork, empty)):
        os.utime(path, (4_000_000_000 + number, 4_000_000_000 + number))

    found, problems = await load_program_sessions(program_named("codex"), [str(root)], 1)

    assert [one.name for one in found] == ["codex-01a00000-0000-7000-8000-000000000003"]
    assert problems == []
