"""One policy may have other settings for some models."""

import pytest

from holdfast.core.planning.policy import PRESETS, read_policy
from holdfast.core.planning.rules.default import DefaultCompaction
from holdfast.errors import SettingsError

DEFAULT = PRESETS["default"]

POLICY = read_policy("""
base = "default"
unknown_window = 50_000
[compaction]
soft_share = 0.7
[models."claude-*".compaction]
soft_share = 0.5
[models."*"]
compaction = false
""")


def test_the_first_pattern_that_matches_a_model_decides_and_keeps_the_common_settings() -> None:
    claude, other = POLICY.for_model("Claude-Sonnet-4-5"), POLICY.for_model("gpt-5")

    assert (claude.compaction, claude.unknown_window) == (DefaultCompaction(soft_share=0.5), 50_000)
    assert (other.compaction, other.unknown_window) == (None, 50_000)


@pytest.mark.parametrize(
    ("name", "soft_share"),
    [
        ("claude-sonnet-5-5", 0.5),
        ("anthropic:claude-sonnet-5-5", 0.5),
        ("anthropic/claude-sonnet-5.5", 0.5),
        ("openrouter:anthropic/claude-sonnet-5.5:free", 0.5),
        ("ollama:my-claude-like:8b", 0.8),
        ("openai:gpt-5", 0.8),
        ("openai:", 0.8),
        (None, 0.8),
    ],
)
def test_a_pattern_matches_the_name_of_a_model_with_and_without_its_provider(
    name: str | None, soft_share: float
) -> None:
    policy = read_policy('[models."claude-*".compaction]\nsoft_share = 0.5')

    assert policy.for_model(name).compaction == DefaultCompaction(soft_share=soft_share)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("models = 3", "policy.models: must be a table of patterns, not 3"),
        ('[models."a*".compaction]\nsoft_shar = 0.5', "policy.models.a*.compaction.soft_shar: is not a setting"),
        ('[models."a*".models."b"]\n', "policy.models.a*: must be a table of settings"),
    ],
)
def test_a_mistake_in_a_pattern_is_named_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(SettingsError) as error:
        read_policy(text)

    assert str(error.value).startswith(problem)


def test_a_policy_from_a_file_may_begin_with_a_byte_order_mark() -> None:
    assert read_policy('\ufeffname = "mine"\r\nretention_days = 7\r\n') == read_policy(
        'name = "mine"\nretention_days = 7'
    )
