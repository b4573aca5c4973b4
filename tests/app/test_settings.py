"""A setting is declared once; a value is read, shown, changed and put into the policy by its declaration."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from holdfast.apps.settings.policies import POLICY_LINKS
from holdfast.apps.settings.schema import SETTING_DECLARATIONS, setting_name, setting_names
from holdfast.apps.settings.settings import Settings
from holdfast.core.planning.policy import PRESETS
from holdfast.core.planning.rules.co_cli import CoCliCompaction
from holdfast.core.planning.rules.copilot import CopilotCompaction
from holdfast.core.planning.rules.cowagent import CowAgentCompaction
from holdfast.core.planning.rules.default import DefaultCompaction
from holdfast.errors import SettingsError

Setup = Callable[..., Settings]


def test_every_setting_has_help_a_variable_and_names_that_nobody_else_has() -> None:
    names = [name for one in SETTING_DECLARATIONS.values() for name in one.names]
    variables = [variable for one in SETTING_DECLARATIONS.values() for variable in one.variables]

    assert setting_names() == list(SETTING_DECLARATIONS)
    assert len({*names}) == len(names)
    assert len({*variables}) == len(variables)
    assert all(one.help and one.variables[0] == f"HOLDFAST_{one.name.upper()}" for one in SETTING_DECLARATIONS.values())
    assert {*POLICY_LINKS} <= {*SETTING_DECLARATIONS}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_without_settings_is_the_preset_to_the_letter(preset: str, settings: Setup) -> None:
    assert settings(f"preset = '{preset}'").effective_policy == PRESETS[preset]


def test_settings_never_change(settings: Setup) -> None:
    before = settings()
    after = before.with_change("max_steps", "7")

    assert (before.max_steps, after.max_steps, after.effective_policy.max_steps) == (50, 7, 7)
    with pytest.raises(FrozenInstanceError):
        before.max_steps = 9  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.seed("D-22")
def test_what_is_changed_at_run_time_stands_in_the_rules_at_once(settings: Setup) -> None:
    changed = settings("preset = 'cowagent'")
    changed = changed.with_change("agent_max_context_tokens", "80000").with_change("agent_max_context_turns", "30")

    assert changed.effective_policy.compaction == CowAgentCompaction(max_turns=30, max_tokens=80_000)
    assert changed.with_change("max_context_turns", "0").effective_policy.compaction == CowAgentCompaction(
        max_turns=10**9, max_tokens=80_000
    )
    assert str(changed.source("max_context_tokens")) == "changed in this session"


def test_the_last_change_of_a_setting_counts_and_the_others_are_forgotten(settings: Setup) -> None:
    changed = settings().with_change("max_steps", "1").with_change("max_steps", "2").with_change("max_steps", "3")

    assert changed.max_steps == 3
    assert [one.value for one in changed.explicit_values] == [3]


@pytest.mark.parametrize(
    ("preset", "key", "text", "place", "value"),
    [
        ("co-cli", "max_history_messages", "12", "compaction.max_messages", 12),
        ("co-cli", "tool_output_trim_chars", "9", "outputs.max_chars", 9),
        ("cowagent", "tool_output_trim_chars", "900", "outputs.max_chars", 900),
        ("default", "tool_output_trim_chars", "900", "offload.max_chars", 900),
        ("default", "background_compaction_threshold", "70 %", "compaction.soft_share", 0.7),
        ("default", "buffer_exhaustion_threshold", ".9", "compaction.hard_share", 0.9),
        ("copilot", "background_compaction_threshold", "0.5", "compaction.triggers.background", 0.5),
        ("copilot", "min_compaction_messages", "9", "compaction.triggers.min_messages", 9),
        ("inkeep", "compression_threshold", "0.4", "compaction.fraction", 0.4),
        ("inkeep", "fallback_messages", "20", "limits.max_messages", 20),
        ("inkeep", "fallback_tokens", "4,000", "limits.max_tokens", 4_000),
        ("inkeep", "retrieved_messages", "5_000", "limits.max_retrieved", 5_000),
        ("cowagent", "retention_days", "never", "retention_days", None),
        ("default", "max_steps", "off", "max_steps", None),
    ],
)
def test_a_setting_stands_where_the_preset_has_its_rule(
    preset: str, key: str, text: str, place: str, value: object, *, settings: Setup
) -> None:
    found: object = settings(f"preset = '{preset}'").with_change(key, text).effective_policy

    for name in place.split("."):
        found = getattr(found, name)
    assert found == value


@pytest.mark.parametrize("preset", ["default", "cowagent"])
def test_nothing_of_tool_output_is_cut_where_that_is_switched_off(preset: str, settings: Setup) -> None:
    changed = settings(f"preset = '{preset}'").with_change("tool_output_trim_chars", "0")

    assert (changed.effective_policy.offload, changed.effective_policy.outputs, changed.notes) == (None, None, ())


@pytest.mark.parametrize("preset", ["default", "copilot"])
def test_two_lines_that_are_moved_together_are_held_against_each_other(preset: str, settings: Setup) -> None:
    both = "background_compaction_threshold = 0.96\nbuffer_exhaustion_threshold = 0.98"

    rule = settings(f"preset = '{preset}'\n{both}").effective_policy.compaction
    assert isinstance(rule, DefaultCompaction | CopilotCompaction)
    lines = (
        (rule.soft_share, rule.hard_share)
        if isinstance(rule, DefaultCompaction)
        else (rule.triggers.background, rule.triggers.exhausted)
    )
    assert lines == (0.96, 0.98)
    with pytest.raises(SettingsError, match=r"holdfast.toml:2: background_compaction_threshold: "):
        settings(f"preset = '{preset}'\nbackground_compaction_threshold = 0.97")


def test_a_file_of_rules_begins_with_the_preset_and_settings_come_on_top(settings: Setup, home: Path) -> None:
    (home / "rules.toml").write_text("max_steps = 5\n[outputs]\nmax_chars = 70")
    found = settings("preset = 'co-cli'\npolicy = 'rules.toml'\ntool_output_trim_chars = 80")

    assert (found.effective_policy.name, found.max_steps, found.tool_output_trim_chars) == ("custom", 5, 80)
    assert found.effective_policy.compaction == CoCliCompaction(max_messages=40)
    assert found.effective_policy.max_steps == 5


def test_a_wrong_rule_is_named_by_the_line_of_its_file(settings: Setup, home: Path) -> None:
    (home / "rules.toml").write_text("\n[compaction]\nhard_share = 3.0")

    with pytest.raises(SettingsError) as wrong:
        settings("policy = 'rules.toml'")

    assert str(wrong.value) == (
        f"{home}/holdfast.toml:1: policy: {home}/rules.toml:3: policy.compaction.hard_share: "
        "must lie between 0.001 and 1, not 3.0"
    )


@pytest.mark.parametrize(
    ("key", "text", "shown"),
    [
        ("max_context_tokens", "80000", "80,000"),
        ("budget", "80_000", "80,000"),
        ("colour", "never", "never"),
        ("color", "always", "always"),
        ("approve", "yes", "on"),
        ("approve", "ON", "on"),
        ("approve", "false", "off"),
        ("tools", "read, run", "read, run"),
        ("tools", "none", "none"),
        ("tools", "+run", "read, edit, run, plan"),
        ("allow", '["git status", "ls"]', "git status, ls"),
        ("checkpoints", "off", "off"),
        ("summariser", "", '""'),
        ("model", "openai:gpt-5", "openai:gpt-5"),
        ("store", "postgresql://me:hunter2@db/chats", "postgresql://me:[redacted]@db/chats"),
        ("store", "postgresql://me:%24hunter2@db/chats", "postgresql://me:[redacted]@db/chats"),
        ("store", "postgresql://me:$hunter@2@db/chats", "postgresql://me:[redacted]@db/chats"),
        ("store", "postgresql://me:@db/chats", "postgresql://me:@db/chats"),
        ("store", "postgresql://db/chats?password=$a&user=b", "postgresql://db/chats?password=[redacted]&user=b"),
        ("store", "sqlite:////srv/a:b@c.db", "sqlite:////srv/a:b@c.db"),
        ("max-steps", "9", "9"),
    ],
)
def test_what_people_type_is_read_as_they_mean_it(key: str, text: str, shown: str, settings: Setup) -> None:
    assert settings().with_change(key, text).render_value(key) == shown


@pytest.mark.parametrize(
    ("key", "text", "problem"),
    [
        ("presett", "x", "presett: is not a setting; did you mean 'preset'?"),
        ("zzzz", "x", "zzzz: is not a setting; holdfast config lists them"),
        ("preset", "x", "preset: 'x' is not known; choose one of: default, co-cli, inkeep, copilot, cowagent"),
        ("max_steps", "-1", "max_steps: must be a whole number from 1 to 1,000,000, or 0 for none, not -1"),
        ("n_ctx", "5", "n_ctx: must be a whole number from 512 to 1,000,000, not 5"),
        ("compression_threshold", "nan", "compression_threshold: must be a number between 0 and 1, not nan"),
        ("compression_threshold", "120%", "compression_threshold: must be a number between 0 and 1, not 1.2"),
        ("model", "", "model: must be a text, not ''"),
        ("checkpoints", "\0", "checkpoints: must be the path of a folder, or off, not '\\x00'"),
        ("tools", "[1]", 'tools: must be a list of texts such as ["a", "b"], not [1]'),
        ("tools", "[", "tools: '[' is not known; choose one of: read, edit, run, plan"),
        ("tools", "[" * 100_000, f"tools: '{'[' * 59} is not known; choose one of: read, edit, run, plan"),
        ("mcp", "x", "mcp: is a table; write [mcp.NAME] with command = … or url = … into holdfast.toml, not 'x'"),
        ("store", "sqlite:///", "store: sqlite:/// needs the path of a file, such as sqlite:///chats.db"),
        (
            "store", "pg:me:hunter2@db",
            "store: must be one of memory://, sqlite:///file or postgresql://…, not 'pg:me:[redacted]@db'",
        ),
        ("system", "~no/x", "system: '~no/x' names an unknown home folder; write the whole path"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_what_would_do(key: str, text: str, problem: str, settings: Setup) -> None:
    with pytest.raises(SettingsError) as wrong:
        settings().with_change(key, text)

    assert str(wrong.value) == problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("allow = ['']", '1: allow: must be a list of texts such as ["a", "b"], not [\'\']'),
        ("trust = ['']", "1: trust: must be a list of folders such as [\"~/work\"], not ['']"),
        ("system = 5", "1: system: must be the path of a file, not 5"),
        ("memory = 'holdfast.toml'", "1: memory: {file} is a file; name a folder, or off"),
        (
            "[mcp.a]\ncommand = 'x'\nargs = [1]",
            '3: mcp.a.args: must be a list of texts such as ["--quiet"], not [1]',
        ),
        ("[models.a]\ninput_price = -1", "2: models.a.input_price: must be dollars per million tokens, not -1"),
    ],
)
def test_a_value_of_a_file_that_cannot_be_is_refused(text: str, problem: str, settings: Setup, home: Path) -> None:
    with pytest.raises(SettingsError) as wrong:
        settings(text)

    file = home / "holdfast.toml"
    assert str(wrong.value) == f"{file}:{problem.format(file=file)}"


def test_a_change_that_is_refused_changes_nothing_even_where_something_else_is_wrong(settings: Setup) -> None:
    before = settings("modle = 'x'\npreset = 'copilot'", is_tolerant=True)

    with pytest.raises(SettingsError, match=r"^background_compaction_threshold: 0.99 must lie below 0.95"):
        before.with_change("background_compaction_threshold", "0.99")
    assert before.with_change("max_steps", "4").max_steps == 4


def test_names_are_found_for_completion() -> None:
    assert setting_name("AGENT_MAX_STEPS") == "max_steps"
    assert SETTING_DECLARATIONS["colour"].value_type.choices == ("auto", "always", "never")
    assert SETTING_DECLARATIONS["model"].value_type.choices == ()


def test_a_flag_that_was_not_given_leaves_the_setting_as_it_is(settings: Setup) -> None:
    loaded = settings("max_steps = 7", flags={"max_steps": None, "preset": "co-cli"})

    assert (loaded.max_steps, loaded.preset) == (7, "co-cli")
