"""What it means to ask a model for a text.

The engine asks for one thing only: a text, made from a text. A writer carries that out, whatever is behind
it: an endpoint, a library, a process of our own, a script in a test. It offers the model no tools, asks once,
and either returns the whole answer or raises a `ModelError`; patience is somebody else's business.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from holdfast.core.history.events import MAIN, Usage

COMPACTION_INTERACTION = "conversation-compaction"
"""What a call for a summary is called, so that it can be told from a person's turn."""
INTERACTION_HEADER = "X-Interaction-Type"
DEFAULT_SUMMARIZER_WINDOW = 32_000
"""The assumed window of a summarizer whose model is unknown."""
MAX_PIECE_BYTES = 400_000
"""The largest text that one call carries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedPrefix:
    """The conversation's own last request: asked right behind it, the provider's prompt cache pays for most."""

    format: str
    """The name of its wire format, such as `openai-chat`."""
    messages: Sequence[Mapping[str, object]]
    system: object = None
    tools: Sequence[Mapping[str, object]] | None = None
    positions: Sequence[int | None] = ()
    """Where each message was recorded; None for one that was made for this request."""
    scope: str = MAIN
    """Whose request it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryPrompt:
    """What to write, and how."""

    system: str
    """How to write."""
    text: str
    """The data and the request, one user message."""
    max_output_tokens: int
    interaction: str = COMPACTION_INTERACTION
    prefix: CachedPrefix | None = None
    """Used by writers that can, ignored by the others; see `supports_prefix`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """What was written. An empty text is an answer too: who asked judges it."""

    text: str
    model: str
    usage: Usage | None = None
    is_cut_off: bool = False
    """Whether the output limit ended it."""
    request_id: str | None = None
    """What the provider calls it, where it says so: by that it can be asked about."""


class Summarizer(Protocol):
    """Whoever writes."""

    @property
    def name(self) -> str:
        """What the writer is called in events and errors."""
        ...

    @property
    def window(self) -> int | None:
        """The largest input in tokens, where it is known; the answer may count against it too."""
        ...

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        """Return what the model wrote, or raise a `ModelError`; asks once."""
        ...


@runtime_checkable
class Closable(Protocol):
    """A writer that holds something open, such as a server of its own."""

    async def close(self) -> None:
        """Give it back."""
        ...


def supports_prefix(summarizer: Summarizer, format: str) -> bool:  # noqa: A002 - the word users say
    """Return whether a writer can ask behind a request of that format, so that the data need not go out again."""
    formats: object = getattr(summarizer, "prefix_formats", ())
    return isinstance(formats, frozenset | tuple) and format in formats
