"""Summaries by the model that answers a conversation, paid with the key of its client.

The call comes right after the last request, whose prefix the provider has just put into its cache. A key is kept in
memory only, as long as its session is open. A subscription login is not a key: it is used only if somebody has switched
that on. Without a key the digest that is made by rule stays.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from holdfast.apps.gateway.recording.client_body import members_of, read_json
from holdfast.errors import ModelAccessError
from holdfast.models.anthropic_messages import MESSAGES_FORMAT, MessagesSummarizer
from holdfast.models.base import ModelReply, Summarizer, SummaryPrompt
from holdfast.models.openai_compatible import CHAT_FORMAT, ChatSummarizer, OutputField
from holdfast.models.openai_responses import RESPONSES_FORMATS, ResponsesSummarizer
from holdfast.wire.answers import Wire

Payment: TypeAlias = Literal["digest", "key", "login"]
"""What may pay for summaries: nothing, a client's API key, or also its subscription login."""
FIRST_BYTE_SECONDS = 90.0
"""How long a summary waits for the answer to begin, before which nothing is in the provider's cache."""
_LOGIN = re.compile(r"(?i)(?:Bearer\s+)?(?:eyJ[\w-]+\.|sk-ant-oat|ya29\.|gh[ousp]_|github_pat_|tid=)")
"""How access tokens of logins begin: JSON web tokens, and those of Anthropic, Google and GitHub."""
_LOGIN_HEADERS = ("chatgpt-account-id", "copilot-integration-id")
_PASSED_HEADERS = ("anthropic-version", "anthropic-beta", "openai-organization", "openai-project", "openai-beta")
_PREFIX_FORMATS: Mapping[Wire, frozenset[str]] = {
    "openai-chat": frozenset({CHAT_FORMAT}),
    "openai-responses": RESPONSES_FORMATS,
    "anthropic": frozenset({MESSAGES_FORMAT}),
}
_PATHS: Mapping[Wire, str] = {
    "openai-chat": "/chat/completions",
    "openai-responses": "/responses",
    "anthropic": "/v1/messages",
}
_PASSED_MEMBERS: Mapping[Wire, tuple[str, ...]] = {
    "openai-chat": ("reasoning_effort", "prompt_cache_key", "prompt_cache_retention", "service_tier", "user"),
    "openai-responses": ("reasoning", "prompt_cache_key", "prompt_cache_retention", "include", "service_tier", "user"),
    "anthropic": ("thinking", "metadata", "service_tier", "output_config"),
}
"""Members of a request that the provider's cache or its billing depends on."""


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """How a client reaches its provider."""

    url: str
    """The address of its request, without the query."""
    credentials: Mapping[str, str] = field(repr=False)
    """The headers with its key, or with the key that the gateway has for that provider."""
    is_login: bool

    @classmethod
    def of(cls, url: str, headers: Mapping[str, str], credentials: Mapping[str, str]) -> "ClientAccess":
        """Return the access of a request with these headers."""
        said = any(name in headers for name in _LOGIN_HEADERS) or "oauth" in headers.get("anthropic-beta", "")
        is_login = said or any(_LOGIN.match(value.strip()) for value in credentials.values())
        passed = {name: headers[name] for name in _PASSED_HEADERS if name in headers}
        return cls(url, {**passed, **credentials}, is_login)

    def pays(self, payment: Payment) -> bool:
        """Return whether summaries may be written with this access."""
        return payment == "login" or (payment == "key" and not self.is_login)


@dataclass(frozen=True, slots=True)
class _LastRequest:
    wire: Wire
    base_url: str
    credentials: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)

    def summarizer(self, model: str) -> Summarizer:
        """Return a summarizer that asks as this request was asked."""
        members = members_of(self.body)
        options = {name: read_json(members[name]) for name in _PASSED_MEMBERS[self.wire] if name in members}
        base, headers = self.base_url, self.credentials
        if self.wire == "anthropic":
            return MessagesSummarizer(model, base_url=base, api_key="", headers=headers, options=options)
        if self.wire == "openai-responses":
            return ResponsesSummarizer(base, model, api_key="", headers=headers, options=options)
        names: tuple[OutputField, ...] = ("max_completion_tokens", "max_tokens")
        limit: OutputField | None = next((name for name in names if name in members), None)
        return ChatSummarizer(base, model, api_key="", headers=headers, options=options, output_field=limit)


class UpstreamSummarizer:
    """Writes the summaries of one session."""

    window: int | None = None

    def __init__(self) -> None:
        self.name = ""
        self.prefix_formats: frozenset[str] = frozenset()
        self._last: _LastRequest | None = None
        self._begun = asyncio.Event()

    def use(self, wire: Wire, model: str, access: ClientAccess, body: bytes) -> bool:
        """Use a request's model and key from now on, and return whether its API can be asked for a summary."""
        path = _PATHS.get(wire)
        if path is None or not access.url.endswith(path):
            return False
        self.name, self.prefix_formats = model, _PREFIX_FORMATS[wire]
        self._last = _LastRequest(wire, access.url.removesuffix(path), access.credentials, body)
        self._begun.clear()
        return True

    def note_answer(self) -> None:
        """Note that the provider has begun to answer, or will not."""
        self._begun.set()

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        """Return the reply of the model, once the conversation's own request is in the provider's cache."""
        try:
            async with asyncio.timeout(FIRST_BYTE_SECONDS):
                await self._begun.wait()
        except TimeoutError:
            raise ModelAccessError(self.name, "the conversation's own request gets no answer", "wait for it") from None
        if self._last is None:
            raise ModelAccessError(self.name, "there is no key of a client", "send a request first")
        return await self._last.summarizer(self.name).write(prompt)
