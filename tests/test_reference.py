"""The parts of the reference that are read from the code name everything that the code has."""

import inspect
import re
from pathlib import Path

from holdfast import errors
from holdfast.apps.chat.plain_screen import CHAT_EVENT_NAMES
from holdfast.apps.cli.parser import COMMAND_GROUPS
from holdfast.core.history.codec import EVENT_TYPES
from holdfast.core.planning.policy import Policy
from holdfast.core.schema import typed_fields
from scripts import reference
from tests.test_public_api import FACADES

PAGES = Path(__file__).parent.parent / "docs" / "reference"


def headings(text: str) -> list[str]:
    """Return what the headings of a page name."""
    return re.findall(r"^#+ `([^`]+)`", text, re.MULTILINE)


def test_every_command_has_its_help_and_no_folder_of_this_machine() -> None:
    page = reference.render_commands()

    assert {f"holdfast {name}" for name in COMMAND_GROUPS} <= set(headings(page))
    assert "usage: holdfast sessions prune" in page
    assert "/root" not in page


def test_every_error_says_when_it_is_raised_and_what_to_do() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.HoldfastError)]

    page = reference.render_errors()

    assert set(headings(page)) == {kind.__name__ for kind in kinds}
    assert "Attributes: `part`, `needed`, `limit`, `unit`, `breakdown`." in page


def test_every_event_is_listed_with_the_keys_under_which_it_is_stored() -> None:
    assert headings(reference.render_log_events()) == sorted(EVENT_TYPES)
    assert "| `preCompactionTokens` | whole number, optional |" in reference.render_log_events()
    assert headings(reference.render_chat_events()) == [*CHAT_EVENT_NAMES.values()]


def test_every_key_of_a_policy_is_listed_with_what_it_accepts() -> None:
    page = reference.render_policy()
    keys = re.findall(r"^\| `([\w.]+)` ", page, re.MULTILINE)

    assert {item.name for item, _ in typed_fields(Policy)} <= {key.partition(".")[0] for key in keys} | {
        "name",
        "models",
    }
    assert "| `compaction.soft_share` | 0.8 | from 0.001, below 1 | From this share on a summary is requested" in page


def test_a_policy_key_in_a_table_within_a_table_is_listed_by_its_whole_name_with_what_it_accepts() -> None:
    rows = [line.split(" | ")[:3] for line in reference.render_policy().splitlines() if line.startswith("| `")]

    assert [row for row in rows if "triggers" in row[0]] == [
        ["| `compaction.triggers.background`", "0.8", "from 0.001, at most 1"],
        ["| `compaction.triggers.exhausted`", "0.95", "from 0.001, at most 1"],
        ["| `compaction.triggers.min_messages`", "4", "from 1, at most 1,000,000"],
    ]
    assert ["| `truncator.retry_buffer`", "0.0", "from 0, at most 0.5"] in rows


def test_a_policy_key_that_may_have_none_accepts_false() -> None:
    rows = [line.split(" | ") for line in reference.render_policy().splitlines() if line.startswith("| `")]

    assert {row[0]: row[2] for row in rows if row[2].endswith("or false") and "true" not in row[2]} == {
        "| `main_sees_sub_agents`": '"everything" or "answers" or "recall" or "nothing" or false',
        "| `max_steps`": "from 1, at most 1,000,000 or false",
        "| `retention_days`": "from 1, at most 1,000,000 or false",
    }


def test_the_routes_are_those_that_the_gateway_describes() -> None:
    assert "| `POST /holdfast/v1/sessions/{id}/undo` | Undo the last change of the context. |" in (
        reference.render_control_api()
    )


def test_spans_and_metrics_have_the_names_that_a_provider_receives() -> None:
    page = reference.render_telemetry()

    assert headings(page.replace("The span ", "")) == ["POST openai-chat", "chat MODEL", "compact_messages"]
    assert "| `holdfast_gateway_requests_total` | counter |" in page
    assert "| `session_compaction_complete.duration` | histogram | s |" in page


def test_every_module_that_users_import_has_a_page_of_its_own() -> None:
    documented = {name for page in (PAGES / "api").glob("*.md") for name in headings(page.read_text())}

    assert {"holdfast", "holdfast.adapters", *(f"holdfast.{name}" for name in FACADES)} == documented


def test_every_part_that_is_generated_is_included_in_a_page() -> None:
    included = {
        name for page in PAGES.glob("*.md") for name in re.findall(r"_generated/([\w-]+)\.md", page.read_text())
    }

    assert included == {*reference.PARTS}
