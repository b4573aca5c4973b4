"""What misses messages of the past, or was overtaken by another writer, begins again."""

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from holdfast.errors import ConcurrentWriteError, NotInMemoryError


class LoadsMessages(Protocol):
    """Who can read messages of the past into memory."""

    async def load_messages(self, positions: Sequence[int]) -> None:
        """Read messages of the past into memory."""
        ...


P = ParamSpec("P")
S = TypeVar("S", bound=LoadsMessages)
T = TypeVar("T")


def retry_when_not_loaded(
    method: Callable[Concatenate[S, P], Coroutine[object, object, T]],
) -> Callable[Concatenate[S, P], Coroutine[object, object, T]]:
    """Let a method that misses messages of the past begin again when they have been read.

    Safe because decisions are pure: what was recorded before the gap was found stands, and is not done twice.
    """

    @wraps(method)
    async def again(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            try:
                return await method(self, *args, **kwargs)
            except NotInMemoryError as missing:
                await self.load_messages(missing.positions)
            except ConcurrentWriteError:
                continue

    return again
