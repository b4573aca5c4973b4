"""A request to a provider: its payload as JSON, and the receipt that says what was done for it."""

from dataclasses import field, fields
from typing import Any

from holdfast.core.conversation.tokens import TokenCount
from holdfast.core.conversation.transcript import Transcript
from holdfast.core.planning.receipt import Receipt
from holdfast.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """A request to send, with its receipt."""

    messages: list[Any]
    """The same JSON types as the input. Unchanged messages are the objects that `govern` got; those of a session are
    copies, which may be edited. Providers' own types accept them."""
    receipt: Receipt
    system: Any = None
    """The system text as it was passed in; providers' own types accept it."""
    tools: Any = None
    """The tools as they were passed in; providers' own types accept them."""
    hash: str = ""
    """The hash of a session's whole payload in our canonical encoding; a replay is compared with it."""
    hashes: tuple[str, ...] = field(default=(), repr=False)
    """The hash of each message."""
    positions: tuple[int | None, ...] = field(default=(), repr=False)
    """Where each message was recorded; None for one that was made for this request."""
    compaction_due: str = ""
    """Why the policy would compact now, if the caller has forbidden it."""
    transcript: Transcript | None = field(default=None, repr=False, compare=False)
    """What the next call of `govern` can reuse, if it gets this request as `previous`."""

    def __getstate__(self) -> list[object]:
        """Return what is pickled and copied: everything but the work that the next call of `govern` could reuse."""
        return [None if one.name == "transcript" else getattr(self, one.name) for one in fields(self)]

    @property
    def tokens(self) -> TokenCount:
        """The tokens of the request; a list far below its budget is counted when this is first read."""
        return self.receipt.tokens
