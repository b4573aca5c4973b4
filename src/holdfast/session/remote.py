"""A conversation that somebody else holds: its name, and no engine.

A session behind a server compacts there, like any other. Whoever has only its name has nothing to compact with, and is
told so by a typed error in the words that clients of such sessions know.
"""

from dataclasses import dataclass

from holdfast.errors import RemoteCompactionError


@dataclass(frozen=True, slots=True)
class RemoteSession:
    """A handle on a session of another process."""

    id: str

    async def compact(self, *, focus: str = "") -> None:
        """Refuse: there is no engine here. Compact the session where it is held."""
        del focus
        raise RemoteCompactionError(self.id)
