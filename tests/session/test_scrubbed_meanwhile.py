"""A secret that is scrubbed does not come back through what a session has made of the log before."""

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from holdfast import Session
from holdfast.compaction import Checkpoints, CompactionOptions
from holdfast.core.history.events import CompactionCompleted
from holdfast.errors import CompactionFailedError
from holdfast.memory import DailyMemory
from holdfast.session.maintenance.scrub import TOMBSTONE, ScrubResult, scrub
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, user_message
from holdfast.testing.models import ScriptedModel
from holdfast.testing.store_contract import NOW_MS
from tests.support import wait_until

SECRET = "correct horse battery"
SUMMARY = f"Intent: log in with {SECRET} [#0]. Next: go on with the words."
BUDGET = 8_000
MEANWHILE = "the session was scrubbed or begun again meanwhile, and the summary may hold what is gone; compact again"


class SlowModel(ScriptedModel):
    """Answers when it may."""

    def __init__(self, *lines: str, **options: Any) -> None:
        self.may_answer = asyncio.Event()
        super().__init__(lines, seconds=60, sleep=self._wait, **options)

    async def _wait(self, _: float) -> None:
        await self.may_answer.wait()


async def talked(model: ScriptedModel, folder: Path, policy: str = "default", turns: int = 33) -> Session:
    options = CompactionOptions(
        automatic=model, manual=model, memory=DailyMemory(folder / "memory"), checkpoints=Checkpoints(folder / "points")
    )
    store = MemoryStore()
    session = await Session.open("s", store=store, model="gpt-5", policy=policy, compaction=options)
    await session.record([user_message(f"the password is {SECRET}")])
    for number in range(turns):
        await session.record([assistant_message(f"answer {number} " + "word " * 100)])
        await session.record([user_message(f"question {number} " + "word " * 100)])
    return session


async def scrub_while_asked(session: Session, model: SlowModel, work: Coroutine[Any, Any, object]) -> object:
    """Scrub the secret while the model writes for some work, and return what the work returns."""
    task = asyncio.create_task(work)
    await wait_until(lambda: bool(model.prompts))
    assert await scrub(session.store, "s", SECRET, time_ms=NOW_MS) == ScrubResult(1, (0,), ())
    model.may_answer.set()
    return await task


async def holders(session: Session, folder: Path) -> list[str]:
    """Return what holds the secret: records, the next request, files."""
    stored = [str(one.position) for one in await session.store.read("s") if SECRET in json.dumps(one.record)]
    request = await session.prepare(BUDGET)
    files = [path.name for path in folder.rglob("*") if path.is_file() and SECRET in path.read_text()]
    return [*stored, *(["request"] if SECRET in json.dumps(request.messages) else []), *files]


async def test_a_summary_that_was_being_written_is_thrown_away(tmp_path: Path) -> None:
    model = SlowModel(SUMMARY)
    session = await talked(model, tmp_path)

    async def prepare_and_wait() -> None:
        await session.prepare(BUDGET)
        await session._compactor.wait()

    await scrub_while_asked(session, model, prepare_and_wait())

    assert await holders(session, tmp_path) == []
    completed = [event for event in await session.events() if isinstance(event, CompactionCompleted)]
    assert completed[0].error == f"the compaction failed and nothing has changed: {MEANWHILE}"
    await session.close()


@pytest.mark.parametrize("is_draft", [False, True])
async def test_a_requested_summary_that_was_being_written_is_refused(tmp_path: Path, *, is_draft: bool) -> None:
    model = SlowModel(SUMMARY)
    session = await talked(model, tmp_path, "co-cli", turns=5)

    with pytest.raises(CompactionFailedError, match=MEANWHILE):
        await scrub_while_asked(session, model, session.preview(draft=True) if is_draft else session.compact())

    assert await holders(session, tmp_path) == []
    await session.close()


async def test_a_daily_note_that_was_being_written_is_written_anew(tmp_path: Path) -> None:
    model = SlowModel(SUMMARY, SUMMARY.replace(SECRET, TOMBSTONE))
    session = await talked(model, tmp_path, turns=5)
    await session.clear()
    await session.record([user_message("go on")])

    async def noted() -> None:
        await wait_until(lambda: len(model.prompts) == 2)

    await scrub_while_asked(session, model, noted())
    await session.close()

    (note,) = [path.read_text() for path in (tmp_path / "memory").glob("*.md")]
    assert SECRET not in note
    assert TOMBSTONE in note


async def test_the_next_summary_does_not_continue_a_request_that_held_it(tmp_path: Path) -> None:
    model = ScriptedModel(["Intent: go on [#1]. Next: the words."], name="gpt-5", prefix_formats=["openai-chat"])
    session = await talked(model, tmp_path, turns=5)
    await session.prepare(BUDGET)
    await scrub(session.store, "s", SECRET, time_ms=NOW_MS)

    await session.compact()

    assert len(model.prompts) == 1
    assert SECRET not in repr(model.prompts)
    await session.close()
