"""What misses messages of the past, or was overtaken by another writer, begins again."""

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from holdfast.errors import NotInMemoryError, OvertakenError


class Fetches(Protocol):
    """Who can read messages of the past into memory."""

    async def fetch(self, positions: Sequence[int]) -> None:
        """Read messages of the past into memory."""
        ...


P = ParamSpec("P")
S = TypeVar("S", bound=Fetches)
T = TypeVar("T")


def fetching(
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
                await self.fetch(missing.positions)
            except OvertakenError:
                continue

    return again
