"""What a user pastes belongs to the conversation, wherever it is continued."""

from pathlib import Path

from holdfast.apps.chat.chat import Chat
from holdfast.apps.settings.sources import load_settings
from holdfast.stores.memory import MemoryStore
from holdfast.testing.endpoint import text_stream, tool_call_stream
from tests.chat.conftest import Served
from tests.chat.recording_screen import RecordingScreen, open_chat, reply_to

PASTE = "".join(f"line {number} of the log\n" for number in range(1, 3_001)) + "the needle is AB-4711"
READ = tool_call_stream(("read_file", {"path": "paste-1.txt", "start_line": 3_000}))


async def start(home: Path, model: str, store: MemoryStore, screen: RecordingScreen) -> Chat:
    flags = {"model": model, "budget": "4000"}
    settings = load_settings(flags=flags, cwd=home, environ={"HOLDFAST_HOME": str(home)})
    return Chat(settings, screen, folder=home, store=store)


async def test_a_paste_is_read_in_a_fork_and_on_another_machine_and_recall_finds_all_of_it(
    tmp_path: Path, served: Served
) -> None:
    store, screen = MemoryStore(), RecordingScreen("yes")
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    chat = await start(tmp_path / "here", served.model, store, screen)
    await chat.open_conversation()
    await chat.take_turn(PASTE)
    first = chat.session.id
    recalled = await reply_to(chat, screen, "/recall needle")
    await reply_to(chat, screen, "/fork")
    served.script += [READ, text_stream("read in the fork")]
    await chat.take_turn("Read its end.")
    await chat.session.close()

    elsewhere = await start(tmp_path / "there", served.model, store, screen)
    await elsewhere.open_conversation(first)
    served.script += [READ, text_stream("read elsewhere")]
    await elsewhere.take_turn("Read its end.")
    await elsewhere.close()

    assert "the needle is AB-4711" in recalled
    results = [messages[-1]["content"] for messages in served.asked if messages[-1]["role"] == "tool"]
    assert results == ["line 3000 of the log\nthe needle is AB-4711\n[lines 3000–3001 of 3,001]"] * 2
    assert not list(tmp_path.rglob("paste-*"))


async def test_recall_finds_every_line_of_a_text_that_is_too_long_for_the_index(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    text = "\n".join(f"line {number} of a long log" for number in range(42_000))
    await chat.session.attach("long.log", text, format="pydantic-ai")

    found = [await reply_to(chat, screen, f"/recall {words}") for words in ("41300", "line 41300", "line 777")]
    await chat.close()

    assert ["line 41300 of a long log" in found[0], "line 41300 of a long log" in found[1]] == [True, True]
    assert "line 777 of a long log" in found[2]


async def test_a_second_paste_has_another_name_and_the_transcript_holds_both(tmp_path: Path, served: Served) -> None:
    screen = RecordingScreen("yes", "yes")
    chat = await start(tmp_path, served.model, MemoryStore(), screen)
    await chat.open_conversation()
    await chat.take_turn(PASTE)
    await chat.take_turn(PASTE.replace("needle", "second needle"))

    transcript = await reply_to(chat, screen, "/export")
    await chat.close()

    assert [line for line in transcript.splitlines() if line.startswith("*attached")] == [
        "*attached: paste-1.txt*",
        "*attached: paste-2.txt*",
    ]
    assert "the second needle is AB-4711" in transcript


async def test_a_file_that_is_attached_again_after_a_clear_is_in_the_conversation_again(
    tmp_path: Path, served: Served
) -> None:
    store, screen = MemoryStore(), RecordingScreen()
    (tmp_path / "big.log").write_text(PASTE)
    chat = await start(tmp_path, served.model, store, screen)
    await chat.open_conversation()
    await chat.take_turn("Read @big.log.")
    await reply_to(chat, screen, "/clear")
    cleared = await reply_to(chat, screen, "/attach")
    await chat.take_turn("Read @big.log again.")
    first = chat.session.id
    await chat.session.close()

    later = await start(tmp_path, served.model, store, screen)
    await later.open_conversation(first)
    served.script += [
        tool_call_stream(("read_file", {"path": "new-big.log", "start_line": 3_000})),
        text_stream("read later"),
    ]
    await later.take_turn("Read its end.")
    held = later.session.attachments
    await later.close()

    assert held == ["new-big.log"]
    assert cleared == "nothing is attached; /attach FILE attaches a file to the next prompt"
    results = [messages[-1]["content"] for messages in served.asked if messages[-1]["role"] == "tool"]
    assert results == ["line 3000 of the log\nthe needle is AB-4711\n[lines 3000–3001 of 3,001]"]


async def test_an_undone_clear_lets_the_model_read_what_was_attached_before(tmp_path: Path, served: Served) -> None:
    screen = RecordingScreen("yes")
    chat = await start(tmp_path, served.model, MemoryStore(), screen)
    await chat.open_conversation()
    await chat.take_turn(PASTE)
    await reply_to(chat, screen, "/clear")
    await chat.take_turn("And now?")
    between = dict(chat.file_tools.attachments)
    await reply_to(chat, screen, "/undo")
    served.script += [READ, text_stream("read")]
    await chat.take_turn("Read its end.")
    after = dict(chat.file_tools.attachments)
    await chat.close()

    assert (between, after) == ({}, {"paste-1.txt": PASTE})


async def test_attachments_that_an_older_version_kept_as_files_are_still_read(tmp_path: Path, served: Served) -> None:
    store = MemoryStore()
    chat = await start(tmp_path, served.model, store, RecordingScreen("yes"))
    await chat.open_conversation()
    folder = chat.settings.paths.attachments(chat.session.id)
    folder.mkdir(parents=True)
    (folder / "paste-1.txt").write_text("an older paste")
    (folder / "paste-2.txt").write_bytes(b"caf\xe9")
    await chat.take_turn("hello")
    session = chat.session.id
    await chat.session.close()

    again = await start(tmp_path, served.model, store, RecordingScreen("yes"))
    await again.open_conversation(session)
    await again.take_turn(PASTE)
    names = dict(again.file_tools.attachments)
    await again.close()

    assert names == {"paste-1.txt": "an older paste", "paste-2.txt": "caf\ufffd", "paste-3.txt": PASTE}
