"""What a chat has not sent yet: prompts that could not be recorded, and news for the model."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.apps.chat.chat import Chat
from holdfast.apps.chat.events import ChatNotice
from holdfast.apps.settings.sources import load_settings
from holdfast.errors import StoreUnavailableError
from holdfast.stores.memory import MemoryStore
from tests.chat.conftest import Served
from tests.chat.recording_screen import RecordingScreen, reply_to


class FullStore(MemoryStore):
    """A store on a disk that is full for a while."""

    is_full = False

    async def append(self, *arguments: Any, **named: Any) -> int:
        if self.is_full:
            raise StoreUnavailableError("chats.db", "No space left on device")
        return await super().append(*arguments, **named)


@pytest.fixture
def store() -> FullStore:
    return FullStore()


@pytest.fixture
def screen() -> RecordingScreen:
    return RecordingScreen("yes", "yes")


@pytest.fixture
async def chat(tmp_path: Path, served: Served, store: FullStore, screen: RecordingScreen) -> Chat:
    flags = {"model": served.model, "budget": "8000"}
    settings = load_settings(flags=flags, cwd=tmp_path, environ={"HOLDFAST_HOME": str(tmp_path)})
    chat = Chat(settings, screen, folder=tmp_path, store=store)
    await chat.open_conversation()
    await chat.take_turn("first")
    return chat


async def test_retry_sends_a_paste_that_could_not_be_stored_and_leaves_the_turn_before_it(
    chat: Chat, store: FullStore, served: Served, screen: RecordingScreen
) -> None:
    paste = "salt water\n" * 4_000

    store.is_full = True
    failed = await chat.take_turn(paste)
    store.is_full = False
    await reply_to(chat, screen, "/retry")
    said = [message["content"] for message in served.asked[-1] if message["role"] == "user"]
    await chat.close()

    assert (failed, len(served.prompts)) == ("failed", 2)
    begin = "[attached: paste-1.txt, 4,000 lines, 43,999 characters;"
    assert [str(one)[: len(begin)] for one in said] == ["first", begin]
    assert chat.file_tools.attachments == {"paste-1.txt": paste.strip()}


async def test_files_for_a_prompt_that_could_not_be_stored_are_sent_with_its_retry(
    chat: Chat, store: FullStore, served: Served, screen: RecordingScreen, tmp_path: Path
) -> None:
    (tmp_path / "tides.txt").write_text("the tide turns at four\n" * 2_000)
    await reply_to(chat, screen, "/attach tides.txt")

    store.is_full = True
    failed = await chat.take_turn("When does it turn?")
    store.is_full = False
    await reply_to(chat, screen, "/retry")
    await chat.close()

    begin = "When does it turn?\n\n[attached: tides.txt, 2,000 lines, 46,000 characters;"
    assert (failed, [prompt[: len(begin)] for prompt in served.prompts]) == ("failed", ["first", begin])


async def test_a_prompt_that_was_never_recorded_is_named_when_another_one_takes_its_place(
    chat: Chat, store: FullStore, served: Served, screen: RecordingScreen
) -> None:
    store.is_full = True
    await chat.take_turn("second")
    await chat.take_turn("third")
    store.is_full = False
    await reply_to(chat, screen, "/retry")
    await chat.close()

    warnings = [one.text for one in screen.events if isinstance(one, ChatNotice) and one.level == "warning"]
    assert warnings == ["the prompt before this one was never recorded, and is not sent: second"]
    assert served.prompts == ["first", "third"]


async def test_a_prompt_that_was_never_recorded_is_sent_in_its_own_conversation_only(
    chat: Chat, store: FullStore, served: Served, screen: RecordingScreen
) -> None:
    one = chat.session.id
    store.is_full = True
    await chat.take_turn("a question of this conversation")
    store.is_full = False

    await reply_to(chat, screen, "/new")
    await chat.take_turn("other")
    await reply_to(chat, screen, "/retry")
    await reply_to(chat, screen, f"/resume {one}")
    await reply_to(chat, screen, "/retry")
    await chat.close()

    assert served.prompts == ["first", "other", "other", "a question of this conversation"]


async def test_a_changed_plan_is_told_in_its_own_conversation_and_in_a_copy_of_it(
    chat: Chat, served: Served, screen: RecordingScreen
) -> None:
    one = chat.session.id
    await reply_to(chat, screen, "/plan Build the ark.")

    await reply_to(chat, screen, "/fork")
    await chat.take_turn("in the copy")
    await reply_to(chat, screen, "/new")
    await chat.take_turn("elsewhere")
    await reply_to(chat, screen, f"/resume {one}")
    await chat.take_turn("back")
    await chat.close()

    news = "[The user changed the plan:\nBuild the ark.]"
    assert served.prompts == ["first", f"in the copy\n\n{news}", "elsewhere", f"back\n\n{news}"]
