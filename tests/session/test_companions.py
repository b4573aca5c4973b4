"""What goes with a compaction, in order, and what circumstances ask for one."""

import asyncio
import gc
import resource
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from holdfast import MalformedInputError, Session
from holdfast.core.conversation.tokens import REPLY_OVERHEAD
from holdfast.core.history import events as log
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import CompactionFailedError, ModelRefusedError, NothingToCompactError, SettingsError
from holdfast.models.base import ModelReply, SummaryPrompt
from holdfast.session.compaction.checkpoints import Checkpoints
from holdfast.session.compaction.compactor import CompactionOptions
from holdfast.session.compaction.hooks import HookCall, Hooks
from holdfast.session.requested_compaction import resident_bytes
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, system_message, user_message
from holdfast.testing.models import FailingModel, ScriptedModel
from tests.support import compactions, record_turns

SUMMARY = "# Greek letters\nThe user counts in Greek letters [#0]. Next: go on."


async def talked(policy: str = "default", turns: int = 6, **settings: Any) -> Session:
    session: Session = await Session.open("c1", store=MemoryStore(), policy=policy, model="gpt-5", **settings)
    await record_turns(session, turns)
    return session


@pytest.mark.seed("C-5")
@pytest.mark.seed("C-13b")
@pytest.mark.seed("C-42")
@pytest.mark.seed("C-45")
async def test_a_compaction_goes_through_its_stations_in_order(tmp_path: Path) -> None:
    seen: list[str] = []

    def hook(call: HookCall) -> None:
        seen.append(f"{call.name} {call.trigger}")

    def broken(call: HookCall) -> None:
        raise ValueError(call.name)

    def written(_: Any) -> str:
        seen.append("model")
        return SUMMARY

    notices: list[str] = []
    how = CompactionOptions(
        automatic=ScriptedModel(iter(lambda: written, None)),
        hooks=Hooks(pre_compact=(hook, broken), post_compact=(hook,)),
        checkpoints=Checkpoints(tmp_path),
        notice=notices.append,
    )
    session = await talked("copilot", compaction=how)
    await session.record([user_message("so?")])
    await session.prepare(16_000)

    event = await session.compact(focus="letters")
    await session._compactor.observers.close()

    assert seen == ["preCompact manual", "model", "postCompact manual"]
    assert len(notices) == 1
    assert "preCompact" in notices[0]
    assert (event.checkpoint_number, event.checkpoint_path) == (
        1,
        str(tmp_path / "checkpoints" / "001-greek-letters.md"),
    )
    *_, started, written_event, completed, measured = await session.events()
    kinds = [one.KIND for one in (started, written_event, completed, measured)]
    assert kinds == [
        log.CompactionStarted.KIND, log.SummaryWritten.KIND, log.CompactionCompleted.KIND, log.UsageMeasured.KIND,
    ]  # fmt: skip
    assert isinstance(started, log.CompactionStarted)
    assert started.custom_instructions == "letters"
    assert "greek-letters" in (tmp_path / "checkpoints" / "index.md").read_text()
    counts = [(tmp_path / "workspace.yaml").read_text()]
    assert await session.undo()
    counts.append((tmp_path / "workspace.yaml").read_text())
    assert await session.redo()
    counts.append((tmp_path / "workspace.yaml").read_text())
    await session.rewind(to=2)
    counts.append((tmp_path / "workspace.yaml").read_text())
    assert counts == ["summary_count: 1\n", "summary_count: 0\n", "summary_count: 1\n", "summary_count: 0\n"]


@pytest.mark.seed("C-5", "C-13b")
@pytest.mark.parametrize("policy", ["default", "copilot"])
async def test_an_automatic_compaction_calls_its_hooks_too_and_before_the_model(policy: str) -> None:
    seen: list[str] = []

    def written(_: Any) -> str:
        seen.append("model")
        return SUMMARY

    how = CompactionOptions(
        automatic=ScriptedModel(repeat(written)),
        hooks=Hooks(pre_compact=(lambda call: seen.append(f"{call.name} {call.trigger}"),)),
    )
    session = await talked(policy, turns=12, compaction=how)
    for number in range(2):
        await session.record([user_message(f"so? {number}")])
        await session.prepare(4_400)
        await session._compactor.wait()
        await session.record([assistant_message("so.")])

    assert seen[:2] == ["preCompact threshold", "model"]


@pytest.mark.seed("C-42")
@pytest.mark.parametrize("way", ["as data", "after the cached prefix", "in parts"])
async def test_copilots_summary_is_asked_for_a_title_which_names_its_checkpoint(tmp_path: Path, way: str) -> None:
    def written(prompt: SummaryPrompt) -> str:
        asked = "<checkpoint_title>" in prompt.text.rsplit("\n\n", 1)[-1]
        return "Letters were counted.\n" + (
            "<checkpoint_title>Greek letters counted</checkpoint_title>" if asked else ""
        )

    model = ScriptedModel(
        repeat(written),
        name="gpt-5",
        prefix_formats=["openai-chat"] if way == "after the cached prefix" else (),
        window=2_600 if way == "in parts" else None,
    )
    how = CompactionOptions(automatic=model, checkpoints=Checkpoints(tmp_path))
    session = await talked("copilot", turns=12, compaction=how)
    await session.record([user_message("so?")])
    await session.prepare(16_000)

    first = await session.compact()
    await record_turns(session, 6)
    second = await session.compact()

    opening, *_, last = model.prompts
    assert (opening.prefix is not None, len(model.prompts) > 2) == (way == "after the cached prefix", way == "in parts")
    assert "<checkpoint_title>Greek" not in last.text, "a summary that is updated passes no title on"
    assert [Path(event.checkpoint_path or "").name for event in (first, second)] == [
        "001-greek-letters-counted.md",
        "002-greek-letters-counted.md",
    ]
    assert (tmp_path / "checkpoints" / "index.md").read_text().splitlines()[4:] == [
        "| 1 | Greek letters counted | 001-greek-letters-counted.md |",
        "| 2 | Greek letters counted | 002-greek-letters-counted.md |",
    ]


async def test_other_presets_are_not_asked_for_a_title() -> None:
    model = ScriptedModel(repeat(SUMMARY))
    for policy in ("default", "co-cli", "inkeep", "cowagent"):
        session = await talked(policy, summarizer=model)
        await session.compact()

    assert [prompt.text for prompt in model.prompts if "title" in prompt.text] == []
    assert len(model.prompts) == 4


@pytest.mark.seed("C-13c", "C-46", "C-48")
async def test_a_compaction_begins_with_the_parts_of_the_last_request_and_usage_is_told_anew_after_it() -> None:
    session = await talked("copilot", summarizer=ScriptedModel([SUMMARY]))
    await session.record([user_message("so?")])
    tools = [{"type": "function", "function": {"name": "count", "parameters": {"type": "object"}}}]
    await session.prepare(16_000, system="Count in Greek.", tools=tools)

    await session.compact()
    await session.record([user_message("and on")])
    await session.prepare(16_000, system="Count in Greek.", tools=tools)

    events = await session.events()
    before, at_once, after = (event for event in events if isinstance(event, log.UsageMeasured))
    assert events[events.index(at_once) - 1].KIND == log.CompactionCompleted.KIND
    assert at_once.current_tokens < before.current_tokens
    (begun,) = (event for event in events if isinstance(event, log.CompactionStarted))
    assert begun.tokens == log.TokenBreakdown(
        system_tokens=before.tokens.system_tokens,
        conversation_tokens=before.tokens.conversation_tokens - REPLY_OVERHEAD,
        tool_definitions_tokens=before.tokens.tool_definitions_tokens,
    )
    assert min(begun.tokens.system_tokens, begun.tokens.tool_definitions_tokens) > 0
    assert (before.is_initial, after.is_initial) == (False, True)
    assert after.current_tokens < before.current_tokens


@pytest.mark.seed("C-11", "C-13c", "C-46")
async def test_a_system_message_in_the_list_is_system_context_of_the_summary_and_counts_as_such() -> None:
    model = ScriptedModel([SUMMARY])
    session: Session = await Session.open("c1", policy="copilot", model="gpt-5", summarizer=model)
    await session.record([system_message("Never name omega.")])
    await record_turns(session, 6)
    await session.record([user_message("so?")])
    await session.prepare(16_000, system="Count in Greek.")

    await session.compact()

    events = await session.events()
    usage, _ = (event for event in events if isinstance(event, log.UsageMeasured))
    (begun,) = (event for event in events if isinstance(event, log.CompactionStarted))
    (prompt,) = model.prompts
    assert begun.tokens == replace(usage.tokens, conversation_tokens=usage.tokens.conversation_tokens - REPLY_OVERHEAD)
    assert (
        begun.tokens.system_tokens == sum(map(counter_for("gpt-5").count, ("Count in Greek.", "Never name omega."))) + 4
    )
    mark = prompt.text.removeprefix("MARK is ").split(".", 1)[0]
    context, rest = prompt.text.split(f"</system-context-{mark}>")
    assert context.endswith(f"<system-context-{mark}>\nCount in Greek.\n\nNever name omega.\n")
    assert "omega" not in rest


@pytest.mark.seed("C-52")
async def test_a_model_with_a_smaller_window_gets_a_conversation_that_fits_it() -> None:
    session = await talked(turns=12, summarizer=ScriptedModel(iter(lambda: SUMMARY, None)))

    done = await session.switch_model("tiny", budget=2_000)

    assert done is not None
    assert (done.success, done.trigger, done.summary.by_model) == (True, "model_switch", "scripted")
    assert session.model == "tiny"
    assert session.history.session_state.model == "tiny"
    assert await session.switch_model("gpt-5") is None


@pytest.mark.seed("C-52")
async def test_a_model_whose_window_holds_the_conversation_gets_it_as_it_is() -> None:
    model = ScriptedModel(repeat(SUMMARY))
    session = await talked(turns=12, summarizer=model)

    assert await session.switch_model("tiny", budget=8_000) is None
    assert (len(model.prompts), len(await session.visible_messages())) == (0, 24)


@pytest.mark.seed("C-13", "C-47")
@pytest.mark.parametrize("policy", ["default", "copilot"])
async def test_a_summary_that_took_several_calls_has_the_usage_of_all_and_the_id_of_the_last(policy: str) -> None:
    each = log.Usage(input_tokens=100, output_tokens=7, cache_read_tokens=10)
    replies = (ModelReply(text=SUMMARY, model="m", usage=each, request_id=f"r{number}") for number in range(99))
    model = ScriptedModel(replies, window=2_600)
    session = await talked(policy, turns=12, summarizer=model)
    await session.prepare(16_000)

    summary = (await session.compact()).summary

    calls = len(model.prompts)
    assert calls > 1
    assert summary.usage == log.Usage(input_tokens=100 * calls, output_tokens=7 * calls, cache_read_tokens=10 * calls)
    assert (summary.by_model, summary.request_id) == ("m", f"r{calls - 1}")


@pytest.fixture(scope="module")
def frozen_heap() -> None:
    """Let a garbage collection look only at what these tests make: other tests have left a large heap."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def resident_pages(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    frozen_heap: None,  # noqa: ARG001
) -> Iterator[dict[str, int]]:
    """The pages that the system reports for this process; a garbage collection leaves `after` of them."""
    pages = {"now": 1_000, "after": 1_000, "collections": 0}
    statm = tmp_path / "statm"
    statm.write_text("9 1000 9 9 9 9 9")
    monkeypatch.setattr("holdfast.session.requested_compaction.STATM_PATH", statm)

    def collected(phase: str, info: Mapping[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            pages["collections"] += 1
            statm.write_text(f"9 {pages['after']} 9 9 9 9 9")

    gc.disable()
    gc.callbacks.append(collected)
    yield pages
    gc.callbacks.remove(collected)
    gc.enable()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems report the peak in other units")
def test_where_the_memory_in_use_is_not_known_the_peak_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.session.requested_compaction.STATM_PATH", "/nonexistent/statm")

    before, found, after = peak_bytes(), resident_bytes(), peak_bytes()

    assert before <= found <= after


def peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.seed("C-53")
@pytest.mark.parametrize("policy", ["copilot", "default"])
@pytest.mark.parametrize(
    ("after", "limit", "outcome"),
    [
        (1_000, 1_000, (0, [])),
        (500, 900, (1, [])),
        (950, 900, (1, [("memory_pressure", True)])),
    ],
    ids=["enough memory", "enough after a collection", "too little"],
)
async def test_a_request_compacts_first_if_memory_is_short_even_after_a_garbage_collection(
    resident_pages: dict[str, int], policy: str, after: int, limit: int, outcome: tuple[int, list[tuple[str, bool]]]
) -> None:
    resident_pages["after"] = after
    how = CompactionOptions(automatic=ScriptedModel(repeat(SUMMARY)), memory_limit_bytes=limit * resource.getpagesize())
    session = await talked(policy, compaction=CompactionOptions(automatic=how.automatic))
    await session.prepare(100_000)
    await session.set_policy(policy, compaction=how)
    await session.record([user_message("and now?")])

    request = await session.prepare(100_000)

    done = [(event.trigger, event.success) for event in await compactions(session)]
    assert (resident_pages["collections"], done) == outcome
    assert (len(request.messages) < 13) is bool(done)
    assert request.messages[-1] == user_message("and now?")


@pytest.mark.seed("C-53")
async def test_memory_that_stays_short_does_not_compact_before_every_request(resident_pages: dict[str, int]) -> None:
    how = CompactionOptions(memory_limit_bytes=1)
    session = await talked(turns=1, compaction=how)
    for number in range(24):
        await session.record([user_message(f"question {number}")])
        await session.prepare(100_000)
        await session.record([assistant_message("ok")])

    assert resident_pages["collections"] == 3


@pytest.mark.seed("C-53")
async def test_a_program_may_ask_for_the_same_at_any_time(resident_pages: dict[str, int]) -> None:
    session = await talked()

    assert await session.compact_if_memory_above(1_000 * resource.getpagesize()) is None
    done = await session.compact_if_memory_above(1)

    assert done is not None
    assert (done.success, done.trigger, resident_pages["collections"]) == (True, "memory_pressure", 1)
    assert await session.compact_if_memory_above(1) is None, "there is nothing left that it could compact"


@pytest.mark.seed("C-39")
async def test_what_is_noted_is_in_the_replacement_and_a_providers_signal_changes_nothing() -> None:
    session = await talked("copilot", summarizer=ScriptedModel([SUMMARY]))
    await session.record([user_message("so?")])
    await session.prepare(16_000)
    shown = await session.visible_messages()

    await session.record_state(log.ProviderSignalled(signal="agent.thread_context_compacted"))
    assert await session.visible_messages() == shown
    await session.record_state(log.PlanChanged(text="1. count on"))
    await session.record_state(log.TodosChanged(text="- lambda"))
    await session.record_state(log.SkillInvoked(name="counting", instructions="Aloud."))
    await session.record_state(log.AgentChanged(name="counter", summary="Counts in Greek; lambda is next."))
    await session.compact()

    text = (await session.visible_messages())[0].message.text
    assert "<plan>\n1. count on\n</plan>" in text
    assert "<todos>\n- lambda\n</todos>" in text
    assert '<invoked_skills>\n<skill name="counting">\nAloud.\n</skill>\n</invoked_skills>' in text
    assert "<agent_summary>\ncounter\nCounts in Greek; lambda is next.\n</agent_summary>" in text
    with pytest.raises(MalformedInputError):
        await session.record_state(log.ContextCleared())  # pyright: ignore[reportArgumentType]


async def test_a_compaction_leaves_a_receipt_and_can_be_previewed_taken_back_and_made_anew() -> None:
    model = ScriptedModel(iter(lambda: SUMMARY, None))
    session = await talked(summarizer=model)
    before = await session.visible_messages()

    preview = await session.preview()
    assert await session.visible_messages() == before
    assert preview.post_compaction_tokens < preview.pre_compaction_tokens
    await session.compact()
    await session.restore_messages([2, 3])
    assert {2, 3} <= {entry.position for entry in await session.visible_messages()}
    assert await session.undo()
    again = await session.recompact(focus="only kappa")

    assert again.success
    assert "only kappa" in model.prompts[-1].text
    assert "question 0" in model.prompts[-1].text, "it is made from the original"
    first, brought, second = await session.receipts()
    assert (first.is_undone, brought.is_undone, second.is_undone) == (True, True, False)
    assert str(second).startswith("compacted (manual) #0–#")
    assert "undo with session.undo()" in str(second)
    with pytest.raises(NothingToCompactError):
        await (await Session.open("other")).recompact()


async def test_ones_own_texts_replace_what_a_preview_showed_unless_somebody_wrote_meanwhile() -> None:
    store = MemoryStore()
    session: Session = await Session.open("c1", store=store, model="gpt-5")
    await record_turns(session, 6)
    span = range((await session.preview()).span.start, (await session.preview()).span.stop)
    other: Session = await Session.open("c1", store=store, model="gpt-5")
    await other.record([user_message("one more?")])

    with pytest.raises(CompactionFailedError, match="the conversation went on since the preview"):
        await session.compact_with(["What I keep."], span=span)
    shown = (await session.preview()).span
    done = await session.compact_with(["What I keep."], span=range(shown.start, shown.stop))

    assert (done.success, done.replacement, done.span) == (True, ("What I keep.",), shown)


@pytest.mark.parametrize("texts", [[], [""], ["What I keep.", " \n"]])
async def test_nothing_is_replaced_by_no_text(texts: list[str]) -> None:
    session: Session = await Session.open("c1", model="gpt-5")
    await record_turns(session, 6)

    with pytest.raises(SettingsError, match="must be one or more texts that are not empty"):
        await session.compact_with(texts, span=range(4))

    assert await session.receipts() == []


class OvertakenStore(MemoryStore):
    """Another process makes a call beside the conversation just before the next append."""

    other: Session | None = None

    async def append(self, *args: Any, **options: Any) -> int:
        other, self.other = self.other, None
        if other is not None:
            await other.record_side_call("A title", purpose="title")
        return await super().append(*args, **options)


async def test_a_compaction_is_made_again_if_another_process_wrote_just_before_it() -> None:
    store = OvertakenStore()
    session: Session = await Session.open("c1", store=store, model="gpt-5")
    await record_turns(session, 6)
    span = (await session.preview()).span
    store.other = await Session.open("c1", store=store, model="gpt-5")

    edited = await session.compact_with(["What I keep."], span=range(span.start, span.stop))
    await session.undo()
    preview = await session.preview()
    store.other = await Session.open("c1", store=store, model="gpt-5")
    applied = await session.apply_preview(preview)

    assert (edited.replacement, applied.replacement) == (("What I keep.",), preview.replacement)
    kinds = [type(event) for event in await session.events()]
    assert (kinds.count(log.SideCallRecorded), kinds.count(log.CompactionCompleted)) == (2, 2)


async def test_a_draft_shows_the_summary_that_would_count_and_leaves_no_trace() -> None:
    told: list[str] = []
    model = ScriptedModel([SUMMARY] * 2)
    session = await talked(compaction=CompactionOptions(automatic=model, progress=told.append))
    before, events = await session.visible_messages(), await session.events()

    draft = await session.preview(draft=True, focus="only kappa")

    assert (draft.success, draft.summary.by_model, draft.summary.usage is not None) == (True, "scripted", True)
    assert SUMMARY.split(".", maxsplit=1)[0] in draft.replacement[0]
    assert "only kappa" in model.prompts[0].text
    assert (await session.visible_messages(), await session.events()) == (before, events)
    assert told == ["Compacting conversation history", ""]
    done = await session.compact(focus="only kappa")
    assert (done.replacement, done.effect) == (draft.replacement, draft.effect)


async def test_a_draft_by_a_model_that_fails_is_refused_by_name_and_leaves_no_trace() -> None:
    session = await talked(summarizer=FailingModel("refusing"))
    events = await session.events()

    with pytest.raises(ModelRefusedError):
        await session.preview(draft=True)

    assert (await session.events(), session.history.session_state.compaction_failures) == (events, 0)
    assert (await session.preview()).summary.by_model is None, "by rule it needs nobody"


async def test_a_draft_of_what_does_not_stand_any_more_says_so() -> None:
    asked, gate = asyncio.Event(), asyncio.Event()

    async def held(_: float) -> None:
        asked.set()
        await gate.wait()

    session = await talked(summarizer=ScriptedModel([SUMMARY], seconds=60, sleep=held))
    waiting = asyncio.create_task(session.preview(draft=True))
    await asked.wait()
    await session.rewind(to=1)
    gate.set()

    with pytest.raises(CompactionFailedError, match="the context has changed meanwhile"):
        await waiting


async def test_without_anybody_to_write_a_draft_is_made_by_rule() -> None:
    session = await talked()

    assert await session.preview(draft=True) == await session.preview()
