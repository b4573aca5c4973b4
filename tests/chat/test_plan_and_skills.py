"""The plan, the list of tasks and the skills of a conversation, which every compaction keeps."""

import os
from pathlib import Path

from holdfast.apps.chat.tools.files import ToolRefusal
from holdfast.apps.chat.tools.plan import MAX_TODOS, PlanTools, TodoItem, render_todos
from holdfast.apps.chat.tools.skills import MAX_SKILLS, find_skills
from holdfast.apps.settings.sources import load_settings
from holdfast.core.history.events import TodosChanged
from holdfast.testing.endpoint import text_stream, tool_call_stream
from tests.chat.conftest import Served
from tests.chat.recording_screen import RecordingScreen, add_turns, open_chat, reply_to
from tests.chat.test_turns import chat_with

SKILL = "---\nname: review\ndescription: how we review\n---\n\nRead the diff twice. Name each risk.\n"


def write_skill(folder: Path, text: str = SKILL) -> None:
    (folder / "skills" / "review").mkdir(parents=True)
    (folder / "skills" / "review" / "SKILL.md").write_text(text)


async def test_plan_tasks_and_skill_survive_a_compaction(tmp_path: Path, served: Served) -> None:
    write_skill(tmp_path)
    served.script += [
        tool_call_stream(("update_plan", {"plan": "First the parser, then the tests."})),
        tool_call_stream(
            ("update_todos", {"todos": [{"task": "parser", "status": "done"}, {"task": "tests", "status": "open"}]})
        ),
        tool_call_stream(("use_skill", {"name": "review"})),
        text_stream("Noted."),
    ]
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served.model, screen, summarization_model="none")

    await chat.take_turn("Plan the work.")
    await add_turns(chat, 12)
    assert "tokens" in await reply_to(chat, screen, "/compact")
    await chat.take_turn("What is left?")
    shown = [await reply_to(chat, screen, line) for line in ("/plan", "/todo", "/skills")]
    await chat.close()

    sent = str(served.asked[-1])
    assert "First the parser, then the tests." in sent
    assert "- [x] parser" in sent
    assert "- [ ] tests" in sent
    assert "Read the diff twice. Name each risk." in sent
    assert shown[0] == "First the parser, then the tests."
    assert shown[1] == "N | STATE | TASK\n1 | done | parser\n2 | open | tests"
    assert shown[2] == "SKILL | WHAT IT IS FOR\nreview | how we review"


async def test_a_title_that_is_given_before_the_first_prompt_stays(tmp_path: Path, served: Served) -> None:
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served.model, screen)
    await reply_to(chat, screen, "/plan Slowly.")
    await reply_to(chat, screen, "/title The boats")

    await chat.take_turn("Go on.")
    titles = [info.name for info in await chat.store.sessions()]
    await chat.close()

    assert titles == ["The boats"]


async def test_the_user_changes_the_tasks_and_the_model_is_told_with_the_next_prompt(
    tmp_path: Path, served: Served
) -> None:
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served.model, screen)
    for line in ("/todo add parser", "/todo add tests", "/todo done 1", "/plan Slowly."):
        await reply_to(chat, screen, line)

    await chat.take_turn("Go on.")
    await chat.take_turn("And?")
    refused = await reply_to(chat, screen, "/todo done 7")
    await chat.close()

    assert "- [x] parser\n- [ ] tests" in served.prompts[0]
    assert "The user changed the plan:\nSlowly." in served.prompts[0]
    assert served.prompts[1] == "And?"
    assert "/todo shows the numbers" in refused


async def test_a_full_list_of_tasks_takes_no_more_and_says_why(tmp_path: Path, served: Served) -> None:
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served.model, screen)
    tasks = render_todos([(f"task {number}", "open") for number in range(MAX_TODOS)])
    await chat.session.record_state(TodosChanged(text=tasks))

    refused = await reply_to(chat, screen, "/todo add one more")
    kept = chat.session.history.session_state.todos
    await chat.close()

    assert refused == "/todo: the list has 100 tasks, its limit; /todo clear empties it"
    assert kept == tasks


async def test_a_skill_is_used_by_name_with_a_task(tmp_path: Path, served: Served) -> None:
    write_skill(tmp_path)
    screen = RecordingScreen()
    chat = await chat_with(tmp_path, served.model, screen)

    await reply_to(chat, screen, "/skill review the parser")
    unknown = await reply_to(chat, screen, "/skill nothing")
    await chat.close()

    assert "Read the diff twice. Name each risk.\n\nthe parser" in served.prompts[0]
    assert chat.session.history.session_state.skills == {"review": "Read the diff twice. Name each risk."}
    assert "there is no skill 'nothing'; there are: review" in unknown


async def test_a_skill_may_have_a_name_of_several_words_and_its_task_several_lines(
    tmp_path: Path, served: Served
) -> None:
    write_skill(tmp_path, SKILL.replace("name: review", "name: Code review"))
    chat = await chat_with(tmp_path, served.model, RecordingScreen())

    await reply_to(chat, RecordingScreen(), "/skill Code review\nthe parser\nand the lexer")
    await chat.close()

    assert served.prompts[0] == (
        "Work by these instructions of the skill Code review:\n\n"
        "Read the diff twice. Name each risk.\n\nthe parser\nand the lexer"
    )


async def test_a_project_has_skills_only_if_the_user_trusts_it(tmp_path: Path) -> None:
    project = tmp_path / "project"
    write_skill(project / ".holdfast")
    (project / ".git").mkdir()
    (tmp_path / "home").mkdir()
    chat, screen = await open_chat(tmp_path / "home")
    environ = {"HOLDFAST_HOME": str(tmp_path / "home")}
    for trust, shown in ((None, "there are no skills"), (str(project), "how we review")):
        flags = {"model": "gpt-5", **({"trust": trust} if trust else {})}
        chat.settings = load_settings(flags=flags, cwd=project, environ=environ)
        assert shown in await reply_to(chat, screen, "/skills")
    await chat.close()


def test_a_skill_without_front_matter_is_named_after_its_folder(tmp_path: Path) -> None:
    write_skill(tmp_path, "# How we review\n\nTwice.\n")

    found = find_skills([tmp_path / "skills", tmp_path / "missing"])

    assert [(skill.name, skill.description) for skill in found.values()] == [("review", "How we review")]


def test_a_skill_whose_front_matter_does_not_end_is_all_instructions(tmp_path: Path) -> None:
    write_skill(tmp_path, "---\nname: other\nTwice.\n")

    found = find_skills([tmp_path / "skills"])

    assert [(skill.name, skill.description, skill.read()) for skill in found.values()] == [
        ("review", "---", "---\nname: other\nTwice.")
    ]


def test_a_description_of_several_lines_is_read_whole_and_nested_fields_are_others(tmp_path: Path) -> None:
    texts = {
        "bom": "\ufeff---\nname: bom\ndescription: saved by another editor\n---\nLook.",
        "folded": "---\nname: folded\ndescription: >-\n  Read the diff\n\n  twice.\nlicense: MIT\n---\nLook.",
        "long": '---\nname: long\ndescription: "Read the diff\n  twice: slowly."\n---\nLook.',
        "nested": "---\nname: nested\n# comment\ndescription: ours\nmetadata:\n  name: a\n  description: b\n---\nLook.",
    }
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "SKILL.md").write_text(text, encoding="utf-8")

    found = find_skills([tmp_path])

    assert [(name, skill.description, skill.read()) for name, skill in found.items()] == [
        ("bom", "saved by another editor", "Look."),
        ("folded", "Read the diff twice.", "Look."),
        ("long", "Read the diff twice: slowly.", "Look."),
        ("nested", "ours", "Look."),
    ]


def test_a_skill_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "a" / "SKILL.md").mkdir(parents=True)
    for name in ("b", "c"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "b" / "SKILL.md")
    (tmp_path / "c" / "SKILL.md").write_text("Look.")

    assert list(find_skills([tmp_path])) == ["c"]


def test_no_more_skills_are_offered_than_a_prompt_has_room_for(tmp_path: Path) -> None:
    for number in range(MAX_SKILLS + 1):
        (tmp_path / f"skill-{number:03}").mkdir()
        (tmp_path / f"skill-{number:03}" / "SKILL.md").write_text("Look.")

    assert list(find_skills([tmp_path])) == [f"skill-{number:03}" for number in range(MAX_SKILLS)]


async def test_a_plan_or_a_list_that_is_too_long_is_refused(tmp_path: Path) -> None:
    chat, _ = await open_chat(tmp_path)
    tools = PlanTools(chat.session)

    refused = [await tools.update_todos([TodoItem("look")] * 101), await tools.update_plan("x" * 8_001)]
    await chat.close()

    assert refused == [
        "101 tasks are too many; 100 is the limit",
        "a plan of 8,001 characters is too long; 8,000 is the limit",
    ]
    assert all(isinstance(one, ToolRefusal) for one in refused)
