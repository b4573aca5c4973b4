"""Policies written down."""

from dataclasses import replace

import pytest

from holdfast import Policy, SettingsError, read_policy
from holdfast.core.planning.policy import PRESETS
from holdfast.core.planning.rules.clip_tool_outputs import KeepEnds
from holdfast.core.planning.rules.copilot import CopilotCompaction, TwoThresholds
from holdfast.core.planning.rules.default import DefaultCompaction


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
        ("[compaction]\ntail_share = 0.7", "policy.compaction.soft_share", "must be at least 0.96"),
        ("compaction = 3", "policy.compaction", "must be a table of settings, or false, not 3"),
        ('apply = "soon"', "policy.apply", "must be one of inline, background, deferred, not 'soon'"),
        ("name = 7", "policy.name", "must be str, not 7"),
        ("fit = false", "policy.fit", "must be FitSettings, not None"),
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
            "must be TwoThresholds, not None",
        ),
        ("[compaction]\nrule = []", "policy.compaction.rule", "[] is not known"),
        ("max_steps = 0x" + "f" * 5_000, "policy.max_steps", "must be a whole number"),
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
