"""Memory across conversations, in the chat."""

import re
from pathlib import Path

import pytest

from holdfast import Session
from holdfast.session.memory.board_file import ContextBoard, board_key, repository_of
from holdfast.session.memory.daily import DailyMemory
from holdfast.stores.memory import MemoryStore
from holdfast.testing.endpoint import http_response, text_stream, tool_call_stream
from tests.chat.conftest import Served, Sit
from tests.chat.recording_screen import add_turns, open_chat, reply_to, user_part
from tests.chat.test_pipe import ran


@pytest.mark.seed("D-23")
async def test_memory_search_finds_what_was_cleared_also_in_a_new_conversation(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path, flags={"summarization_model": "none"}, store=MemoryStore())
    keys = {"kind": "request", "parts": [user_part("the keys are in the red box")]}
    await chat.session.record([keys], format="pydantic-ai")

    await reply_to(chat, screen, "/context clear")
    await reply_to(chat, screen, "/new")
    found = await reply_to(chat, screen, "/memory search where are the keys")
    days = await reply_to(chat, screen, "/memory")
    await chat.close()

    assert "Cleared Context" in found
    assert "the keys are in the red box" in found
    assert days.startswith("DAY | FILE\n2")


async def test_memory_says_what_it_takes_and_where_it_is(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)

    answers = [await reply_to(chat, screen, line) for line in ("/memory", "/memory search", "/memory tomorrow")]
    nothing = [await reply_to(chat, screen, line) for line in ("/memory 2020-01-01", "/memory search keys")]
    await reply_to(chat, screen, "/config memory off")
    off = await reply_to(chat, screen, "/memory")
    await chat.close()

    assert answers == [
        f"there are no notes yet; notes are written to {tmp_path / 'memory'}",
        "/memory search: needs a text to search for",
        "day: 'tomorrow' is no day; write it as YYYY-MM-DD",
    ]
    assert nothing == [answers[0], answers[0]]
    assert off == "memory: is off; choose a folder for it: /config memory FOLDER"


async def test_memory_is_shown_to_a_person_as_it_was_noted_and_without_what_is_for_models(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path, flags={"summarization_model": "none"})
    await add_turns(chat, 1, words=1)
    session = chat.session.id

    await reply_to(chat, screen, "/clear")
    await reply_to(chat, screen, "/new")
    found = await reply_to(chat, screen, "/memory search question")
    (day,) = await DailyMemory(tmp_path / "memory").days()
    shown = await reply_to(chat, screen, f"/memory {day}")
    other = [await reply_to(chat, screen, line) for line in ("/memory 2020-01-01", "/memory search elephants")]
    await chat.close()

    head, _, text = found.partition("\n\n")
    assert re.sub(r"\d\d:\d\d", "TIME", head) == (
        f"**{day} · Cleared Context (TIME) · conversation {session}, messages #0-1**"
    )
    assert text == "The user asked:\n- (#0) “question 0 why”\n\nThe assistant said:\n- (#1) “answer 0 so”"
    assert shown == found
    assert other == ["there are no notes for 2020-01-01", "nothing was found"]


async def test_a_search_of_memory_says_how_much_more_there_is_and_what_could_not_be_read(tmp_path: Path) -> None:
    chat, screen = await open_chat(tmp_path)
    notes = tmp_path / "memory"
    notes.mkdir()
    for day in range(10, 17):
        (notes / f"2026-11-{day}.md").write_text("## Cleared Context (09:00)\n\nthe keys are in the red box\n")
    (notes / "2026-11-17.md").mkdir()

    found = await reply_to(chat, screen, "/memory search keys")
    await chat.close()

    assert found.count("the keys are in the red box") == 5
    assert found.splitlines()[-2] == "2 more contain some of these words; /memory DAY shows a whole day"
    assert found.splitlines()[-1] == (
        f"{notes / '2026-11-17.md'}: Is a directory; a folder stands where a file should be; move it away"
    )


async def test_a_folder_for_memory_that_cannot_be_written_is_told_on_the_screen(tmp_path: Path) -> None:
    (tmp_path / "memory").write_text("a file")
    chat, screen = await open_chat(tmp_path, flags={"summarization_model": "none"})
    await add_turns(chat, 2)

    await reply_to(chat, screen, "/clear")
    await chat.close()

    assert "memory: " in screen.since(0)
    assert "move it away" in screen.since(0)


def test_the_model_can_search_memory_unless_it_has_no_tools(
    served: Served, env: dict[str, str], tmp_path: Path
) -> None:
    folder, notes = tmp_path / "folder", Path(env["HOLDFAST_HOME"]) / "memory"
    folder.mkdir()
    notes.mkdir(parents=True)
    (notes / "2026-11-14.md").write_text("## Cleared Context (09:00)\n\nthe keys are in the red box\n")
    served.script += [tool_call_stream(("memory_search", {"query": "keys"})), text_stream("In the red box.")]

    code, out, _ = ran(served, env, folder, "-p", "Where are the keys?")
    ran(served, env, folder, "-p", "And now?", "--tools", "none")

    assert (code, out) == (0, "In the red box.\n")
    assert "the keys are in the red box" in str(served.asked[1][-1]["content"])
    offered = ["memory_search" in str(request.body.get("tools")) for request in served._endpoint.requests]
    assert offered == [True, True, False]


def work(folder: Path, branch: str = "main") -> None:
    (folder / ".git").mkdir(parents=True, exist_ok=True)
    (folder / ".git" / "HEAD").write_text(f"ref: refs/heads/{branch}\n")


async def test_the_board_is_shown_added_to_and_pruned(tmp_path: Path) -> None:
    work(tmp_path)
    chat, screen = await open_chat(tmp_path)

    empty = await reply_to(chat, screen, "/board")
    added = await reply_to(chat, screen, "/board add Use tabs, never spaces")
    entry = added[1:5]
    shown = await reply_to(chat, screen, "/board")
    wrong = [await reply_to(chat, screen, line) for line in ("/board add", "/board prune", "/board burn it")]
    unknown = await reply_to(chat, screen, "/board prune zzzz")
    pruned = await reply_to(chat, screen, f"/board prune {entry}")

    assert empty == f"the board of {tmp_path}, branch main is empty; /board add TEXT adds an entry"
    assert added == f"[{entry}] Use tabs, never spaces"
    assert f"{entry} | Use tabs, never spaces | 2" in shown
    assert {*wrong} == {"/board: takes nothing, `add TEXT` or `prune ID`"}
    assert unknown == f"board: 'zzzz' names no single entry; the ids are: {entry}"
    assert pruned == "removed: Use tabs, never spaces"


async def test_lines_of_a_board_that_cannot_be_read_are_told_and_a_board_can_be_off(tmp_path: Path) -> None:
    work(tmp_path)
    chat, screen = await open_chat(tmp_path)
    await reply_to(chat, screen, "/board add Use tabs")
    (path,) = (tmp_path / "boards").glob("*.md")
    path.write_text(path.read_text() + "scribbled\n")

    shown = await reply_to(chat, screen, "/board")
    await reply_to(chat, screen, "/config boards off")

    assert f"{path}: line 6: scribbled: is not an entry; it stays unchanged" in shown
    assert await reply_to(chat, screen, "/board") == "boards: are off; choose a folder for them: /config boards FOLDER"


@pytest.mark.seed("C-55")
def test_a_new_conversation_finds_the_board_of_its_branch_in_its_inbox(
    served: Served, env: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    work(folder)
    ran(served, env, folder, said="/board add The report is built with make report\n")

    ran(served, env, folder, said="How is it built?\nAnd then?\n/history\n")
    work(folder, "other")
    ran(served, env, folder, said="And here?\n")

    first, second, other = ([str(message["content"]) for message in asked[1:]] for asked in served.asked)
    assert [("make report" in text, "for reference only" in text) for text in first] == [(True, True), (False, False)]
    assert first[1] == "How is it built?"
    assert second[:2] == first
    assert other == ["And here?"]


async def test_a_board_that_cannot_be_read_does_not_stop_a_conversation(
    served: Served, env: dict[str, str], tmp_path: Path
) -> None:
    folder, home = tmp_path / "folder", Path(env["HOLDFAST_HOME"])
    folder.mkdir()
    home.mkdir()
    (home / "boards").write_text("a file")

    code, out, err = ran(served, env, folder, "-p", "Hello?")

    assert (code, out) == (0, "you said: Hello?\n")
    assert "board: " in err


RULE = "Always run the tests with make test."


async def finished(tmp_path: Path, store: MemoryStore, session: str, *texts: str) -> None:
    """Record a finished conversation about the repository of a folder."""
    board = ContextBoard(tmp_path / "boards", repository_of(tmp_path))
    async with Session.open(session, store=store, clock=lambda: 1_700_000_000_000) as opened:
        await store.put_value(board_key(session), {"board": board.repository.key})
        for text in texts:
            prompt = {"kind": "request", "parts": [user_part(text)]}
            reply = {"kind": "response", "parts": [{"part_kind": "text", "content": "Yes."}]}
            await opened.record([prompt, reply], format="pydantic-ai")


@pytest.mark.seed("C-55")
async def test_subconscious_run_proposes_and_changes_the_board_only_on_a_yes(tmp_path: Path) -> None:
    work(tmp_path)
    store = MemoryStore()
    await finished(tmp_path, store, "earlier", RULE)
    length = await store.length("earlier")
    chat, screen = await open_chat(tmp_path, "no", "yes", flags={"summarization_model": "none"}, store=store)

    refused = await reply_to(chat, screen, "/subconscious run")
    empty = await reply_to(chat, screen, "/board")
    agreed = await reply_to(chat, screen, "/subconscious run")
    board = await reply_to(chat, screen, "/board")
    again = await reply_to(chat, screen, "/subconscious run")
    wrong = await reply_to(chat, screen, "/subconscious")

    assert refused == f" | ENTRY | FROM\nadd | {RULE} | earlier #0\nthe board is unchanged"
    assert "is empty" in empty
    assert agreed.endswith("done; /board shows it")
    assert RULE in board
    assert again == "nothing to propose; 0 finished conversations read"
    assert wrong == "/subconscious: takes `run` or `run now`"
    assert screen.asked[0] == "Make 1 change to the board?"
    assert await store.length("earlier") == length


async def test_subconscious_says_what_it_could_not_read_and_that_boards_are_off(tmp_path: Path, served: Served) -> None:
    work(tmp_path)
    store = MemoryStore()
    await finished(tmp_path, store, "earlier", *(f"{RULE} {number}" for number in range(9)))
    flags = {"summarization_model": served.model, "model": served.model}
    served.script.append(http_response(400, {"error": {"message": "no such thing"}}))
    chat, screen = await open_chat(tmp_path, "no", flags=flags, store=store)

    read = await reply_to(chat, screen, "/subconscious run")
    await reply_to(chat, screen, "/config boards off")
    off = await reply_to(chat, screen, "/subconscious run")
    await chat.close()

    assert read == (
        "earlier: the model failed, so a rule made the proposals: "
        "served: no such thing; ask again, or choose another model\n"
        f" | ENTRY | FROM\nadd | {RULE} | earlier #0, earlier #12, earlier #14, earlier #16\n"
        "the board is unchanged"
    )
    assert off == "boards: are off; choose a folder for them: /config boards FOLDER"


@pytest.mark.seed("C-55")
def test_a_conversation_that_ends_with_nobody_there_leaves_what_it_settled_where_that_is_allowed(
    served: Served, env: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    work(folder)
    lines = f"{RULE}\nGo on.\n"

    _, _, silent = ran(served, env, folder, said=lines)
    _, _, notice = ran(served, {**env, "HOLDFAST_CONSOLIDATE": "on", **NO_SUMMARIZER}, folder, said=lines)
    _, out, _ = ran(served, {**env, **NO_SUMMARIZER}, folder, said="How do I test?\n")

    assert silent == ""
    assert notice == "rem-agent: 1 change to the board; /board shows it\n"
    assert out == "you said: How do I test?\n"
    assert f"- {RULE}" in str(served.asked[-1])


async def test_subconscious_run_now_reads_this_conversation_too(tmp_path: Path) -> None:
    work(tmp_path)
    store = MemoryStore()
    other, _ = await open_chat(tmp_path, flags={"summarization_model": "none"}, store=store)
    await store.put_value(board_key(other.session.id), {"board": repository_of(tmp_path).key})
    await add_turns(other, 1)
    chat, screen = await open_chat(tmp_path, "yes", flags={"summarization_model": "none"}, store=store)
    await store.put_value(board_key(chat.session.id), {"board": repository_of(tmp_path).key})
    prompt = {"kind": "request", "parts": [user_part(RULE)]}
    reply = {"kind": "response", "parts": [{"part_kind": "text", "content": "Yes."}]}
    await chat.session.record([prompt, reply], format="pydantic-ai")

    without = await reply_to(chat, screen, "/subconscious run")
    now = await reply_to(chat, screen, "/subconscious run now")

    assert without == (
        "nothing to propose; 0 finished conversations read; 1 was changed less than 10 minutes ago, "
        "/subconscious run now includes them"
    )
    assert now == f" | ENTRY | FROM\nadd | {RULE} | {chat.session.id} #0\ndone; /board shows it"


async def test_subconscious_reads_a_conversation_without_anything_for_the_board_once(tmp_path: Path) -> None:
    work(tmp_path)
    chat, screen = await open_chat(tmp_path, flags={"summarization_model": "none"})
    await chat.store.put_value(board_key(chat.session.id), {"board": repository_of(tmp_path).key})
    await add_turns(chat, 1)

    shown = [await reply_to(chat, screen, "/subconscious run now") for _ in range(2)]

    assert shown == [
        f"nothing to propose; {read} read" for read in ("1 finished conversation", "0 finished conversations")
    ]


NO_SUMMARIZER = {"HOLDFAST_SUMMARIZATION_MODEL": "none"}


def test_a_terminal_that_goes_away_is_nobody_there(sit: Sit, tmp_path: Path) -> None:
    work(tmp_path / "folder")
    person = sit(HOLDFAST_CONSOLIDATE="on", **NO_SUMMARIZER)
    person.says(RULE)
    person.sees(f"you said: {RULE}")
    person.says("Go on.")
    person.sees("you said: Go on.")
    # This waits for the end of the answer, unlike /history.
    person.says("/title work")
    person.sees("'work'")
    person.says("/history")
    person.sees("2 turns, 4 messages")

    person.ends()
    person.leaves()

    (board,) = (tmp_path / "home" / "boards").glob("folder-main-*.md")
    assert f"- {RULE}" in board.read_text()
