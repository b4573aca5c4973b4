"""Every message of a session that another program wrote is imported, in order, with calls, sub-agents, compactions."""

import json
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from time import process_time

import pytest

from holdfast import Session
from holdfast.importers.importing import import_found
from holdfast.importers.programs import program_named
from holdfast.importers.source import ReadReport
from holdfast.stores.memory import MemoryStore
from tests.importers.reading import LATER_MS, copy_of, found_in, import_all, lines_of, write_as_files

CLAUDE_CODE = [
    "main: user: Count the tulips",
    "main: system: You are a gardener.\n\nBe brief.",
    "main: tools: Read",
    'main: assistant: I look at both beds. → toolu_1 Read {"file_path": "bed1.txt"} '
    '→ toolu_2 Read {"file_path": "bed2.txt"} [100+50→10]',
    "main: user: ← toolu_1 1\ttwelve tulips",
    "main: user: ← toolu_2 File does not exist.",
    "main: assistant: Twelve in bed 1; bed 2 is missing. [100+50→10]",
    "main: user: Paint the fence",
    "main: assistant: I painted it red. [100+50→10]",
    "rewound to 5",
    "main: user: Ask a helper about roses",
    'main: assistant: → toolu_3 Agent {"description": "roses", "prompt": "Find the roses"} [100+50→10]',
    "Explore:a77: started by main as Explore: Find the roses",
    "Explore:a77: user: Find the roses",
    "Explore:a77: assistant: Four roses by the gate. [100+50→10]",
    "Explore:a77: answered: Four roses by the gate.",
    "main: user: ← toolu_3 Four roses by the gate.",
    "main: user: And the lilies?",
    "main: assistant: Four roses. I did not look for lilies. [100+50→10]",
    "main: client compaction of 0–14, kept [13]: This session is being continued. Summary: twelve tulips, four roses.",
    "main: memory: <local-command-caveat>The command below was run directly.</local-command-caveat>",
    "main: user: <command-name>/compact</command-name>",
    "main: memory: <local-command-stdout>Compacted</local-command-stdout>",
    "main: memory: <system-reminder>⏎Result of calling the Read tool:⏎twelve tulips⏎</system-reminder>",
    "main: user: How many flowers?",
    "main: assistant: Sixteen. [100+50→10]",
]
HELPER = "Archimedes:01a00000-0000-7000-8000-000000000002"
CODEX = [
    "main: system: You are a bridge builder.",
    "main: system: <skills_instructions>none</skills_instructions>",
    "main: memory: <environment_context>⏎  <cwd>/home/ada/bridge</cwd>⏎</environment_context>",
    "model: gpt-5.1-codex",
    "main: user: Measure the bridge",
    "main: assistant: ",
    'main: assistant: → call_1 exec_command {"cmd": "cat length.txt"} [400+100→20]',
    "main: tool: ← call_1 forty meters",
    "main: assistant: It is forty meters long. [600+0→9]",
    'main: assistant: → call_2 spawn_agent {"message": "Weigh it"} [700+0→11]',
    'main: tool: ← call_2 {"agent_id":"01a00000-0000-7000-8000-000000000002"}',
    f"{HELPER}: started by main as Archimedes: Weigh it",
    f"{HELPER}: system: You are a bridge builder.",
    f"{HELPER}: user: Weigh it",
    f"{HELPER}: assistant: Ninety tons. [50+0→5]",
    f"{HELPER}: answered: Ninety tons.",
    "main: assistant: A helper weighs it. [710+0→8]",
    "side call of gpt-5.1-codex for a summary: The bridge is forty meters long. [720+0→30]",
    "main: client compaction of 0–12, kept [0, 2]: Here is a summary:\nThe bridge is forty meters long.",
    "main: user: And how wide?",
    "main: assistant: Six meters.",
]
FORKED_CODEX = [
    *CODEX[:8],
    "main: assistant: It is forty meters long.",
    "forked from codex-01a00000-0000-7000-8000-000000000001 at 7",
    "main: user: Paint it green",
    "main: assistant: Painted.",
]
EXPLORER = "explore:9e110000-0000-4000-8000-000000000009"
COPILOT = [
    "model: gpt-5.1",
    "main: user: <current_datetime>2026-03-02T11:00:01</current_datetime>⏎⏎Bake a cake",
    "main: system: You are a baker.",
    'main: assistant: → call_1 view {"path": "cake.txt"} [200+100→20]',
    "main: tool: ← call_1 three eggs",
    "main: assistant: It needs three eggs. [320+0→9]",
    "main: user: <current_datetime>2026-03-02T11:00:06</current_datetime>⏎⏎Ask a helper for milk",
    'main: assistant: → call_2 task {"prompt": "Find milk"}',
    f"{EXPLORER}: started by main as explore: Find milk",
    f"{EXPLORER}: user: <current_datetime>2026-03-02T11:00:08</current_datetime>⏎⏎Find milk",
    f"{EXPLORER}: assistant: Two liters.",
    "main: tool: ← call_2 the helper is tired",
    f"{EXPLORER}: answered: Two liters.",
    "main: assistant: No milk.",
    "main: user: <current_datetime>2026-03-02T11:00:11</current_datetime>⏎⏎Then use water",
    "main: assistant: Water it is.",
    "main: client compaction of 0–12, kept [11]: A cake with three eggs and water.",
    "main: user: <current_datetime>2026-03-02T11:00:14</current_datetime>⏎⏎Is it done?",
]
INVESTIGATOR = "agent:9e319100-0000-4000-8000-00000000000a"
GEMINI = [
    "main: memory: <session_context>⏎This is the Gemini CLI.⏎</session_context>",
    "main: user: Count the stars",
    "model: gemini-2.5-pro",
    'main: assistant: → read_1 read_file {"file_path": "stars.txt"} [90+10→11]',
    "main: user: ← read_1 seven stars",
    "main: assistant: There are seven stars. [110+10→10]",
    "main: user: Name them",
    "main: assistant: I do not know their names. [120+10→8]",
    "rewound to 5",
    "main: user: Ask about the moon",
    'main: assistant: → agent_1 invoke_agent {"agent_name": "investigator", "prompt": "Find the moon"} [130+10→7]',
    "main: user: ← agent_1 finished",
    f"{INVESTIGATOR}: started by main as investigator: Find the moon",
    f"{INVESTIGATOR}: user: Find the moon",
    f"{INVESTIGATOR}: assistant: It is behind the hill. [30+10→8]",
    f"{INVESTIGATOR}: answered: It is behind the hill.",
    "main: assistant: The moon is up. [140+10→7]",
    "main: client compaction of 0–13, kept [0, 7, 12]: "
    "<state_snapshot>seven stars</state_snapshot> / Got it. Thanks for the additional context!",
    "main: user: Good night",
    "main: assistant: Good night. [80+10→5]",
]
OPENCODE = [
    "main: user: Count the fish⏎[file: lake.txt]",
    "model: m",
    'main: assistant: → call_1 read {"filePath": "lake.txt"} [200+3→10]',
    "main: tool: ← call_1 nine fish",
    "main: assistant: Nine fish. [210+3→9]",
    "main: user: How deep is it?",
    'main: assistant: → call_2 task {"prompt": "Measure"} [220+3→8]',
    "main: tool: ← call_2 the rope is short",
    "general:ses_2: started by main as general: Measure",
    "general:ses_2: user: Measure",
    "general:ses_2: assistant: Five meters at least. [60+3→5]",
    "general:ses_2: answered: Five meters at least.",
    "main: assistant: I cannot say. [230+3→7]",
    "main: client compaction of 0–10, kept [9]: Nine fish; the depth is unknown.",
    "main: memory: Continue if you have next steps.",
    "main: assistant: Done. [90+3→4]",
]
PI = [
    "model: m",
    "main: user: Check the sails",
    'main: assistant: → call_1 read {"path": "sails.txt"} [100+7→5]',
    "main: tool: ← call_1 two holes",
    "main: assistant: There are two holes. [100+7→5]",
    "main: user: Sell the boat",
    "main: assistant: Sold. [100+7→5]",
    "rewound to 4",
    "main: memory: The boat was nearly sold.",
    "main: memory: The wind is north.",
    "main: memory: Ran `ls`⏎sails.txt",
    "main: user: Mend the sails",
    "main: assistant: Mended. [100+7→5]",
    "main: client compaction of 0–11, kept [9, 10]: Two holes were mended.",
    "main: user: Look at this",
    "main: assistant: A fine boat. [100+7→5]",
]
SESSIONS = {
    "claude-code": {"claude-code-5e551000-0000-4000-8000-000000000001": CLAUDE_CODE},
    "codex": {
        "codex-01a00000-0000-7000-8000-000000000001": CODEX,
        "codex-01a00000-0000-7000-8000-000000000003": FORKED_CODEX,
    },
    "copilot": {"copilot-c0910700-0000-4000-8000-000000000001": COPILOT},
    "gemini": {"gemini-9e319100-0000-4000-8000-000000000001": GEMINI},
    "opencode": {"opencode-ses_1": OPENCODE},
    "pi": {"pi-01a00000-0000-7000-8000-0000000000aa": PI},
}


@pytest.mark.parametrize("program", SESSIONS)
async def test_every_message_is_imported_in_order(program: str, tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of(program, tmp_path)

    done = await import_all(store, root, program)

    assert {one.session: await lines_of(store, one.session) for one in done} == SESSIONS[program]
    assert [(dict(one.report.unknown), dict(one.report.damaged), one.waiting) for one in done] == [({}, {}, 0)] * len(
        done
    )


LISTED = {
    "claude-code": [("Tulips and roses", "/home/ada/garden", "claude-sonnet-4-5")],
    "codex": [("Measure the bridge", "/home/ada/bridge", "gpt-5.1-codex"), ("Paint it green", "/home/ada/bridge", "")],
    "copilot": [("Bake a cake", "/home/ada/kitchen", "gpt-5.1")],
    "gemini": [("Count the stars", "/home/ada/sky", "gemini-2.5-pro")],
    "opencode": [("Fish in the lake", "/home/ada/lake", "m")],
    "pi": [("Sails", "/home/ada/boat", "m")],
}


@pytest.mark.parametrize("program", LISTED)
def test_a_session_is_listed_with_its_title_folder_and_model(program: str, tmp_path: Path) -> None:
    report = ReadReport()

    found = found_in(copy_of(program, tmp_path), program, report)

    assert [(one.title, one.folder, one.model) for one in found] == LISTED[program]
    assert all(one.size > 1_000 and one.modified_ms > 1_700_000_000_000 for one in found)
    assert report == ReadReport()


VERSIONS = {
    "claude-code": {"2.1.325"},
    "codex": {"0.166.0"},
    "copilot": {"1.0.102"},
    "gemini": set[str](),
    "opencode": {"1.18.18"},
    "pi": {"3"},
}


@pytest.mark.parametrize("program", VERSIONS)
async def test_the_version_that_wrote_a_log_is_on_record(program: str, tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of(program, tmp_path)

    done = await import_all(store, root, program)

    for one in done:
        facts = await store.get_value(f"import:{one.session}") or {}
        assert (facts["program"], facts["programVersions"]) == (program, sorted(VERSIONS[program]))


async def test_sub_agents_in_the_main_file_of_an_older_claude_code_are_scopes(tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of("claude-code", tmp_path)
    (main,) = root.glob("projects/*/*.jsonl")
    (agent,) = root.glob("projects/*/*/subagents/*.jsonl")
    lines = main.read_text().splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if "Four roses by the gate." in line)
    main.write_text("".join([*lines[:place], agent.read_text(), *lines[place:]]))
    agent.unlink()

    (done,) = await import_all(store, root, "claude-code")

    assert [line for line in await lines_of(store, done.session) if line.startswith("agent:")] == [
        "agent:a77: started by main as agent: Find the roses",
        "agent:a77: user: Find the roses",
        "agent:a77: assistant: Four roses by the gate. [100+50→10]",
        "agent:a77: answered: Four roses by the gate.",
    ]


async def test_a_document_of_an_older_gemini_is_read_like_lines(tmp_path: Path) -> None:
    folder = tmp_path / "tmp/sky/chats"
    folder.mkdir(parents=True)
    (folder / "session-2025-09-01T10-00-abc.json").write_text(
        '{"sessionId": "abc", "projectHash": "x", "startTime": "2025-09-01T10:00:00Z", "messages": ['
        '{"id": "1", "timestamp": "2025-09-01T10:00:00Z", "type": "user", "content": "Hello"},'
        '{"id": "2", "timestamp": "2025-09-01T10:00:01Z", "type": "gemini", "content": "Good day.", "model": "g"}]}'
    )
    store = MemoryStore()

    (done,) = await import_all(store, tmp_path, "gemini")

    assert await lines_of(store, done.session) == ["main: user: Hello", "model: g", "main: assistant: Good day."]


async def test_a_branch_to_which_the_user_returns_is_in_force_again(tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of("pi", tmp_path)
    (path,) = root.glob("sessions/*/*.jsonl")
    with path.open("a") as file:
        said = {"role": "user", "content": "Buy it back"}
        file.write(json.dumps({"type": "message", "id": "p20", "parentId": "p8", "message": said}) + "\n")

    (done,) = await import_all(store, root, "pi")

    assert (await lines_of(store, done.session))[len(PI) :] == [
        "rewound to 6",
        "main: user: Sell the boat",
        "main: assistant: Sold. [100+7→5]",
        "main: user: Buy it back",
    ]


async def test_bare_lines_of_the_first_versions_of_codex_are_read(tmp_path: Path) -> None:
    folder, store = tmp_path / "2025/05/01", MemoryStore()
    folder.mkdir(parents=True)
    lines: list[object] = [
        {"id": "0196", "timestamp": "2025-05-01T10:00:00Z", "instructions": "Be kind."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
        {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": "ok"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Good day."}]},
    ]
    (folder / "rollout-2025-05-01T10-00-00-0196.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    (done,) = await import_all(store, tmp_path, "codex")

    assert (done.session, done.found.title) == ("codex-0196", "Hello")
    assert await lines_of(store, done.session) == [
        "main: system: Be kind.",
        "main: user: Hello",
        "main: assistant: → c1 shell {}",
        "main: tool: ← c1 ok",
        "main: assistant: Good day.",
    ]


async def test_tools_that_codex_sends_as_an_item_are_part_of_the_conversation(tmp_path: Path) -> None:
    folder, store = tmp_path / "2026/11/16", MemoryStore()
    folder.mkdir(parents=True)
    tools = {
        "type": "additional_tools",
        "id": "at_1",
        "role": "developer",
        "tools": [{"type": "custom", "name": "exec"}],
    }
    question = {"type": "message", "id": "msg_1", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}
    lines: list[object] = [
        {"type": "session_meta", "payload": {"id": "01a1", "cli_version": "0.166.0"}},
        {"type": "response_item", "payload": tools},
        {"type": "response_item", "payload": question},
    ]
    (folder / "rollout-2026-11-16T10-00-00-01a1.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    (done,) = await import_all(store, tmp_path, "codex")

    async with Session.open(done.session, store=store, model="gpt-5") as session:
        assert list(await session.messages()) == [tools, question]
    assert dict(done.report.unknown) == {}


LAYOUTS = {"of version 1.1": ("storage", False), "of the first versions": ("project/home-ada-lake/storage", True)}


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_files_of_an_older_opencode_are_read_like_its_database(layout: str, tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of("opencode", tmp_path)
    folder, is_first_layout = LAYOUTS[layout]
    write_as_files(root / "opencode.db", root / folder, is_first_layout=is_first_layout)

    (done,) = await import_all(store, root, "opencode")

    assert (done.found.title, done.found.folder, done.found.model) == LISTED["opencode"][0]
    assert await lines_of(store, done.session) == OPENCODE
    assert (done.report.versions, dict(done.report.damaged), dict(done.report.unknown)) == ({"1.18.18"}, {}, {})


async def test_a_session_that_opencode_moved_into_its_database_is_not_imported_twice(tmp_path: Path) -> None:
    store, before, after = MemoryStore(), copy_of("opencode", tmp_path / "before"), copy_of("opencode", tmp_path)
    write_as_files(before / "opencode.db", before / "storage")
    await import_all(store, before, "opencode")
    (before / "storage").rename(after / "storage")

    (done,) = await import_all(store, after, "opencode")

    assert (done.found.path.name, done.new_messages, done.rewound_to) == ("opencode.db", 0, None)
    assert await lines_of(store, done.session) == OPENCODE


async def test_a_compaction_of_an_older_opencode_is_an_answer_with_the_summary_only(tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of("opencode", tmp_path)
    write_as_files(root / "opencode.db", root / "storage")
    (root / "storage/message/ses_1/msg_07.json").unlink()
    (root / "storage/part/msg_02/prt_004.json").write_text("{damaged")

    (done,) = await import_all(store, root / "storage", "opencode")

    assert [line for line in await lines_of(store, done.session) if "compaction" in line] == [
        "main: client compaction of 0–10, kept []: Nine fish; the depth is unknown."
    ]
    assert dict(done.report.damaged) == {"not JSON": 1}


async def test_one_file_of_an_older_opencode_is_imported_with_its_sub_agents(tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of("opencode", tmp_path)
    write_as_files(root / "opencode.db", root / "storage")

    (done,) = await import_all(store, root / "storage/session/global/ses_1.json", "opencode")

    assert (done.messages, done.agents, done.compactions) == (12, 1, 1)


def write_lines(path: Path, lines: Iterable[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


async def test_sub_agents_in_files_beside_the_session_of_claude_code_are_scopes(tmp_path: Path) -> None:
    root = copy_of("claude-code", tmp_path)
    (main,) = root.glob("projects/*/*.jsonl")
    (agent,) = root.glob("projects/*/*/subagents/*.jsonl")
    agent.rename(main.with_name("agent-a77.jsonl"))
    write_lines(main.with_name("agent-b88.jsonl"), [{"type": "user", "sessionId": "of-another-session"}])
    expected = [line.replace("Explore", "agent") for line in CLAUDE_CODE if line.startswith("Explore:")]

    for place in (root, main):
        store = MemoryStore()
        (done,) = await import_all(store, place, "claude-code")

        assert [line for line in await lines_of(store, done.session) if line.startswith("agent:")] == expected
        assert done.agents == 1


def claude_line(uuid: str, parent: str | None, text: str, **more: object) -> dict[str, object]:
    role = "assistant" if text.endswith(".") else "user"
    message = {"role": role, "content": [{"type": "text", "text": text}], "id": uuid, "stop_reason": "end_turn"}
    return {"type": role, "uuid": uuid, "parentUuid": parent, "sessionId": "5e55", "message": message, **more}


async def test_a_user_of_claude_code_may_go_back_to_the_beginning_and_to_right_after_a_compaction(
    tmp_path: Path,
) -> None:
    store, path = MemoryStore(), tmp_path / "5e55.jsonl"
    lines = [
        {"type": "system", "uuid": "0", "parentUuid": None, "sessionId": "5e55", "subtype": "informational"},
        claude_line("1", "0", "one"),
        claude_line("2", "1", "1."),
        claude_line("3", "0", "one, said better"),
        claude_line("4", "3", "2."),
        claude_line("5", None, "one, said best"),
        claude_line("6", "5", "3."),
        {"type": "system", "uuid": "7", "parentUuid": None, "sessionId": "5e55", "subtype": "compact_boundary"},
        claude_line("8", "7", "the summary", isCompactSummary=True),
        claude_line("9", "8", "two"),
        claude_line("10", "9", "4."),
        claude_line("11", "8", "two, said better"),
        claude_line("12", "11", "5."),
    ]
    for stop in (8, len(lines)):
        write_lines(path, lines[:stop])
        await import_all(store, tmp_path, "claude-code")

    assert [line.removeprefix("main: ") for line in await lines_of(store, "claude-code-5e55")] == [
        "user: one", "assistant: 1.", "rewound to 0", "user: one, said better", "assistant: 2.", "rewound to 2",
        "user: one, said best", "assistant: 3.", "client compaction of 0–6, kept []: the summary",
        "user: two", "assistant: 4.", "rewound to 6", "user: two, said better", "assistant: 5.",
    ]  # fmt: skip
    async with Session.open("claude-code-5e55", store=store) as session:
        shown = [entry.message.text for entry in await session.visible_messages()]
    assert shown == ["the summary", "two, said better", "5."]


async def test_a_user_of_claude_code_may_go_back_to_before_a_compaction(tmp_path: Path) -> None:
    store, path = MemoryStore(), tmp_path / "5e55.jsonl"
    boundary = {"type": "system", "parentUuid": None, "sessionId": "5e55", "subtype": "compact_boundary"}
    lines = [
        claude_line("1", None, "one"),
        claude_line("2", "1", "1."),
        claude_line("3", "2", "two"),
        claude_line("4", "3", "2."),
        boundary | {"uuid": "5"},
        claude_line("6", "5", "the first summary", isCompactSummary=True),
        claude_line("7", "6", "three"),
        claude_line("8", "7", "3."),
        claude_line("9", "8", "four"),
        claude_line("10", "9", "4."),
        boundary | {"uuid": "11"},
        claude_line("12", "11", "the second summary", isCompactSummary=True),
        claude_line("13", "12", "five"),
        claude_line("14", "13", "5."),
        claude_line("15", "8", "four, said better"),
        claude_line("16", "15", "6."),
        claude_line("17", "2", "two, said better"),
        claude_line("18", "17", "7."),
    ]
    for stop in (14, 16, 18):
        write_lines(path, lines[:stop])
        await import_all(store, tmp_path, "claude-code")

    assert [line.removeprefix("main: ") for line in await lines_of(store, "claude-code-5e55")] == [
        "user: one", "assistant: 1.", "user: two", "assistant: 2.",
        "client compaction of 0–4, kept []: the first summary",
        "user: three", "assistant: 3.", "user: four", "assistant: 4.",
        "client compaction of 0–8, kept []: the second summary",
        "user: five", "assistant: 5.", "rewound to 6", "user: four, said better", "assistant: 6.",
        "rewound to 2", "user: two, said better", "assistant: 7.",
    ]  # fmt: skip
    async with Session.open("claude-code-5e55", store=store) as session:
        shown = [entry.message.text for entry in await session.visible_messages()]
    assert shown == ["one", "1.", "two, said better", "7."]


async def test_a_file_of_claude_code_without_a_conversation_is_not_listed(tmp_path: Path) -> None:
    root = copy_of("claude-code", tmp_path)
    write_lines(root / "projects/-home-ada-garden/notes.jsonl", [{"type": "file-history-snapshot"}])

    assert [one.title for one in found_in(root, "claude-code")] == ["Tulips and roses"]


async def test_of_claude_code_what_says_nothing_new_is_left_out(tmp_path: Path) -> None:
    store, path = MemoryStore(), tmp_path / "5e55.jsonl"
    shape = {"system": [{"type": "text", "text": "Be brief."}], "tools": [{"name": "Read"}]}
    answer = {"id": "m1", "model": "claude-sonnet-4-5", "content": [{"type": "text", "text": "Hi."}]}
    write_lines(
        path,
        [
            {"type": "api-request-shape", "shape": shape},
            {"type": "user", "uuid": "u1", "sessionId": "5e55", "message": {"role": "user", "content": "Hello"}},
            {"type": "api-request-shape", "shape": shape},
            {"type": "attachment", "uuid": "u2", "attachment": {"type": "todo"}, "rendered": [{"content": ""}]},
            {"type": "assistant", "uuid": "u3", "message": answer},
        ],
    )

    (done,) = await import_all(store, path, "claude-code")

    assert await lines_of(store, done.session) == [
        "main: system: Be brief.",
        "main: tools: Read",
        "main: user: Hello",
        "main: assistant: Hi.",
    ]


async def test_one_file_of_codex_is_imported_with_its_sub_agents_of_another_day(tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of("codex", tmp_path)
    (main,) = root.glob("sessions/2026/03/02/*0001.jsonl")
    (agent,) = root.glob("sessions/2026/03/02/*0002.jsonl")
    moved = root / "sessions/2026/03/04" / agent.name
    moved.parent.mkdir()
    agent.rename(moved)

    (done,) = await import_all(store, main, "codex")

    assert (done.session, done.agents) == ("codex-01a00000-0000-7000-8000-000000000001", 1)
    assert await lines_of(store, done.session) == CODEX


async def test_of_codex_a_model_is_noted_when_it_changes_and_only_for_the_main_agent(tmp_path: Path) -> None:
    store = MemoryStore()
    said = {"type": "message", "role": "user", "content": "Hello"}
    context = {"type": "turn_context", "payload": {"model": "gpt-5"}}
    spawned = {"subagent": {"thread_spawn": {"parent_thread_id": "0001", "agent_nickname": "Ada"}}}
    write_lines(
        tmp_path / "rollout-2026-03-02T10-00-00-0001.jsonl",
        [
            {"type": "session_meta", "payload": {"id": "0001"}},
            context,
            {"type": "response_item", "payload": said},
            context,
            {"type": "response_item", "payload": {"type": "teapot"}},
        ],
    )
    write_lines(
        tmp_path / "rollout-2026-03-02T10-00-01-0002.jsonl",
        [
            {"type": "session_meta", "payload": {"id": "0002", "source": spawned}},
            {"type": "turn_context", "payload": {"model": "gpt-5-mini"}},
            {"type": "response_item", "payload": {**said, "content": "Weigh it"}},
        ],
    )

    (done,) = await import_all(store, tmp_path, "codex")

    assert await lines_of(store, done.session) == [
        "model: gpt-5",
        "main: user: Hello",
        "Ada:0002: started by main as Ada: Weigh it",
        "Ada:0002: user: Weigh it",
        "Ada:0002: silent: ",
    ]
    assert dict(done.report.unknown) == {"teapot": 1}


def codex_line(kind: str, **payload: object) -> dict[str, object]:
    return {"timestamp": "2026-03-02T10:00:00.000Z", "type": kind, "payload": payload}


def codex_said(text: str, **more: object) -> dict[str, object]:
    role = "assistant" if text.endswith(".") else "user"
    block = {"type": "output_text" if role == "assistant" else "input_text", "text": text}
    return {"type": "message", "role": role, "content": [block], **more}


CODEX_FILE = "rollout-2026-03-02T10-00-00-01a00000-0000-7000-8000-000000000001.jsonl"


async def test_turns_that_the_user_of_codex_has_taken_back_are_rewound(tmp_path: Path) -> None:
    store = MemoryStore()
    lines = [codex_line("session_meta", id="01a0")]
    lines += [codex_line("response_item", **codex_said(text)) for text in ("one", "1.", "two", "2.", "three", "3.")]
    lines.append(codex_line("event_msg", type="thread_rolled_back", num_turns=2))
    lines += [codex_line("response_item", **codex_said(text)) for text in ("four", "4.")]
    lines.append(codex_line("event_msg", type="thread_rolled_back", num_turns=9))
    lines.append(codex_line("response_item", **codex_said("five")))
    write_lines(tmp_path / CODEX_FILE, lines)

    await import_all(store, tmp_path, "codex")
    write_lines(tmp_path / CODEX_FILE, [*lines, codex_line("response_item", **codex_said("5."))])
    (done,) = await import_all(store, tmp_path, "codex")

    said = [line.removeprefix("main: ") for line in await lines_of(store, done.session)]
    assert said == [
        "user: one", "assistant: 1.", "user: two", "assistant: 2.", "user: three", "assistant: 3.", "rewound to 2",
        "user: four", "assistant: 4.", "rewound to 0", "user: five", "assistant: 5.",
    ]  # fmt: skip


@pytest.mark.parametrize("has_ids", [True, False])
async def test_of_what_was_said_several_times_codex_keeps_the_newest(tmp_path: Path, *, has_ids: bool) -> None:
    store = MemoryStore()
    texts = ("start", "A.", "go on", "B.", "go on", "C.", "go on", "D.")
    said = [codex_said(text, **({"id": f"m{at}"} if has_ids else {})) for at, text in enumerate(texts)]
    listed = [said[4], said[6], codex_said("Summary: A to D")]
    compacted = codex_line("compacted", message="Summary: A to D", replacement_history=listed)
    lines = [codex_line("response_item", **one) for one in said]
    write_lines(tmp_path / CODEX_FILE, [codex_line("session_meta", id="01a0"), *lines, compacted])

    (done,) = await import_all(store, tmp_path, "codex")

    assert (await lines_of(store, done.session))[-1] == "main: client compaction of 0–8, kept [4, 6]: Summary: A to D"


async def test_a_search_for_tools_that_codex_carried_out_has_its_result(tmp_path: Path) -> None:
    store = MemoryStore()
    search = {"type": "tool_search_call", "call_id": "t1", "execution": "client", "arguments": {"query": "paint"}}
    found = {"type": "tool_search_output", "call_id": "t1", "execution": "client", "tools": []}
    lines = [codex_line("response_item", **one) for one in (codex_said("Paint it"), search, found, codex_said("Done."))]
    write_lines(tmp_path / CODEX_FILE, [codex_line("session_meta", id="01a0"), *lines])

    (done,) = await import_all(store, tmp_path, "codex")

    async with Session.open(done.session, store=store, model="gpt-5") as session:
        assert list(await session.messages()) == [codex_said("Paint it"), search, found, codex_said("Done.")]
    assert dict(done.report.unknown) == {}


async def test_a_summary_that_only_the_provider_of_codex_can_read_is_in_force_until_the_next_one(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    first, second = ({"type": "compaction", "encrypted_content": content} for content in ("Zmlyc3Q=", "c2Vjb25k"))
    said = {text: codex_said(text) for text in ("one", "1.", "two", "2.", "three")}
    lines = [codex_line("session_meta", id="01a0")]
    lines += [codex_line("response_item", **said[text]) for text in ("one", "1.")]
    lines.append(codex_line("compacted", message="", replacement_history=[said["one"], first]))
    lines += [codex_line("response_item", **said[text]) for text in ("two", "2.")]
    lines.append(codex_line("compacted", message="", replacement_history=[said["one"], said["two"], second]))
    lines.append(codex_line("response_item", **said["three"]))
    write_lines(tmp_path / CODEX_FILE, lines)

    (done,) = await import_all(store, tmp_path, "codex")
    (again,) = await import_all(store, tmp_path, "codex")

    note = "[Codex compacted what was said before; only its provider can read the summary.]"
    async with Session.open(done.session, store=store, model="gpt-5") as session:
        visible = [entry.message for entry in await session.visible_messages()]
    assert visible[0].text == note
    assert [one.native for one in visible[1:]] == [said["one"], said["two"], second, said["three"]]
    assert (again.new_messages, again.rewound_to, done.compactions) == (0, None, 2)


async def test_of_what_was_said_several_times_gemini_keeps_the_newest(tmp_path: Path) -> None:
    store, path = MemoryStore(), tmp_path / "chats/session-2026-03-02T12-00-9e31.jsonl"
    said = [
        {"id": str(number), "type": "gemini" if text.endswith(".") else "user", "content": text}
        for number, text in enumerate(("start", "A.", "go on", "B.", "go on", "C.", "go on", "D."))
    ]
    summary = {"id": "s", "type": "user", "content": "Summary: A"}
    listed = [summary, *({**one, "id": f"new-{one['id']}"} for one in said[3:])]
    write_lines(path, [{"sessionId": "9e31", "projectHash": "x"}, *said, {"$set": {"messages": listed}}])

    (done,) = await import_all(store, tmp_path, "gemini")

    kept = "main: client compaction of 0–8, kept [3, 4, 5, 6, 7]: Summary: A"
    assert (await lines_of(store, done.session))[-1] == kept


async def test_of_copilot_what_says_nothing_new_is_left_out(tmp_path: Path) -> None:
    store, folder = MemoryStore(), tmp_path / "session-state/c091"
    write_lines(folder.with_name("notes.jsonl"), [{"type": "a note"}])
    write_lines(folder / "other/events.jsonl", [])
    write_lines(
        folder / "events.jsonl",
        [
            {"type": "session.start", "data": {"sessionId": "c091"}},
            {"type": "system.message", "data": {"content": "You are a baker."}},
            {"type": "user.message", "id": "1", "data": {"content": "Bake"}},
            {"type": "system.message", "data": {"content": "You are a baker."}},
            {"type": "assistant.message", "id": "2", "data": {"content": "", "toolRequests": []}},
            {"type": "session.compaction_start", "data": {}},
            {"type": "session.compaction_complete", "data": {"success": False, "summaryContent": "Half a summary"}},
            {"type": "assistant.message", "id": "3", "data": {"content": "Baked."}},
        ],
    )

    (done,) = await import_all(store, tmp_path, "copilot")

    assert await lines_of(store, done.session) == [
        "main: system: You are a baker.",
        "main: user: Bake",
        "main: assistant: Baked.",
    ]


async def test_of_gemini_a_list_without_a_new_text_is_no_compaction(tmp_path: Path) -> None:
    store, path = MemoryStore(), tmp_path / "chats/session-2026-03-02T12-00-9e31.jsonl"
    call = {"functionCall": {"id": "c1", "name": "look", "args": {}}}
    write_lines(
        path,
        [
            {"sessionId": "9e31", "projectHash": "x"},
            {"id": "1", "type": "user", "content": "Hello"},
            {"id": "2", "type": "gemini", "content": [call], "toolCalls": [{"id": "c1", "name": "look"}]},
            {"id": "3", "type": "gemini", "content": ""},
            {"id": "4", "type": "teapot"},
            {"id": "1", "type": "user", "content": "Hello"},
            {"$set": {"messages": [{"id": "1", "type": "user", "content": "Hello"}, {"id": "9", "type": "info"}]}},
            {"$set": {"messages": [{"id": "10", "type": "gemini", "content": ""}]}},
            {"id": "5", "type": "gemini", "content": "Good day."},
        ],
    )
    (path.parent / "session-2026-03-02T12-00-damaged.json").write_text("[1, 2]")

    (done,) = await import_all(store, tmp_path, "gemini")

    assert await lines_of(store, done.session) == [
        "main: user: Hello",
        "main: assistant: → c1 look {}",
        "main: assistant: Good day.",
    ]
    assert dict(done.report.unknown) == {"teapot": 1}


async def test_a_session_of_opencode_that_is_no_longer_there_adds_nothing(tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of("opencode", tmp_path)
    (found,) = found_in(root, "opencode")
    with closing(sqlite3.connect(root / "opencode.db")) as database, database:
        database.execute("DELETE FROM session WHERE id = 'ses_1'")

    done = await import_found(store, program_named("opencode"), found, now_ms=LATER_MS)

    assert (done.messages, await store.sessions()) == (0, [])


async def test_of_opencode_a_message_has_several_steps_and_images(tmp_path: Path) -> None:
    store, root = MemoryStore(), copy_of("opencode", tmp_path)
    image = {"type": "file", "mime": "image/png", "filename": "lake.png", "url": "data:image/png;base64,aGk="}
    look = {"type": "tool", "tool": "look", "callID": "c1", "state": {"status": "running", "input": {}}}
    messages: list[tuple[object, list[object]]] = [
        ({"role": "user"}, [{"type": "text", "text": "What is this?"}, {"type": "step-start"}, image]),
        (
            {"role": "assistant", "modelID": "m"},
            [{"type": "text", "text": "I look."}, look, {"type": "step-start"}, {"type": "text", "text": "A lake."}],
        ),
        ({"role": "user"}, []),
        ({"role": "teapot"}, []),
        ({"role": "assistant", "modelID": "m"}, [{"type": "step-start"}]),
        ({"role": "assistant", "summary": True}, []),
    ]
    with closing(sqlite3.connect(root / "opencode.db")) as database, database:
        for table in ("part", "message", "session"):
            database.execute(f"DELETE FROM {table} WHERE NOT id = 'ses_1'")  # noqa: S608
        for number, (message, parts) in enumerate(messages):
            row = (f"m{number}", "ses_1", number, 1, json.dumps(message))
            database.execute("INSERT INTO message VALUES (?, ?, ?, ?, ?)", row)
            for place, part in enumerate(parts):
                row = (f"p{number}{place}", f"m{number}", "ses_1", 1, 1, json.dumps(part))
                database.execute("INSERT INTO part VALUES (?, ?, ?, ?, ?, ?)", row)

    (done,) = await import_all(store, root, "opencode")

    async with Session.open(done.session, store=store) as session:
        assert (await session.messages())[0] == {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
            ],
        }
    assert (await lines_of(store, done.session))[1:] == [
        "model: m",
        "main: assistant: I look. → c1 look {}",
        "main: assistant: A lake.",
    ]
    assert dict(done.report.unknown) == {"message of teapot": 1}


async def test_of_pi_a_fork_names_its_parent_and_rarer_entries_are_read(tmp_path: Path) -> None:
    store = MemoryStore()

    def entry(key: str, parent: str, **fields: object) -> dict[str, object]:
        return {"id": key, "parentId": parent, **fields}

    def message(key: str, parent: str, role: str, **fields: object) -> dict[str, object]:
        return entry(key, parent, type="message", message={"role": role, **fields})

    write_lines(
        tmp_path / "2026-03-02T13-00-00-000Z_01bb.jsonl",
        [
            {"type": "session", "id": "01bb", "parentSession": "/s/2026-03-01T13-00-00-000Z_01aa.jsonl"},
            message("p1", "", "user", content="Check the sails"),
            message("p2", "p1", "assistant", content=[]),
            message("p3", "p2", "bashExecution", command="ls", output="x", excludeFromContext=True),
            message("p4", "p3", "hookMessage", content="A hook ran."),
            message("p5", "p4", "teapot"),
            message("p6", "p5", "assistant", content=[{"type": "text", "text": "Fine."}]),
            entry("p7", "p6", type="label"),
            message("p8", "p1", "user", content="Sell the boat"),
            message("p9", "p7", "user", content="Keep the boat"),
            entry("p10", "p9", type="compaction", summary="The sails are fine.", firstKeptEntryId="p7"),
        ],
    )

    (done,) = await import_all(store, tmp_path, "pi")

    assert await lines_of(store, done.session) == [
        "forked from pi-01aa at 0",
        "main: user: Check the sails",
        "main: memory: A hook ran.",
        "main: assistant: Fine.",
        "rewound to 1",
        "main: user: Sell the boat",
        "rewound to 3",
        "main: memory: A hook ran.",
        "main: assistant: Fine.",
        "main: user: Keep the boat",
        "main: client compaction of 0–7, kept [6]: The sails are fine.",
    ]
    assert dict(done.report.unknown) == {"message of teapot": 1}


def gemini_list(count: int, folder: Path) -> None:
    said = [{"id": str(at), "type": "gemini" if at % 2 else "user", "content": f"text {at}"} for at in range(count)]
    shortened = {"$set": {"messages": [{"id": "s", "type": "user", "content": "summary"}, *said[1:]]}}
    write_lines(folder / "chats/session-2026-03-02T12-00-9e31.jsonl", [{"sessionId": "9e31"}, *said, shortened])


def codex_list(count: int, folder: Path) -> None:
    said = [codex_said("go on")] * count
    lines = [codex_line("response_item", **one) for one in said]
    compacted = codex_line("compacted", message="Summary", replacement_history=said)
    write_lines(folder / CODEX_FILE, [codex_line("session_meta", id="01a0"), *lines, compacted])


def opencode_sessions(count: int, folder: Path) -> None:
    with closing(sqlite3.connect(folder / "opencode.db")) as database, database:
        columns = ("parent_id", "directory", "title", "agent", "version", "revert", "time_updated")
        database.execute(f"CREATE TABLE session (id, {', '.join(columns)})")
        database.execute("CREATE TABLE message (id, session_id, time_created, data)")
        database.execute("CREATE TABLE part (id, session_id, message_id, data)")
        database.execute("CREATE INDEX of_session ON message (session_id)")
        database.executemany("INSERT INTO session (id) VALUES (?)", [(f"ses_{at}",) for at in range(count)])


@pytest.mark.parametrize(
    ("program", "write"), [("gemini", gemini_list), ("codex", codex_list), ("opencode", opencode_sessions)]
)
def test_reading_takes_time_in_proportion_to_what_is_there(
    program: str, write: Callable[[int, Path], None], tmp_path: Path
) -> None:
    def seconds(size: int) -> float:
        folder = tmp_path / str(size)
        (folder / "chats").mkdir(parents=True)
        write(size, folder)
        start = process_time()
        for found in found_in(folder, program):
            if program != "opencode":
                deque(program_named(program).read(found, ReadReport()), maxlen=0)
        return process_time() - start

    assert seconds(16_000) < 24 * seconds(2_000)
