"""What a provider billed for an answer, read from the usage object of its own format.

The formats disagree about the cached part of a prompt. OpenAI, Gemini and pydantic-ai include it in the input;
Anthropic and Bedrock report it separately. If the cached part is lost or added twice, the bill is false. So a report
without a name that we know is refused, and so is a count of tokens that its format does not have.
"""

import re
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

from holdfast.core.history.events import Usage
from holdfast.core.schema import is_integer, short_repr
from holdfast.errors import SettingsError
from holdfast.text import lazy_pattern
from holdfast.wire.json_reader import is_list, is_mapping

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MAX_REPORTED_TOKENS = 10**12
_TOKEN_NAME = lazy_pattern(r"token|cache", re.IGNORECASE)
_CAPITAL = lazy_pattern(r"(?<=[a-z0-9])([A-Z])")
_ANTHROPIC_LIFETIMES = ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
_WRAPPERS = ("usage_metadata", "usageMetadata")
OWN_NAMES = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
WHAT_TO_PASS = f"pass the provider's usage object as it came, or {', '.join(OWN_NAMES[:-1])} and {OWN_NAMES[-1]}"


def read_usage(report: object) -> Usage:
    """Return what a provider billed, from its usage object as it came: JSON, or an object of its library.

    Holdfast's own names are accepted too; with them, `input_tokens` excludes the cached tokens.
    """
    members = _members(report)
    if members is None:
        raise SettingsError("usage", f"must be an object with counts of tokens, not {short_repr(report)}")
    for wrapper in _WRAPPERS:
        members = _members(members.get(wrapper)) or members
    named = {name for name, value in members.items() if value is not None}
    # A report may consist of nulls alone: it is one of its format, and says nothing.
    formats = (one for names in (named, set(members)) for one in USAGE_FORMATS if one.has_names(names))
    usage_format = next(formats, None)
    if usage_format is None:
        told = short_repr(", ".join(map(str, members))) if members else "an empty object"
        raise SettingsError("usage", f"{told} says nothing about tokens; {WHAT_TO_PASS}")
    for name, value in members.items():
        is_count = is_integer(value) or is_mapping(value)
        if is_count and name not in usage_format.names and _TOKEN_NAME.search(str(name)):
            mark = min(usage_format.marks & set(members))
            raise SettingsError(f"usage.{str(name)[:60]}", f"is not known beside {mark}; {WHAT_TO_PASS}")
    return usage_format.read(members)


def usage_if_readable(read: Callable[[Mapping[str, object]], Usage], report: object) -> Usage | None:
    """Return what an endpoint billed; None if it says nothing that its format has."""
    try:
        return read(report) if is_mapping(report) else None
    except SettingsError:
        return None


def chat_usage(report: Mapping[str, object]) -> Usage:
    """Read the usage of OpenAI Chat Completions and of endpoints that are compatible with it.

    Endpoints have several names for the cached part: DeepSeek, Kimi and LiteLLM one each.
    """
    details = _object(report, "prompt_tokens_details")
    read_names = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens", "num_cached_tokens")
    write_names = ("cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens")
    return _inclusive(
        _count(report, "prompt_tokens"),
        read=_first_count(details, *read_names) or _first_count(report, *read_names),
        write=_first_count(details, *write_names) or _first_count(report, *write_names),
        output=_count(report, "completion_tokens"),
    )


def responses_usage(report: Mapping[str, object]) -> Usage:
    """Read the usage of OpenAI Responses."""
    details = _object(report, "input_tokens_details")
    return _inclusive(
        _count(report, "input_tokens"),
        read=_count(details, "cached_tokens"),
        write=_first_count(details, "cache_write_tokens", "cache_creation_tokens"),
        output=_count(report, "output_tokens"),
    )


def anthropic_usage(report: Mapping[str, object]) -> Usage:
    """Read the usage of Anthropic Messages, whose input excludes the cached tokens.

    Bedrock's library for Python has the same names, but for `cache_write_input_tokens`.
    """
    by_lifetime = _object(report, "cache_creation")
    written = _first_count(report, "cache_creation_input_tokens", "cache_write_input_tokens")
    return Usage(
        input_tokens=_count(report, "input_tokens"),
        output_tokens=_count(report, "output_tokens"),
        cache_read_tokens=_count(report, "cache_read_input_tokens"),
        cache_write_tokens=written or sum(_count(by_lifetime, name) for name in _ANTHROPIC_LIFETIMES),
    )


def bedrock_usage(report: Mapping[str, object]) -> Usage:
    """Read the usage of Bedrock Converse, whose input excludes the cached tokens."""
    return Usage(
        input_tokens=_count(report, "inputTokens"),
        output_tokens=_count(report, "outputTokens"),
        cache_read_tokens=_first_count(report, "cacheReadInputTokens", "cacheReadInputTokenCount"),
        cache_write_tokens=_first_count(report, "cacheWriteInputTokens", "cacheWriteInputTokenCount"),
    )


def gemini_usage(report: Mapping[str, object]) -> Usage:
    """Read the usage metadata of Gemini, in the spelling of its JSON or of its libraries.

    `toolUsePromptTokenCount` is left out: these tokens are read by tools at the provider and are not in our request.
    """
    counts = {_snake_case(name): value for name, value in report.items()}
    answer = _first_count(counts, "candidates_token_count", "response_token_count")
    return _inclusive(
        _count(counts, "prompt_token_count"),
        read=_count(counts, "cached_content_token_count"),
        output=answer + _count(counts, "thoughts_token_count"),
    )


def pydantic_ai_usage(report: Mapping[str, object]) -> Usage:
    """Read the usage of one pydantic-ai response, whose input includes the cached tokens."""
    requests = _count(report, "requests")
    if requests > 1:
        problem = f"is the sum of {requests} requests; pass the usage of the last response"
        raise SettingsError("usage", problem)
    return _inclusive(
        _count(report, "input_tokens"),
        read=_count(report, "cache_read_tokens"),
        write=_count(report, "cache_write_tokens"),
        output=_count(report, "output_tokens"),
    )


def _own_usage(report: Mapping[str, object]) -> Usage:
    return Usage(**{name: _count(report, name) for name in OWN_NAMES})


class UsageFormat(NamedTuple):
    """The usage object of one format."""

    read: Callable[[Mapping[str, object]], Usage]
    marks: frozenset[str]
    """A report with one of these names is of this format."""
    names: frozenset[str]
    """All names of the format that count tokens, or say something about the cache."""
    is_whole: bool = False
    """Whether a report of this format has no other names at all."""

    def has_names(self, names: AbstractSet[str]) -> bool:
        """Return whether a report with these names is of this format."""
        return bool(names & self.marks) and not (self.is_whole and names - self.names)


_ANSWER_DETAILS = frozenset({"output_tokens", "output_tokens_details", "total_tokens"})
_ANTHROPIC_CACHE = frozenset(
    {"cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation", "cache_write_input_tokens"}
)
_GEMINI_COUNTS = frozenset(
    {
        "prompt_token_count",
        "cached_content_token_count",
        "candidates_token_count",
        "response_token_count",
        "thoughts_token_count",
        "tool_use_prompt_token_count",
        "total_token_count",
    }
)
_GEMINI_DETAILS = frozenset(
    {
        "prompt_tokens_details",
        "cache_tokens_details",
        "candidates_tokens_details",
        "response_tokens_details",
        "tool_use_prompt_tokens_details",
    }
)


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _snake_case(name: object) -> str:
    return _CAPITAL.sub(r"_\1", str(name)).lower()


USAGE_FORMATS = (
    UsageFormat(_own_usage, frozenset(OWN_NAMES), frozenset(OWN_NAMES) | {"total_tokens"}, is_whole=True),
    UsageFormat(
        gemini_usage,
        _GEMINI_COUNTS | frozenset(map(_camel_case, _GEMINI_COUNTS)),
        frozenset().union(*({name, _camel_case(name)} for name in _GEMINI_COUNTS | _GEMINI_DETAILS)),
    ),
    UsageFormat(
        bedrock_usage,
        frozenset({"inputTokens", "outputTokens"}),
        frozenset(
            {
                "inputTokens",
                "outputTokens",
                "totalTokens",
                "cacheReadInputTokens",
                "cacheWriteInputTokens",
                "cacheReadInputTokenCount",
                "cacheWriteInputTokenCount",
                "cacheDetails",
            }
        ),
    ),
    UsageFormat(
        chat_usage,
        frozenset({"prompt_tokens", "completion_tokens"}),
        _ANSWER_DETAILS
        | _ANTHROPIC_CACHE
        | {
            "prompt_tokens",
            "completion_tokens",
            "prompt_tokens_details",
            "prompt_token_details",
            "completion_tokens_details",
            "prompt_cache_hit_tokens",
            "prompt_cache_miss_tokens",
            "cached_tokens",
            "num_cached_tokens",
            "reasoning_tokens",
            "citation_tokens",
            "input_tokens",
            "input_tokens_details",
        },
    ),
    UsageFormat(
        pydantic_ai_usage,
        frozenset({"details", "requests", "input_audio_tokens", "cache_audio_read_tokens", "output_audio_tokens"}),
        frozenset(OWN_NAMES)
        | {
            "total_tokens",
            "cache_write_1h_tokens",
            "output_reasoning_tokens",
            "input_audio_tokens",
            "cache_audio_read_tokens",
            "output_audio_tokens",
        },
    ),
    UsageFormat(
        responses_usage,
        frozenset({"input_tokens_details"}),
        _ANSWER_DETAILS | {"input_tokens", "input_tokens_details"},
    ),
    UsageFormat(
        anthropic_usage,
        _ANTHROPIC_CACHE | {"input_tokens", "output_tokens"},
        _ANTHROPIC_CACHE | _ANSWER_DETAILS | {"input_tokens"},
    ),
)
"""The first format that matches is used."""


def _inclusive(total: int, *, read: int, write: int = 0, output: int) -> Usage:
    """Return the usage of a format whose input includes the cached tokens.

    If more is cached than the whole input, the endpoint has left the cached tokens out of it.
    """
    fresh = total - read - write
    return Usage(
        input_tokens=fresh if fresh >= 0 else total,
        output_tokens=output,
        cache_read_tokens=read,
        cache_write_tokens=write,
    )


def _members(value: object) -> Mapping[str, object] | None:
    """Return the members of a JSON object, or of an object of a provider's library; None for anything else."""
    if is_mapping(value):
        return value
    if value is None or isinstance(value, type | str | bytes | int | float) or is_list(value):
        return None
    if is_dataclass(value):
        return asdict(cast("DataclassInstance", value))
    dump = getattr(value, "model_dump", None)
    dumped: object = dump() if callable(dump) else None
    if is_mapping(dumped):
        return dumped
    # Some libraries keep the values elsewhere than in `__dict__` and answer only for their names.
    known = {name: getattr(value, name, None) for one in USAGE_FORMATS for name in one.names}
    found = {name: held for name, held in known.items() if held is not None}
    own = cast("Mapping[str, object]", getattr(value, "__dict__", {}))
    return {**found, **{name: held for name, held in own.items() if not name.startswith("_")}} or None


def _object(report: Mapping[str, object], name: str) -> Mapping[str, object]:
    """Return the object under a name, or an empty one if there is none."""
    value = report.get(name)
    if value is None:
        return {}
    members = _members(value)
    if members is None:
        raise SettingsError(f"usage.{name}", f"must be an object, not {short_repr(value)}")
    return members


def _first_count(report: Mapping[str, object], *names: str) -> int:
    """Return the first count under one of some names that is not 0."""
    return next((count for name in names if (count := _count(report, name))), 0)


def _count(report: Mapping[str, object], name: str) -> int:
    value = report.get(name)
    if value is None:
        return 0
    if not is_integer(value) or not 0 <= value <= MAX_REPORTED_TOKENS:
        raise SettingsError(f"usage.{name}", f"must be a whole number of tokens from 0 on, not {short_repr(value)}")
    return value
