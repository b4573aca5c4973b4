"""The interface to a model that writes summaries.

A summarizer turns one text into another. It does that through an endpoint, a library,
a local process, or a script in a test. It offers the model no tools, asks once, and returns the whole reply or raises
a `ModelError`; `holdfast.models.retry` repeats failed calls.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from holdfast.core.history.events import MAIN, Usage
from holdfast.dataclass import dataclass

EMBEDDED_MODEL = "embedded"
"""The name of the small model that runs on this machine."""
EMBEDDED_PREFIX = f"{EMBEDDED_MODEL}:"
"""Begins the name of a model that runs in the same way from a file of the user."""
COMPACTION_INTERACTION = "conversation-compaction"
"""Marks a call for a summary, so that logs can distinguish it from a user's turn."""
INTERACTION_HEADER = "X-Interaction-Type"
DEFAULT_SUMMARIZER_WINDOW = 128_000
"""The assumed window of a summarizer whose model is unknown; after an overflow it gets smaller chunks."""
MAX_PIECE_BYTES = 400_000
"""The largest text that one call carries."""


def is_embedded(model: str) -> bool:
    """Return whether a model runs on this machine, in a process of ours: `embedded`, or `embedded:FILE.gguf`."""
    return model == EMBEDDED_MODEL or model.startswith(EMBEDDED_PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedPrefix:
    """The last request of the conversation: a prompt right after it is mostly read from the provider's cache."""

    format: str
    """The name of its format, such as `openai-chat`."""
    messages: Sequence[Mapping[str, object]]
    system: object = None
    tools: Sequence[Mapping[str, object]] | None = None
    positions: Sequence[int | None] = ()
    """The recorded position of each message; None for one that was generated for this request."""
    scope: str = MAIN
    """The conversation that sent the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryPrompt:
    """The prompt for one summary."""

    system: str
    """The instructions."""
    text: str
    """The data and the task, as one user message."""
    max_output_tokens: int
    interaction: str = COMPACTION_INTERACTION
    prefix: CachedPrefix | None = None
    """Ignored by summarizers that cannot use it; see `supports_prefix`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """The reply of a model. An empty text is a valid reply; the caller judges it."""

    text: str
    model: str
    usage: Usage | None = None
    is_cut_off: bool = False
    """Whether the reply stopped at the output limit."""
    request_id: str | None = None
    """The provider's id of the call, if it sent one."""


class Summarizer(Protocol):
    """Writes summaries."""

    @property
    def name(self) -> str:
        """Its name in events and errors."""
        ...

    @property
    def window(self) -> int | None:
        """The context window in tokens, if known; the reply may count against it too."""
        ...

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        """Call the model once and return its reply, or raise a `ModelError`."""
        ...


@runtime_checkable
class Closable(Protocol):
    """A summarizer that holds a resource, such as its own server."""

    async def close(self) -> None:
        """Release the resource."""
        ...


def supports_prefix(summarizer: Summarizer, format: str) -> bool:  # noqa: A002 - the word users say
    """Return whether a summarizer can continue a request of that format instead of sending the data again."""
    formats: object = getattr(summarizer, "prefix_formats", ())
    return isinstance(formats, frozenset | tuple) and format in formats
