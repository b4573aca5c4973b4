"""Policies written down."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from holdfast import Policy, SettingsError, read_policy
from holdfast.core.planning.policy import PRESETS, FitSettings
from holdfast.core.planning.rules.clip_tool_outputs import KeepEnds, KeepHeads
from holdfast.core.planning.rules.co_cli import CoCliCompaction
from holdfast.core.planning.rules.copilot import CopilotCompaction, TwoThresholds
from holdfast.core.planning.rules.cowagent import CowAgentCompaction, Emergency
from holdfast.core.planning.rules.default import DefaultCompaction, Offload
from holdfast.core.planning.rules.inkeep import FixedLimits, InkeepCompaction


def test_an_empty_document_is_the_default_under_another_name() -> None:
    assert read_policy("") == replace(PRESETS["default"], name="custom")


@pytest.mark.seed("A-41", "A-42", "D-22")
def test_a_document_changes_what_it_names_and_nothing_else() -> None:
    text = """
        base = "co-cli"
        name = "mine"
        outputs = { max_chars = 500 }
        [compaction]
        max_messages = 80
    """

    policy = read_policy(text)

    expected = PRESETS["co-cli"]
    assert policy.outputs == replace(expected.outputs, max_chars=500)  # pyright: ignore[reportArgumentType]
    assert replace(policy, name="co-cli", outputs=expected.outputs, compaction=expected.compaction) == expected


def test_another_rule_can_be_taken_and_one_can_be_left_out() -> None:
    policy = read_policy('base = "copilot"\ntruncator = false\n[compaction]\nrule = "default"\nsoft_share = 0.7')

    assert policy.compaction == DefaultCompaction(soft_share=0.7)
    assert policy.truncator is None
    assert read_policy('outputs.rule = "ends"').outputs == KeepEnds()


def test_false_in_a_document_is_none_for_each_key_that_may_have_none() -> None:
    policy = read_policy('base = "cowagent"\nmax_steps = false\nretention_days = false\nmain_sees_sub_agents = false')

    expected = replace(PRESETS["cowagent"], max_steps=None, retention_days=None, main_sees_sub_agents=None)
    assert policy == replace(expected, name="custom")


@pytest.mark.seed("C-21")
def test_tables_inside_tables_are_read() -> None:
    policy = read_policy('base = "copilot"\n[compaction.triggers]\nbackground = 0.6')

    assert policy.compaction == CopilotCompaction(triggers=TwoThresholds(background=0.6))


@pytest.mark.parametrize(
    ("text", "setting", "problem"),
    [
        ("compaction = ", "policy", "is not TOML that can be read"),
        ('base = "acme"', "policy", "'acme' is not known; choose one of: default, co-cli, inkeep, copilot, cowagent"),
        (
            "[compaction]\nsoft_shar = 0.7",
            "policy.compaction.soft_shar",
            "is not a setting; did you mean 'soft_share'?",
        ),
        ("zzz = 1", "policy.zzz", "is not a setting; there are: name, compaction, offload"),
        (
            '[compaction]\nrule = "magic"',
            "policy.compaction.rule",
            "'magic' is not known; choose one of: default, co-cli",
        ),
        ("[compaction]\nsoft_share = 1.5", "policy.compaction.soft_share", "must lie between 0.001 and 1, not 1.5"),
        (
            '[compaction]\nmin_messages = "4"',
            "policy.compaction.min_messages",
            "must be a whole number from 1 to 1,000,000",
        ),
        ("[compaction]\nhard_share = 0.5", "policy.compaction.hard_share", "must be at least 0.8"),
        ("[compaction]\ntail_share = 0.6", "policy.compaction.soft_share", "must be at least 0.9"),
        ("compaction = 3", "policy.compaction", "must be a table of settings, or false, not 3"),
        ('apply = "soon"', "policy.apply", "must be one of inline, background, deferred, not 'soon'"),
        ("name = 7", "policy.name", "must be str, not 7"),
        ("fit = false", "policy.fit", "must be a table of settings, not False"),
        (
            'main_sees_sub_agents = "none"',
            "policy.main_sees_sub_agents",
            "must be one of everything, answers, recall, nothing, not 'none'",
        ),
        ("max_steps = 0", "policy.max_steps", "must be a whole number from 1"),
        ("[fit]\nmax_media = true", "policy.fit.max_media", "must be a whole number from 1 to 10,000, not True"),
        (
            'base = "copilot"\n[compaction.triggers]\nexhausted = 0.5',
            "policy.compaction.triggers.background",
            "0.8 must lie below 0.5",
        ),
        (
            'base = "copilot"\n[compaction.triggers]\nbackground = "a"',
            "policy.compaction.triggers.background",
            "must be a number, not 'a'",
        ),
        (
            'base = "copilot"\n[compaction.triggers]\nmin_messages = -5',
            "policy.compaction.triggers.min_messages",
            "from 1 to",
        ),
        (
            'base = "copilot"\n[compaction]\ntriggers = false',
            "policy.compaction.triggers",
            "must be a table of settings, not False",
        ),
        ("[compaction]\nrule = []", "policy.compaction.rule", "[] is not known"),
        ("max_steps = 0x" + "f" * 5_000, "policy.max_steps", "must be a whole number"),
        ("fit = 0x" + "f" * 5_000, "policy.fit", "must be a table of settings, not a number of thousands"),
        ("base = 0x" + "f" * 5_000, "policy", "a number of thousands of digits is not known; choose one of"),
        ("models = 0x" + "f" * 5_000, "policy.models", "must be a table of patterns, not a number of thousands"),
        ("name." + "a." * 5_000 + "a = 1", "policy.name", "must be str, not a value that is nested hundreds of times"),
        ("a = " + "[" * 5_000, "policy", "is not TOML that can be read"),
    ],
)
def test_what_is_wrong_with_a_document_is_named(text: str, setting: str, problem: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        read_policy(text)

    assert refusal.value.setting == setting
    assert problem in str(refusal.value)


def test_a_policy_made_in_code_is_checked_too() -> None:
    with pytest.raises(SettingsError, match=r"policy\.unknown_window: must be a whole number from 1,000"):
        Policy(unknown_window=5)


def test_what_is_no_text_is_no_policy() -> None:
    with pytest.raises(SettingsError, match="policy: must be TOML text, not bytes"):
        read_policy(b"")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("kind", "setting", "lowest", "highest"),
    [
        (FitSettings, "clip_min_tokens", 1, 10**6),
        (FitSettings, "clip_zone_steps", 1, 1_000),
        (FitSettings, "digest_max_tokens", 1, 10**6),
        (FitSettings, "max_media", 1, 10_000),
        (Policy, "manual_min_messages", 1, 10**6),
        (Policy, "unknown_window", 1_000, 10**12),
        (Policy, "max_steps", 1, 10**6),
        (Policy, "retention_days", 1, 10**6),
        (KeepHeads, "max_chars", 0, 10**9),
        (KeepHeads, "protect_last", 1, 10**9),
        (KeepEnds, "max_chars", 64, 10**9),
        (CoCliCompaction, "max_messages", 0, 10**9),
        (TwoThresholds, "min_messages", 1, 10**6),
        (Emergency, "max_chars", 64, 10**9),
        (Emergency, "max_turns", 1, 10**9),
        (Emergency, "first", 1, 1_000),
        (CowAgentCompaction, "max_turns", 1, 10**9),
        (CowAgentCompaction, "max_tokens", 64, 10**12),
        (DefaultCompaction, "summary_max_tokens", 1, 10**6),
        (DefaultCompaction, "chat_max_tokens", 0, 10**6),
        (DefaultCompaction, "min_reuse", 0, 10**6),
        (DefaultCompaction, "min_messages", 1, 10**6),
        (Offload, "max_chars", 64, 10**9),
        (InkeepCompaction, "artifact_tokens", 1, 10**9),
        (FixedLimits, "max_messages", 1, 10**9),
        (FixedLimits, "max_tokens", 1, 10**9),
        (FixedLimits, "max_retrieved", 1, 10**9),
    ],
)
def test_a_number_of_a_policy_lies_between_its_bounds(
    kind: Callable[..., object], setting: str, lowest: int, highest: int
) -> None:
    name = {"name": "mine"} if kind is Policy else {}
    for value in (lowest, highest):
        assert getattr(kind(**{setting: value}, **name), setting) == value
    for value in (lowest - 1, highest + 1):
        with pytest.raises(SettingsError, match=rf"policy\..*{setting}: must (be a whole number from|lie between) "):
            kind(**{setting: value}, **name)


def test_the_numbers_of_cowagent_are_its_own_and_two_presets_write_memory() -> None:
    assert PRESETS["cowagent"].compaction == CowAgentCompaction(max_turns=20, max_tokens=50_000)
    assert [name for name, policy in PRESETS.items() if policy.writes_memory] == ["default", "cowagent"]
