"""Checks messages against every rule of one provider."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from holdfast.errors import MalformedInputError, SettingsError
from holdfast.wire.formats import FORMAT_ALIASES
from holdfast.wire.json_reader import check_list, is_mapping, json_type_name
from holdfast.wire.validate import anthropic, gemini, openai, pydantic_ai, responses
from holdfast.wire.validate.rules import Payload, ValidationRule, Violation

PROVIDER_VALIDATION_RULES: Mapping[str, tuple[ValidationRule, ...]] = {
    "openai-chat": openai.OPENAI_RULES,
    "openai-responses": responses.RESPONSES_RULES,
    "openai-responses-stateless": responses.RESPONSES_STATELESS_RULES,
    "anthropic-messages": anthropic.ANTHROPIC_RULES,
    "gemini": gemini.GEMINI_RULES,
    "gemini-2": gemini.GEMINI_UNSIGNED_RULES,
    "mistral": openai.MISTRAL_RULES,
    "bedrock": anthropic.BEDROCK_RULES,
    "pydantic-ai": pydantic_ai.PYDANTIC_AI_RULES,
}


def validate(
    messages: Sequence[Mapping[str, Any]],
    provider: str,
    *,
    system: object = None,
    tools: object = None,
    thinking_prefixes: Mapping[str, Collection[str]] | None = None,
) -> list[Violation]:
    """Return every violation of a provider's rules, each with its place.

    `thinking_prefixes` says, by the signature of a thinking block, in which requests it was said, as
    `Session.thinking_prefixes` returns them: newer Claude models reject a block after anything else.
    """
    name = provider if isinstance(provider, str) else ""
    rules = PROVIDER_VALIDATION_RULES.get(FORMAT_ALIASES.get(name, name))
    if rules is None:
        raise SettingsError(
            "provider", f"{provider!r} is not known; choose one of: {', '.join(PROVIDER_VALIDATION_RULES)}"
        )
    objects: list[Mapping[str, Any]] = []
    for index, message in enumerate(check_list(messages)):
        if not is_mapping(message):
            raise MalformedInputError(f"messages[{index}]", f"must be an object, not {json_type_name(message)}")
        objects.append(message)
    payload = Payload(objects, system, tools, thinking_prefixes or {})
    return [violation for rule in rules for violation in _violations_of(rule, payload)]


def _violations_of(rule: ValidationRule, payload: Payload) -> list[Violation]:
    try:
        return list(rule(payload))
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        # A shape that makes a rule fail is not one that the provider reads.
        return [Violation("shape", "messages", f"cannot be read: {error}")]
    except RecursionError:  # its message depends on the version of Python
        return [Violation("shape", "messages", "cannot be read: a value is nested too deep")]
