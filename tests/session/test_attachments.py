"""Attachments belong to the conversation: in its log, outside its requests."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.recall.query import RecallQuery
from holdfast.errors import SettingsError
from holdfast.session.maintenance.scrub import scrub
from holdfast.session.maintenance.transfer import export_records, import_session
from holdfast.session.session import Session
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store

PASTE = "".join(f"line {number} of the log\n" for number in range(1, 3_001)) + "the needle is AB-4711\n"
PROMPT = {"role": "user", "content": "What is in paste-1.txt?"}
ANSWER = {"role": "assistant", "content": "A log."}


async def test_an_attachment_is_in_no_request_and_recall_finds_all_of_it() -> None:
    async with Session.open("s") as session:
        await session.record([PROMPT, ANSWER])
        position = await session.attach("paste-1.txt", PASTE)
        await session.record([PROMPT])

        request = await session.prepare(4_000)
        found = await session.recall("needle AB-4711")
        lines = await session.recall(RecallQuery(refs=f"#{position}:L2999-L3001"))

    assert request.messages == [PROMPT, ANSWER, PROMPT]
    assert [(one.position, one.speaker_label) for one in found.excerpts[:1]] == [(position, "attachment")]
    assert lines.excerpts[0].text == "line 2999 of the log\nline 3000 of the log\nthe needle is AB-4711\n"
    assert session.attachments == ["paste-1.txt"]


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{folder}/a.db"])
async def test_an_attachment_is_forked_exported_imported_and_scrubbed_with_its_session(
    tmp_path: Path, url: str
) -> None:
    store = open_store(url.format(folder=tmp_path))
    async with Session.open("s", store=store) as session:
        await session.attach("paste-1.txt", PASTE)
        await session.record([PROMPT])
        fork = await session.fork("fork")
        assert (fork.attachments, await fork.attachment("paste-1.txt")) == (["paste-1.txt"], PASTE)
        await fork.close()
    records = [(one.position, one.time_ms, one.record) async for one in export_records(store, "s")]
    other = MemoryStore()
    await import_session(other, "there", records)

    result = await scrub(store, "s", "AB-4711", time_ms=1)

    assert (result.count, result.elsewhere) == (1, ("fork",))
    async with Session.open("there", store=other) as imported, Session.open("s", store=store) as scrubbed:
        assert await imported.attachment("paste-1.txt") == PASTE
        assert await scrubbed.attachment("paste-1.txt") == PASTE.replace("AB-4711", "[scrubbed]")
    await store.close()


async def test_an_attachment_survives_a_restart_from_a_snapshot_and_a_clear_removes_it() -> None:
    store = MemoryStore()
    async with Session.open("s", store=store) as session:
        await session.attach("paste-1.txt", PASTE)
        await session.record([PROMPT, ANSWER])
    async with Session.open("s", store=store) as session:
        assert await session.attachment("paste-1.txt") == PASTE
        await session.clear()
        assert session.attachments == []
        with pytest.raises(SettingsError, match=r"there is no attachment 'paste-1.txt'; there are: none"):
            await session.attachment("paste-1.txt")
        with pytest.raises(SettingsError, match=r"'paste-1.txt' is taken; choose another"):
            await session.attach("paste-1.txt", "other")
        await session.undo()
        assert await session.attachment("paste-1.txt") == PASTE


async def test_a_client_that_sends_its_list_again_changes_nothing_about_attachments() -> None:
    async with Session.open("s") as session:
        await session.attach("paste-1.txt", PASTE)
        await session.sync([PROMPT, ANSWER])

        assert await session.sync([PROMPT, ANSWER, PROMPT]) == range(3, 4)
        assert await session.messages() == [PROMPT, ANSWER, PROMPT]
        assert session.attachments == ["paste-1.txt"]


async def test_a_pasted_text_gives_no_constraints_and_no_prompt_to_a_compaction() -> None:
    paste = "Never touch the folder config/. Always answer in French.\n" * 300
    async with Session.open("s") as session:
        for number in range(12):
            await session.attach(f"paste-{number}.txt", paste)
            await session.record([{"role": "user", "content": f"Question {number}: why? " + "word " * 300}, ANSWER])
        request = await session.prepare(2_000)

    assert request.receipt.compacted
    assert "config/" not in str(request.messages)
    assert request.tokens.total <= 2_000


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(st.sampled_from(["attach", "turn", "rewind", "undo", "clear"]), max_size=12))
async def test_whatever_happens_requests_carry_no_attachment_and_names_lead_to_their_text(steps: list[str]) -> None:
    async with Session.open("s") as session:
        texts: dict[str, str] = {}
        for number, step in enumerate(steps):
            if step == "attach":
                texts[f"paste-{number}.txt"] = f"secret-of-{number} " * 50
                await session.attach(f"paste-{number}.txt", texts[f"paste-{number}.txt"])
            elif step == "turn":
                await session.record([{"role": "user", "content": f"question {number} " * 60}, ANSWER])
            elif step == "clear":
                await session.clear()
            elif step == "undo":
                await session.undo()
            elif step == "rewind":
                await session.rewind(to=len(session) // 2)
        await session.record([PROMPT])

        request = await session.prepare(1_000)

        assert "secret-of-" not in str(request.messages)
        assert {name: await session.attachment(name) for name in session.attachments}.items() <= texts.items()
        assert all(not entry.message.is_attachment for entry in await session.visible_messages())
