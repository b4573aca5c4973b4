"""No key reaches a summarizer, and none comes back from it; the log keeps what was said."""

from pathlib import Path
from typing import Any

import pytest

from holdfast import Session
from holdfast.core.conversation.spans import Span
from holdfast.core.history import events as log
from holdfast.core.history.codec import from_record, to_record
from holdfast.core.planning.change_receipt import ChangeReceipt
from holdfast.models.base import SummaryPrompt
from holdfast.session.compaction.checkpoints import Checkpoints
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.compaction.hooks import HookCall, HookCommand, Hooks, run_hooks
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.models import ScriptedModel
from tests.secrets_corpus import made
from tests.support import WORDS

KEY = "sk-proj-a1b2c3d4e5f6g7h8"


def everything_in(ask: SummaryPrompt) -> str:
    return f"{ask.system}\n{ask.text}\n{ask.prefix}"


async def compacted(model: ScriptedModel, **how: Any) -> Session:
    """Return a session in which a key stood everywhere that a summarizer looks, and that was compacted."""
    session = await Session.open(
        "s", store=MemoryStore(), model="gpt-5", compaction=CompactionOptions(automatic=model, **how)
    )
    await session.record_state(log.PlanChanged(text=f"log in with {KEY}"))
    await session.record(
        [
            user_message(f"Never print {KEY}. {WORDS}"),
            tool_call_message("a"),
            tool_result_message("a", f"token {KEY} {WORDS}"),
        ]
    )
    for number in range(4):
        await session.record(
            [assistant_message(f"answer {number}: {KEY} {WORDS}"), user_message(f"question {number}: {WORDS}")]
        )
    await session.prepare(16_000, system=f"The key is {KEY}.")
    await session.record([assistant_message(f"the key {KEY} works")])
    await session.compact(focus=f"the key {KEY}")
    return session


@pytest.mark.parametrize("window", [32_000, 2_000], ids=["one piece", "many pieces"])
async def test_a_summarizer_neither_sees_nor_writes_a_key_and_the_log_has_it_still(window: int) -> None:
    model = ScriptedModel(iter(lambda: f"Intent: never print {KEY} [#0]. Done: it works [#2].", None), window=window)

    session = await compacted(model)

    assert [KEY in everything_in(ask) for ask in model.prompts] == [False] * len(model.prompts)
    assert "sk-[redacted]" in model.prompts[0].text
    (compaction,) = [event for event in await session.events() if isinstance(event, log.CompactionCompleted)]
    assert (compaction.success, KEY in compaction.summary.text) == (True, False)
    assert (await session.messages_at(2))[0]["content"] == f"token {KEY} {WORDS}"


async def test_a_key_is_shown_where_somebody_wants_that() -> None:
    model = ScriptedModel([f"Intent: never print {KEY} [#0]. Done: it works [#2]."])

    session = await compacted(model, redact=False)

    (compaction,) = [event for event in await session.events() if isinstance(event, log.CompactionCompleted)]
    assert (KEY in model.prompts[0].text, KEY in compaction.summary.text) == (True, True)


@pytest.mark.parametrize("window", [32_000, 2_000], ids=["one piece", "many pieces"])
async def test_the_receipt_says_how_many_keys_were_kept_from_the_summarizer_and_never_which(window: int) -> None:
    model = ScriptedModel(iter(lambda: "Intent: never print it [#0]. Done: it works [#2].", None), window=window)

    session = await compacted(model)

    (receipt,) = await session.receipts()
    # Plan, focus and system text; the first prompt, the result, four answers, and the last one, which stays behind.
    assert receipt.summary.redacted == (("key", 10),)
    assert "redacted  10 keys hidden from the summarizer" in str(receipt)
    (written,) = [event for event in await session.events() if isinstance(event, log.SummaryWritten)]
    assert (written.summary.redacted, KEY in repr(written), KEY in str(receipt)) == ((("key", 10),), False, False)


async def test_where_nothing_was_taken_out_the_receipt_says_nothing_of_it() -> None:
    shown = await compacted(ScriptedModel([f"Intent: never print {KEY} [#0]. Done: it works [#2]."]), redact=False)

    (receipt,) = await shown.receipts()
    assert receipt.summary.redacted == ()
    assert "redacted" not in str(receipt)


def test_secrets_of_every_kind_are_told_in_words() -> None:
    counts = (("bearer token", 1), ("key", 1_200), ("password in a URL", 1))
    compaction = log.CompactionCompleted(
        success=True, span=Span(stop=1), summary=log.Summary("", by_model="m", redacted=counts)
    )

    assert from_record(to_record(compaction)) == compaction
    assert "redacted  1 bearer token, 1,200 keys, 1 password in URLs hidden from the summarizer" in str(
        ChangeReceipt(compaction)
    )


@pytest.mark.parametrize("redacts", [True, False])
async def test_a_compaction_by_rule_puts_no_key_into_a_checkpoint_or_a_hook_and_the_log_has_it_still(
    tmp_path: Path, *, redacts: bool
) -> None:
    secrets = [KEY, made("basic", 30), made("url", 12), made("flag", 14)]
    prompt = (
        f"# Always log in with {secrets[0]}. Never drop 'Authorization: Basic {secrets[1]}', "
        f"use postgresql://me:{secrets[2]}@db/shop and `tool --password {secrets[3]}`."
    )
    calls: list[HookCall] = []
    hook = HookCommand(("sh", "-c", f"cat > '{tmp_path / 'hook.json'}'"))
    observed = CompactionOptions(
        redact=redacts,
        checkpoints=Checkpoints(tmp_path),
        hooks=Hooks(pre_compact=(calls.append,), post_compact=(calls.append, hook)),
    )
    session = await Session.open("s", store=MemoryStore(), model="gpt-5", compaction=observed)
    await session.record([user_message(prompt), assistant_message(f"I use {KEY}. {WORDS}")])
    for number in range(5):
        await session.record([user_message(f"question {number}: {WORDS}"), assistant_message(f"{prompt} {WORDS}")])
    await session.prepare(16_000)
    event = await session.compact(focus=prompt)
    await session._compactor.observers.close()

    written = {path.name: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert event.checkpoint_path is not None
    assert {"hook.json", "index.md", Path(event.checkpoint_path).name} <= {*written}
    assert "sk-[redacted]" in written[Path(event.checkpoint_path).name]
    assert [(name, secret) for name, text in written.items() for secret in secrets if secret in text] == []
    assert [(call.name, secret) for call in calls for secret in secrets if secret in repr(call)] == []
    assert "sk-[redacted]" in calls[-1].summary
    assert (await session.messages_at(0))[0]["content"] == prompt


async def test_a_hook_is_given_no_key_in_its_focus_its_summary_or_its_error() -> None:
    given: list[HookCall] = []
    call = HookCall(
        name="postCompact", session="s", trigger="manual", focus=f"for {KEY}", summary=f"used {KEY}", error=f"bad {KEY}"
    )

    assert await run_hooks(Hooks(post_compact=(given.append,)), call) == []

    assert [(one.focus, one.summary, one.error) for one in given] == [
        ("for sk-[redacted]", "used sk-[redacted]", "bad sk-[redacted]")
    ]
