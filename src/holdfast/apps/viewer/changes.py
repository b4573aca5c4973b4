"""What a reader may change, where changes are allowed. None of it but deleting removes anything from a log."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from holdfast.apps.serving import query_number
from holdfast.core.conversation.spans import format_positions, position_ranges
from holdfast.core.planning.policy import Policy
from holdfast.errors import MalformedInputError
from holdfast.session.session import Session
from holdfast.stores.base import Store

MAX_TEXTS = 16
"""How many texts an edited compaction may have."""


class SessionEditor(Protocol):
    """Opens sessions to be changed; the gateway has its own, because it holds them open."""

    def session(self, session_id: str) -> AbstractAsyncContextManager[Session]:
        """Hold a session open."""
        ...

    async def delete(self, session_id: str) -> None:
        """Delete a session with everything that belongs to it."""
        ...


class StoreEditor:
    """Changes the sessions of a store."""

    def __init__(
        self, store: Store, *, policy: Policy | str = "default", delete_files: Callable[[str], object] | None = None
    ) -> None:
        """`delete_files` removes what belongs to a session outside its store."""
        self._store = store
        self._policy = policy
        self._delete_files = delete_files

    @asynccontextmanager
    async def session(self, session_id: str) -> AsyncGenerator[Session]:
        """Hold a session open."""
        async with Session.open(session_id, store=self._store, policy=self._policy) as session:
            yield session

    async def delete(self, session_id: str) -> None:
        """Delete a session; its files first, so that it is still there to delete again if one cannot be deleted."""
        if self._delete_files is not None:
            self._delete_files(session_id)
        await self._store.delete(session_id)


@dataclass(frozen=True, slots=True)
class CompactionPreview:
    """What a compaction would do now."""

    start: int
    stop: int
    kept: str
    texts: tuple[str, ...]
    tokens_before: int
    tokens_after: int
    left_out: tuple[str, ...]


async def preview_compaction(session: Session, budget: int | None) -> CompactionPreview:
    """Return what a compaction by rule would do; nothing is recorded."""
    draft = await session.preview(budget=budget)
    before, after = draft.request_tokens
    return CompactionPreview(
        start=draft.span.start,
        stop=draft.span.stop,
        kept=format_positions(position_ranges(draft.span.kept)),
        texts=draft.replacement or (draft.summary.text,),
        tokens_before=before,
        tokens_after=after,
        left_out=draft.summary.left_out,
    )


async def apply_change(session: Session, action: str, form: Mapping[str, str], budget: int | None) -> str:
    """Carry out a change of a session, and return the id of the session to show then."""
    if action == "fork":
        other = await session.fork(at=_number(form, "at") if form.get("at") else None)
        await other.close()
        return other.id
    changes: Mapping[str, Callable[[], Awaitable[object]]] = {
        "undo": lambda: _undo(session, _number(form, "times", default=1)),
        "redo": session.redo,
        "rewind": lambda: session.rewind(to=_number(form, "to")),
        "pin": lambda: session.pin(_number(form, "position")),
        "unpin": lambda: session.unpin(_number(form, "position")),
        "compact": lambda: _compact(session, form, budget),
    }
    if action not in changes:
        raise MalformedInputError("action", f"there is no change {action!r:.40}")
    await changes[action]()
    return session.id


async def _undo(session: Session, times: int) -> None:
    for _ in range(times):
        if not await session.undo():
            return


async def _compact(session: Session, form: Mapping[str, str], budget: int | None) -> None:
    named = (form.get(f"text-{number}", "") for number in range(MAX_TEXTS))
    texts = [text.replace("\r\n", "\n") for text in named if text.strip()]
    await session.compact_with(texts, span=range(_number(form, "start"), _number(form, "stop")), budget=budget)


def _number(form: Mapping[str, str], name: str, *, default: int | None = None) -> int:
    number = query_number(form, name)
    number = default if number is None else number
    if number is None:
        raise MalformedInputError(name, "must be a whole number, not ''")
    return number
