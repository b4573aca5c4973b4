"""The user's own stages of a request: where they run, and what they may do."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from holdfast import Budget, EmptyConversationError, MalformedInputError, Session, SettingsError, read_policy, validate
from holdfast.compaction import RequestProcessor, RequestProcessors
from holdfast.core.conversation.messages import Entry, Text, Trust, assistant, user
from holdfast.core.planning.request_stages import processed_entries
from holdfast.storage import rebuilt_requests
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.testing.models import ScriptedModel
from holdfast.wire.formats import format_named
from tests.support import WORDS, record_turns

Messages = list[dict[str, object]]


def noting(seen: dict[str, int], stage: str) -> RequestProcessor:
    def processor(messages: Messages) -> Messages:
        seen[stage] = len(messages)
        return messages

    return processor


@pytest.mark.seed("C-22")
async def test_processors_run_before_the_request_is_shortened_and_after_it_in_this_order() -> None:
    seen: dict[str, int] = {}
    stages = ("attachments", "immediate_prompt", "file_content")
    processors = RequestProcessors(**{stage: (noting(seen, stage),) for stage in stages})
    # No summarizer and no compaction: what is too long falls to the truncator.
    policy = read_policy('base = "copilot"\ncompaction = false')
    async with Session.open("c1", model="gpt-5", policy=policy, processors=processors) as session:
        await record_turns(session, 20)
        await session.record([user_message("now")])

        request = await session.prepare(2_000)

    assert list(seen) == ["attachments", "immediate_prompt", "file_content"]
    assert seen["attachments"] == 41
    assert seen["immediate_prompt"] == seen["file_content"] == len(request.messages) < 41


@pytest.mark.seed("C-22")
async def test_a_compaction_comes_before_the_stages_of_the_request_it_shortens() -> None:
    seen: dict[str, int] = {}
    processors = RequestProcessors(immediate_prompt=(noting(seen, "immediate_prompt"),))
    model = ScriptedModel(["They counted."])
    async with Session.open("c1", model="gpt-5", policy="copilot", summarizer=model, processors=processors) as session:
        await record_turns(session, 20)
        await session.record([user_message("now")])

        request = await session.prepare(3_500)

    assert seen == {"immediate_prompt": 2}
    assert "They counted." in str(request.messages[0]["content"])


@pytest.mark.seed("C-22")
@pytest.mark.parametrize("stage", ["attachments", "immediate_prompt", "file_content"])
async def test_what_a_processor_does_is_in_that_request_alone_and_can_be_proven_from_the_log(stage: str) -> None:
    def processor(messages: Messages) -> Messages:
        messages[0]["content"] = "changed"
        return [*messages[:-1], user_message("look at a.txt: it says 42"), messages[-1]]

    said = [user_message("one"), assistant_message("two"), user_message("three")]
    settings: Any = {stage: (processor,)}
    async with Session.open("c1", model="gpt-5", processors=RequestProcessors(**settings)) as session:
        await session.record(said)

        request = await session.prepare(16_000)
        again = await session.prepare(16_000)
        kept, events = await session.messages(), await session.events()

    assert request.messages == again.messages
    assert str(request.messages[0]["content"]) == "changed"
    assert "it says 42" in str(request.messages)
    assert validate(request.messages, "openai") == []
    assert kept == said
    assert [one.is_same for one in rebuilt_requests(events)] == [True, True]
    assert f"a processor of the stage {stage.replace('_', ' ')} changed the request" in request.receipt.reasons


async def test_a_message_that_a_processor_changes_in_each_request_is_proven_and_not_called_kept() -> None:
    clock = iter(range(10))

    def dated(messages: Messages) -> Messages:
        messages[0]["content"] = f"It is {next(clock)} o'clock."
        return messages

    said = [user_message("one"), assistant_message("two"), user_message("three")]
    async with Session.open("c1", model="gpt-5", processors=RequestProcessors(file_content=(dated,))) as session:
        await session.record(said)

        requests = [await session.prepare(16_000) for _ in range(3)]
        unchanged = await session.sync([*said, assistant_message("four")])
        events = await session.events()

    assert len({request.hash for request in requests}) == 3
    assert [request.receipt.kept for request in requests] == [(1, 2)] * 3
    assert [one.is_same for one in rebuilt_requests(events)] == [True] * 3
    assert unchanged == range(3, 4)


def dated_in_place(messages: Messages) -> Messages:
    for message in messages:
        message["content"] = f"{message['content']} (Monday)"
    return messages


def dated_copies(messages: Messages) -> Messages:
    return dated_in_place([{**message} for message in messages])


@pytest.mark.parametrize("processor", [dated_in_place, dated_copies])
def test_a_changed_summary_or_note_does_not_become_the_users_own_words(processor: RequestProcessor) -> None:
    trusts: list[Trust] = ["summary", "memory", "agent", "tool", "user"]
    entries = [Entry(user(f"text {trust}", trust=trust), 3) for trust in trusts]
    entries.insert(1, Entry(assistant("yes"), 4))

    changed = processed_entries(entries, (processor,), format_named("openai-chat"), "attachments")

    assert [entry.message.parts for entry in changed] == [
        (Text("text summary (Monday)", "summary"),),
        (Text("yes (Monday)", "model"),),
        *((Text(f"text {trust} (Monday)", trust),) for trust in trusts[1:]),
    ]
    assert [entry.message.is_prompt for entry in changed] == [entry.message.is_prompt for entry in entries]
    assert all(entry.message.is_unedited for entry in changed)


def test_a_note_to_which_a_processor_gives_another_role_has_the_label_of_that_role() -> None:
    def processor(messages: Messages) -> Messages:
        return [{**one, "role": "system", "content": "Be brief."} if one["role"] == "user" else one for one in messages]

    entries = [Entry(user("a note", trust="memory"), 0), Entry(assistant("yes"), 1)]

    changed = processed_entries(entries, (processor,), format_named("openai-chat"), "attachments")

    assert [entry.message.parts for entry in changed] == [(Text("Be brief.", "system"),), (Text("yes", "model"),)]


@pytest.mark.parametrize("stage", ["attachments", "immediate_prompt", "file_content"])
async def test_an_empty_session_is_refused_before_processors_see_it(stage: str) -> None:
    def processor(messages: Messages) -> Messages:
        messages[-1]["content"] = "changed"
        return messages

    settings: Any = {stage: (processor,)}
    async with Session.open("c1", model="gpt-5", processors=RequestProcessors(**settings)) as session:
        with pytest.raises(EmptyConversationError):
            await session.prepare(16_000)


async def test_a_processor_is_not_called_after_another_has_left_out_everything() -> None:
    def none(messages: Messages) -> Messages:
        del messages
        return []

    def last(messages: Messages) -> Messages:
        return [messages[-1]]

    async with Session.open("c1", model="gpt-5", processors=RequestProcessors(file_content=(none, last))) as session:
        await session.record([user_message("one")])

        with pytest.raises(EmptyConversationError):
            await session.prepare(16_000)


async def test_what_processors_add_is_within_the_budget() -> None:
    def processor(messages: Messages) -> Messages:
        return [user_message(WORDS * 20), *messages]

    async with Session.open(
        "c1", model="gpt-5", policy="copilot", processors=RequestProcessors(file_content=(processor,))
    ) as session:
        await session.record([user_message("now")])

        request = await session.prepare(Budget(600))

    assert request.tokens.total <= 600
    assert request.messages[-1]["content"] == "now"


def copied(messages: Messages) -> Messages:
    return [{**message} for message in messages]


def marked(messages: Messages) -> Messages:
    return [user_message("Today is Monday."), *({**one, "content": f"{one['content']} (seen)"} for one in messages)]


@pytest.mark.parametrize("stage", ["attachments", "file_content"])
@pytest.mark.parametrize(("processor", "mark"), [(copied, ""), (marked, " (seen)")])
async def test_prompt_and_pins_stay_where_a_processor_returns_new_objects(
    stage: str, processor: RequestProcessor, mark: str
) -> None:
    settings: Any = {stage: (processor,)}
    steps = [
        message
        for number in range(8)
        for message in (tool_call_message(f"c{number}"), tool_result_message(f"c{number}", WORDS))
    ]
    processors = RequestProcessors(**settings)
    async with Session.open("c1", model="gpt-5", policy="copilot", processors=processors) as session:
        await record_turns(session, 5)
        await session.record([user_message("KEEP this"), assistant_message("kept")])
        await session.pin(10)
        await record_turns(session, 5)
        await session.record([user_message("do it now"), *steps])

        request = await session.prepare(1_100)

    prompts = [message["content"] for message in request.messages if message["role"] == "user"]
    assert [text for text in prompts if text in {f"KEEP this{mark}", f"do it now{mark}"}] == [
        f"KEEP this{mark}",
        f"do it now{mark}",
    ]
    assert validate(request.messages, "openai-chat") == []


async def test_a_summary_that_a_processor_puts_in_place_of_messages_is_not_taken_for_one_of_them() -> None:
    def summarized(messages: Messages) -> Messages:
        return [user_message("They counted."), *messages[-3:]]

    async with Session.open("c1", model="gpt-5", processors=RequestProcessors(attachments=(summarized,))) as session:
        await record_turns(session, 5)
        await session.record([user_message("now")])

        request = await session.prepare(16_000)

    assert request.messages[0]["content"] == "They counted."
    assert (request.receipt.messages, request.receipt.kept) == (4, (8, 9, 10))


@pytest.mark.parametrize("stage", ["attachments", "file_content"])
async def test_images_that_processors_add_are_within_the_providers_limits(stage: str) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}

    def illustrated(messages: Messages) -> Messages:
        messages[0]["content"] = [{"type": "text", "text": "look"}, *[image] * 101]
        return messages

    settings: Any = {stage: (illustrated,)}
    async with Session.open("c1", model="claude-sonnet-4-5", processors=RequestProcessors(**settings)) as session:
        await session.record([user_message("one"), assistant_message("two"), user_message("three")], format="anthropic")

        request = await session.prepare(1_000_000)

    assert validate(request.messages, "anthropic") == []
    assert "iVBORw0KGgo=" not in str(request.messages)
    assert request.receipt.reasons[-1] == "at most 20 images are sent, so a notice replaces each of the oldest"


async def test_a_text_of_a_processor_that_the_provider_does_not_take_is_not_sent() -> None:
    def endless(messages: Messages) -> Messages:
        messages[0]["content"] = "x" * 11_000_000
        return messages

    async with Session.open("c1", model="gpt-5", processors=RequestProcessors(file_content=(endless,))) as session:
        await session.record([user_message("one"), assistant_message("two"), user_message("three")])

        request = await session.prepare(10_000_000)

    assert validate(request.messages, "openai-chat") == []
    assert [str(message["content"])[:25] for message in request.messages] == [
        "[Summary of 1 earlier mes",
        "two",
        "three",
    ]


async def test_a_fork_has_the_processors_of_its_session() -> None:
    seen: dict[str, int] = {}
    processors = RequestProcessors(attachments=(noting(seen, "attachments"),))
    async with Session.open("c1", model="gpt-5", processors=processors) as session:
        await session.record([user_message("now")])
        other = await session.fork()
        await other.prepare()

    assert seen == {"attachments": 1}


async def test_a_processor_that_returns_no_message_and_one_that_is_no_function_are_named() -> None:
    def processor(messages: Messages) -> Sequence[Mapping[str, object]]:
        return [*messages, {"role": "nobody"}]

    async with Session.open("c1", processors=RequestProcessors(attachments=(processor,))) as session:
        await session.record([user_message("now")])
        with pytest.raises(
            MalformedInputError, match=r"processors\.attachments: returned a message that cannot be sent"
        ):
            await session.prepare()
    with pytest.raises(SettingsError, match=r"processors\.file_content: must be a tuple of functions"):
        RequestProcessors(file_content=("no function",))  # pyright: ignore[reportArgumentType]
    with pytest.raises(SettingsError, match="processors: must be a RequestProcessors"):
        Session.open("c1", processors=[])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("returned", [None, "text", {"role": "user"}])
async def test_a_processor_that_returns_no_list_is_named_with_its_stage(returned: Any) -> None:
    def forgetful(messages: Messages) -> Messages:
        del messages
        return returned

    async with Session.open("c1", processors=RequestProcessors(file_content=(forgetful,))) as session:
        await session.record([user_message("now")])

        with pytest.raises(SettingsError) as refused:
            await session.prepare(16_000)

    assert str(refused.value) == (
        "processors.file_content: forgetful must be a plain function that returns the list of messages, "
        f"not {returned!r}"
    )
