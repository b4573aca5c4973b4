"""A session as one HTML file that needs nothing else: no server, no script, no request to anywhere."""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

from holdfast.apps.viewer.pages import Pages, TranscriptRow
from holdfast.apps.viewer.rendering import ExportLinks, render, static_file
from holdfast.redaction import redact_text

T = TypeVar("T")


async def export_page(pages: Pages, session: str, *, now_ms: int, is_redacted: bool = True) -> str:
    """Return a whole session as HTML; keys and passwords are removed unless `is_redacted` is False.

    A session may be long, and a gateway has streams to serve meanwhile, so texts are worked on in threads.
    """

    async def clean(value: T) -> T:
        return await asyncio.to_thread(redacted, value) if is_redacted else value

    row_pages: list[tuple[TranscriptRow, ...]] = []
    plot = await pages.plot(session, wait_seconds=None)
    first = page = await pages.session(session, first=0, max_chars=None)
    while True:
        row_pages.append(await clean(page.rows))
        if page.stop >= page.message_count:
            break
        page = await pages.session(session, first=page.stop, max_chars=None)
    changes = [await clean(await pages.change(session, change.number)) for change in first.changes]
    css = static_file("viewer.css")
    return await asyncio.to_thread(
        render,
        "export.html",
        page=await clean(first),
        plot=plot,
        row_pages=row_pages,
        changes=changes,
        links=ExportLinks(),
        css=css[0].decode() if css else "",
        exported_ms=now_ms,
        is_redacted=is_redacted,
    )


def redacted(value: T) -> T:
    """Return a value without the keys and passwords in any of its texts."""
    return cast("T", _redacted(value))


def _redacted(value: object) -> object:
    if isinstance(value, str):
        return redact_text(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = {item.name: _redacted(getattr(value, item.name)) for item in dataclasses.fields(value)}
        return type(value)(**named)
    if isinstance(value, Mapping):
        return {key: _redacted(item) for key, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, tuple):
        return tuple(_redacted(item) for item in cast("Sequence[object]", value))
    return value
