"""Whoever knows one of the four systems finds its names: docs/maintainers/seeds.md is looked up, row by row."""

import importlib
import re
from pathlib import Path

import pytest

from holdfast.apps.cli.main import main
from holdfast.apps.settings.schema import SETTING_DECLARATIONS

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "maintainers" / "seeds.md").read_text(encoding="utf-8")
ROWS = [
    tuple(cell.strip() for cell in line.split("|")[1:3])
    for line in PAGE.splitlines()
    if line.startswith("| ") and line != "| there | here |"
]
SETTING = re.compile(r"the settings? ((?:`\w+`(?:, )?)+)")

CO_CLI = """main.py agent.py _history.py _orchestrate.py _commands.py config.py test_history.py
    _cmd_clear _cmd_history _cmd_compact _find_first_run_end _static_marker _content_length _patch_dangling_tool_calls
    truncate_tool_returns truncate_history_window summarize_messages message_history run_turn history_processors
    tool_output_trim_chars max_history_messages summarization_model /clear /compact /history /sessions --resume
    CO_CLI_TOOL_OUTPUT_TRIM_CHARS CO_CLI_MAX_HISTORY_MESSAGES CO_CLI_SUMMARIZATION_MODEL ModelMessagesTypeAdapter"""
COPILOT = """CompactionProcessor BasicTruncator Session.compactHistory history.compact() buildCompactionPrompt
    prepareCompactionMessages buildCompactedHistory adjustCompactionBoundary runCompactionModelCall
    truncateAssistantToolMaterial truncateOldMessages removeOrphanToolMessages countMessagesAndTools isContextLimitError
    persistCompactionCheckpoint WorkspaceManager.addSummary applyCompactionToMessages respondToMemoryPressure
    session.compaction_start session.compaction_complete session.truncation session.usage_info history_truncated
    session_compaction_start session_compaction_complete preCompact conversation-compaction isInitial performedBy
    COPILOT_BACKGROUND_COMPACTION_THRESHOLD COPILOT_BUFFER_EXHAUSTION_THRESHOLD checkpoints/index.md workspace.yaml
    summary_count /rewind /undo RemoteSession.compactHistory agent.thread_context_compacted compaction_delta
    compactionControl context_board rem-agent"""
OTHERS = """agent_max_context_tokens agent_max_context_turns agent_max_steps config.json /context /config artifacts
    CompressionModelsTable"""


def spans(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def is_there(name: str) -> bool:
    """Return whether a module, or something in one, has this name."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for attribute in parts[count:]:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


@pytest.mark.seed("A-47", "C-63")
@pytest.mark.parametrize(("there", "here"), ROWS, ids=[there for there, _ in ROWS])
def test_a_name_of_a_seed_leads_somewhere(there: str, here: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [name for found in SETTING.findall(here) for name in spans(found)]
    named = [name for name in spans(here) if name not in settings]
    missing = [name for name in named if name.startswith("holdfast.") and not is_there(name)]
    files = [name for name in named if name.startswith(("tests/", "docs/"))]
    commands = [name for name in named if name.startswith("holdfast ")]

    assert {*settings} <= {*SETTING_DECLARATIONS}
    assert [name for name in files if not (ROOT / name).exists()] == []
    for command in commands:
        with pytest.raises(SystemExit) as left:
            main([*command.split()[1:], "--help"])
        assert left.value.code == 0
    assert capsys.readouterr().out or not commands
    assert there
    assert named or settings or "comes with" in here
    if "comes with" in here:
        expected = [name for name in named if name.startswith(("holdfast.apps.chat", "holdfast.adapters"))]
        assert missing or not expected, f"{there} is there now: say so"
    else:
        assert missing == []


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(CO_CLI, marks=pytest.mark.seed("A-47"), id="co-cli"),
        pytest.param(COPILOT, marks=pytest.mark.seed("C-63"), id="copilot"),
        pytest.param(OTHERS, id="others"),
    ],
)
def test_every_name_that_a_seed_uses_is_on_the_page(names: str) -> None:
    page = "\n".join(there for there, _ in ROWS)

    assert [name for name in names.split() if name not in page] == []
