"""Asks every rule of one provider."""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import MalformedInputError, SettingsError
from holdfast.wire.formats import ALIASES
from holdfast.wire.reading import check_list, is_mapping, kind_of
from holdfast.wire.validate import anthropic, bedrock, gemini, mistral, openai, pydantic_ai, responses
from holdfast.wire.validate.rules import Payload, Rule, Violation

PROVIDERS: Mapping[str, tuple[Rule, ...]] = {
    "openai-chat": openai.RULES,
    "openai-responses": responses.RULES,
    "openai-responses-stateless": responses.STATELESS_RULES,
    "anthropic-messages": anthropic.RULES,
    "gemini": gemini.RULES,
    "gemini-2": gemini.UNSIGNED_RULES,
    "mistral": mistral.RULES,
    "bedrock": bedrock.RULES,
    "pydantic-ai": pydantic_ai.RULES,
}


def validate(
    messages: Sequence[Mapping[str, Any]], provider: str, *, system: object = None, tools: object = None
) -> list[Violation]:
    """Return every rule of a provider that its messages break, each with its place."""
    name = provider if isinstance(provider, str) else ""
    rules = PROVIDERS.get(ALIASES.get(name, name))
    if rules is None:
        raise SettingsError("provider", f"{provider!r} is not known; choose one of: {', '.join(PROVIDERS)}")
    objects: list[Mapping[str, Any]] = []
    for index, message in enumerate(check_list(messages)):
        if not is_mapping(message):
            raise MalformedInputError(f"messages[{index}]", f"must be an object, not {kind_of(message)}")
        objects.append(message)
    payload = Payload(objects, system, tools)
    return [violation for rule in rules for violation in _ask(rule, payload)]


def _ask(rule: Rule, payload: Payload) -> list[Violation]:
    try:
        return list(rule(payload))
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        # What a rule stumbles over has not the shape that the provider reads either.
        return [Violation("shape", "messages", f"cannot be read: {error}")]
