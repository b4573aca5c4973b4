"""Independent checks by mistral-common, if it is installed: the validity of requests, and token counts."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, TypeAlias, cast

from holdfast.core.conversation.tokens import Counter, Provenance

MISTRAL_PACKAGE, TEKKEN_FILE = "mistral_common", "tekken_240911.json"
RequestOracle: TypeAlias = Callable[[Sequence[Mapping[str, object]]], bool]
"""A function that returns whether Mistral would accept a request."""


class _Tokenizer(Protocol):
    def encode(self, text: str, *, bos: bool, eos: bool) -> list[int]: ...


class _Validator(Protocol):
    def validate_request(self, request: object) -> object: ...


class TekkenCounter:
    """Counts with Mistral's tekken vocabulary."""

    provenance: Provenance = "counted"
    name = "tekken"

    def __init__(self, tokenizer: _Tokenizer) -> None:
        self._tokenizer = tokenizer

    def count(self, text: str) -> int:
        """Return how many tokens a text has."""
        return len(self._tokenizer.encode(text, bos=False, eos=False))


@cache
def tekken_counter() -> Counter | None:
    """Return the counter; None if the vocabulary is not installed."""
    found = find_spec(MISTRAL_PACKAGE)
    path = Path(found.origin).parent / "data" / TEKKEN_FILE if found and found.origin else None
    if path is None or not path.is_file():
        return None
    return TekkenCounter(import_module(f"{MISTRAL_PACKAGE}.tokens.tokenizers.tekken").Tekkenizer.from_file(path))


@cache
def mistral_oracle() -> RequestOracle | None:
    """Return a check by Mistral's own library; None if it is not installed."""
    if find_spec(MISTRAL_PACKAGE) is None:
        return None
    refusal = cast("type[Exception]", import_module(f"{MISTRAL_PACKAGE}.exceptions").MistralCommonException)
    request = import_module(f"{MISTRAL_PACKAGE}.protocol.instruct.request").ChatCompletionRequest
    rules = import_module(f"{MISTRAL_PACKAGE}.protocol.instruct.validator")
    version = import_module(f"{MISTRAL_PACKAGE}.tokens.tokenizers.base").TokenizerVersion.v11
    validator: _Validator = rules.get_validator(version, rules.ValidationMode.serving)

    def is_accepted(messages: Sequence[Mapping[str, object]]) -> bool:
        try:
            validator.validate_request(request.from_openai(list(messages), model="mistral"))
        except refusal:
            return False
        return True

    return is_accepted
