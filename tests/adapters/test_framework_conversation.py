"""A framework's list in a session: each message is converted once, and copies and edits of messages are recognized."""

import copy
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from google.genai import types
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from holdfast import CannotFitError, Session
from holdfast.adapters.framework_conversation import (
    FrameworkConversation,
    FrameworkRequest,
    MessageCodec,
    SubAgentCall,
)
from holdfast.adapters.google_adk import CONTENTS
from holdfast.adapters.langchain import MESSAGES
from holdfast.adapters.openai_agents import ITEMS
from holdfast.adapters.pydantic_ai.conversation import ELEMENTS, AgentConversation
from holdfast.adapters.pydantic_ai.messages import native_messages
from holdfast.core.history import events as log
from holdfast.core.history.visibility import SEES_NOTHING
from holdfast.errors import StoreUnavailableError
from holdfast.session.log.leases import HELD_HERE
from holdfast.stores.memory import MemoryStore
from tests.support import lines_of_the_package

ROOMY = FrameworkRequest(budget=16_000, model=None, system=None, tools=())
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
TIGHT = FrameworkRequest(budget=1_000, model=None, system=None, tools=())


@dataclass
class CountingCodec:
    """Converts as another codec does, and counts."""

    codec: MessageCodec[Any]
    encoded: int = 0
    decoded: int = 0
    format: str = field(init=False)

    def __post_init__(self) -> None:
        self.format = self.codec.format

    def contents(self, messages: Sequence[Any]) -> list[Any]:
        return self.codec.contents(messages)

    def encode(self, message: Any) -> Mapping[str, Any]:
        self.encoded += 1
        return self.codec.encode(message)

    def decode(self, native: Mapping[str, Any], original: Any = None) -> Any:
        self.decoded += 1
        return self.codec.decode(native, original)

    def text(self, message: Any) -> str:
        return self.codec.text(message)

    def own_summary(self, messages: Sequence[Any]) -> str | None:
        return self.codec.own_summary(messages)


@dataclass(frozen=True)
class Framework:
    """The messages of a framework."""

    codec: MessageCodec[Any]
    user: Callable[[str], Any]
    assistant: Callable[[str], Any]
    call: Callable[[str], list[Any]]
    """Returns a tool call and its result."""
    edit: Callable[[Any, str], None]
    """Changes the text of a message of the user in place."""
    edit_arguments: Callable[[Any, str], None]
    """Changes the arguments of a tool call in place."""


def _content(role: str, **fields: Any) -> types.Content:
    return types.Content(role=role, parts=[types.Part(**fields)])


def _set(target: Any, name: str, value: object) -> None:
    setattr(target, name, value)


FRAMEWORKS = {
    "langchain": Framework(
        MESSAGES,
        HumanMessage,
        AIMessage,
        lambda word: [
            AIMessage(
                "", tool_calls=[{"name": "look", "args": {"query": word}, "id": f"c-{word}", "type": "tool_call"}]
            ),
            ToolMessage(f"found {word}", tool_call_id=f"c-{word}"),
        ],
        lambda message, text: _set(message, "content", text),
        lambda message, word: message.tool_calls[0]["args"].update(query=word),
    ),
    "openai-agents": Framework(
        ITEMS,
        lambda text: {"role": "user", "content": [{"type": "input_text", "text": text}]},
        lambda text: {"role": "assistant", "content": text},
        lambda word: [
            {"type": "function_call", "call_id": f"c-{word}", "name": "look", "arguments": f'{{"query": "{word}"}}'},
            {"type": "function_call_output", "call_id": f"c-{word}", "output": f"found {word}"},
        ],
        lambda item, text: item["content"][0].update(text=text),
        lambda item, word: item.update(arguments=f'{{"query": "{word}"}}'),
    ),
    "google-adk": Framework(
        CONTENTS,
        lambda text: _content("user", text=text),
        lambda text: _content("model", text=text),
        lambda word: [
            _content(
                "model",
                function_call=types.FunctionCall(name="look", args={"query": word}, id=f"c-{word}"),
                thought_signature=b"signed",
            ),
            _content(
                "user",
                function_response=types.FunctionResponse(
                    name="look", response={"result": f"found {word}"}, id=f"c-{word}"
                ),
            ),
        ],
        lambda content, text: _set(content.parts[0], "text", text),
        lambda content, word: content.parts[0].function_call.args.update(query=word),
    ),
    "pydantic-ai": Framework(
        ELEMENTS,
        lambda text: ModelRequest([UserPromptPart(text, timestamp=NOON)]),
        lambda text: ModelResponse([TextPart(text)], timestamp=NOON),
        lambda word: [
            ModelResponse([ToolCallPart("look", {"query": word}, f"c-{word}")], timestamp=NOON),
            ModelRequest([ToolReturnPart("look", f"found {word}", f"c-{word}", timestamp=NOON)]),
        ],
        lambda message, text: _set(message.parts[0], "content", text),
        lambda message, word: message.parts[0].args.update(query=word),
    ),
}


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> Framework:
    return FRAMEWORKS[request.param]


def exchanges(framework: Framework, count: int) -> list[Any]:
    """Return messages that end with a prompt."""
    found: list[Any] = []
    for number in range(count):
        found += [framework.user(f"prompt {number}"), *framework.call(f"word{number}")]
        found.append(framework.assistant(f"answer {number}"))
    return [*found, framework.user("and now?")]


async def test_every_message_is_converted_once_and_sent_as_the_frameworks_own_object(framework: Framework) -> None:
    codec, messages = CountingCodec(framework.codec), exchanges(framework, 50)
    async with Session.open("c") as session:
        conversation = FrameworkConversation(session, codec)
        await conversation.prepare(messages, ROOMY)
        assert (codec.encoded, codec.decoded) == (201, 0)

        for number in range(10):
            answer = framework.assistant(f"more {number}")
            await conversation.record_response([answer], None)
            messages = [*messages, answer, framework.user("go on")]
            sent = await conversation.prepare(messages, ROOMY)

            assert all(one is other for one, other in zip(sent, messages, strict=True))
            assert (codec.encoded, codec.decoded) == (201 + 2 * (number + 1), 0)
        assert len(await session.messages()) == len(messages)


class CountedComparisons(dict[str, Any]):
    """A recorded message that counts how often it is compared."""

    count = 0

    def __eq__(self, other: object) -> bool:
        CountedComparisons.count += 1
        return super().__eq__(other)

    __hash__ = None


async def test_a_request_neither_copies_nor_compares_what_is_recorded(framework: Framework) -> None:
    class Codec(CountingCodec):
        def encode(self, message: Any) -> Mapping[str, Any]:
            return CountedComparisons(super().encode(message))

    messages = exchanges(framework, 50)
    async with Session.open("c") as session:
        conversation = FrameworkConversation(session, Codec(framework.codec))
        await conversation.prepare(messages, ROOMY)
        CountedComparisons.count = 0

        await conversation.prepare([*messages, framework.assistant("more"), framework.user("go on")], ROOMY)

        assert CountedComparisons.count == 0
        natives = [session.history.entries.native(position) for position in range(len(messages))]
        assert {type(native) for native in natives} == {CountedComparisons}


async def lines_of_a_model_call(framework: Framework, length: int) -> Counter[str]:
    """Return the lines that the package executes for a model call after that many exchanges."""
    # Until some thousand bytes are counted, threads count the tokens.
    messages, options = [framework.user("so, " * 2_000), *exchanges(framework, length)], replace(ROOMY, budget=400_000)
    async with Session.open("c") as session:
        conversation = FrameworkConversation(session, framework.codec)
        for number in range(3):
            await conversation.prepare(messages, options)
            call, result = framework.call(f"more{number}")
            await conversation.record_response([call], None, messages)
            messages = [*messages, call, result]
        with lines_of_the_package() as done:
            await conversation.prepare(messages, options)
            await conversation.record_response([framework.assistant("done")], None, messages)
    return done


async def test_only_the_comparison_of_what_messages_say_reads_the_whole_list(framework: Framework) -> None:
    await lines_of_a_model_call(framework, 200)  # this process keeps what it counts first
    short, long = await lines_of_a_model_call(framework, 60), await lines_of_a_model_call(framework, 200)

    grown = {name for name, count in long.items() if count != short[name]}
    assert grown <= {f"{type(framework.codec).__name__}.contents"}


async def test_an_edit_of_what_a_program_reads_reaches_neither_the_log_nor_a_request(framework: Framework) -> None:
    messages = exchanges(framework, 1)
    async with Session.open("c") as session:
        conversation = FrameworkConversation(session, framework.codec)
        await conversation.prepare(messages, ROOMY)
        recorded, request = await session.messages(), conversation.last_request
        assert request is not None
        assert request is conversation.last_request
        expected = copy.deepcopy(recorded)

        for one in (*recorded, *request.messages, *(await session.prepare(16_000)).messages):
            cast("dict[str, Any]", one).clear()

        assert await session.messages() == expected
        assert await conversation.prepare([*messages, framework.assistant("more"), framework.user("go on")], ROOMY)
        assert (await session.messages())[: len(messages)] == expected
        assert conversation.last_request is not None
        assert conversation.last_request.messages[: len(messages)] == expected


async def test_equal_copies_are_not_converted_again_and_the_copies_are_sent(framework: Framework) -> None:
    codec, messages = CountingCodec(framework.codec), exchanges(framework, 5)
    async with Session.open("c") as session:
        conversation = FrameworkConversation(session, codec)
        await conversation.prepare(messages, ROOMY)

        copies = copy.deepcopy(messages)
        sent = await conversation.prepare(copies, ROOMY)

        assert all(one is other for one, other in zip(sent, copies, strict=True))
        assert (codec.encoded, codec.decoded) == (len(messages), 0)
        assert len([one for one in await session.events() if isinstance(one, log.MessageAppended)]) == len(messages)


@pytest.mark.parametrize("what", ["text", "arguments"])
async def test_a_message_that_was_edited_in_place_is_recorded_and_sent_as_it_is_now(
    framework: Framework, what: str
) -> None:
    messages = exchanges(framework, 5)
    async with Session.open("c") as session:
        conversation = FrameworkConversation(session, framework.codec)
        await conversation.prepare(messages, ROOMY)
        before = [framework.codec.encode(one) for one in messages]

        if what == "text":
            framework.edit(messages[4], "prompt 1, corrected")
        else:
            framework.edit_arguments(messages[5], "corrected")
        sent = await conversation.prepare(messages, ROOMY)

        assert all(one is other for one, other in zip(sent, messages, strict=True))
        now = [framework.codec.encode(one) for one in messages]
        assert "corrected" in str(now)
        assert await session.messages() == now
        # The log keeps what was said before the edit.
        logged = [one.native for one in await session.events() if isinstance(one, log.MessageAppended)]
        assert logged[: len(before)] == before


CHANGES: dict[str, Callable[[list[Any], Any], list[Any]]] = {
    "replaced": lambda messages, other: [*messages[:4], other, *messages[5:]],
    "deleted": lambda messages, _: [*messages[:7], *messages[8:]],
    "inserted": lambda messages, other: [*messages[:4], other, *messages[4:]],
}
"""How a framework changes an earlier message; 4 is a prompt, 7 an answer."""


@pytest.mark.parametrize("change", CHANGES)
async def test_an_earlier_message_that_is_replaced_deleted_or_inserted_between_calls_is_recorded_and_sent(
    framework: Framework, change: str
) -> None:
    messages = exchanges(framework, 5)
    async with Session.open("c") as session:
        conversation = FrameworkConversation(session, framework.codec)
        await conversation.prepare(messages, ROOMY)
        await conversation.record_response([answer := framework.assistant("so it is")], None)

        changed = CHANGES[change]([*messages, answer, framework.user("go on")], framework.user("something else"))
        sent = await conversation.prepare(changed, ROOMY)

        assert len(sent) == len(changed)
        assert all(one is other for one, other in zip(sent, changed, strict=True))
        assert await session.messages() == [framework.codec.encode(one) for one in changed]
        # What is known is the changed list: the next call only adds to it.
        longer = [*changed, framework.assistant("fine"), framework.user("and then?")]
        assert await conversation.prepare(longer, ROOMY) == longer
        assert await session.messages() == [framework.codec.encode(one) for one in longer]


async def test_a_list_that_goes_back_is_followed(framework: Framework) -> None:
    messages = exchanges(framework, 5)
    async with Session.open("c") as session:
        conversation = FrameworkConversation(session, framework.codec)
        await conversation.prepare(messages, ROOMY)

        other = [*messages[:8], framework.user("something else")]
        sent = await conversation.prepare(other, ROOMY)

        assert all(one is another for one, another in zip(sent, other, strict=True))
        assert await session.messages() == [framework.codec.encode(one) for one in other]


async def test_a_rewind_assumes_no_window_for_an_unknown_model_whose_budget_is_known(
    framework: Framework, caplog: pytest.LogCaptureFixture
) -> None:
    messages, options = exchanges(framework, 5), replace(ROOMY, model=f"unheard-of-{uuid4().hex}")
    async with Session.open("c") as session:
        conversation = FrameworkConversation(session, framework.codec)
        await conversation.prepare(messages, options)

        await conversation.prepare([*messages[:8], framework.user("something else")], options)
        await conversation.take_last()
        await conversation.clear()

        assert [one.getMessage() for one in caplog.records] == []


async def test_what_holdfast_makes_for_requests_is_converted_once(framework: Framework) -> None:
    codec, messages = CountingCodec(framework.codec), exchanges(framework, 60)
    async with Session.open("c") as session:
        conversation = FrameworkConversation(session, codec)
        first = await conversation.prepare(messages, TIGHT)
        made = codec.decoded
        assert made > 0

        second = await conversation.prepare(messages, TIGHT)

        assert codec.decoded == made
        assert codec.encoded == len(messages)
        assert all(one is other for one, other in zip(second, first, strict=True))


async def test_messages_are_recorded_again_where_another_writer_was_faster(
    framework: Framework, tmp_path: Path
) -> None:
    store, messages = f"sqlite:///{tmp_path / 'chats.db'}", exchanges(framework, 2)
    async with Session.open("c", store=store) as session, Session.open("c", store=store) as other:
        conversation = FrameworkConversation(session, framework.codec)
        await conversation.prepare(messages, ROOMY)
        await other.record([framework.codec.encode(framework.assistant("elsewhere"))], format=framework.codec.format)

        longer = [*messages, framework.assistant("fine"), framework.user("go on")]
        sent = await conversation.prepare(longer, ROOMY)

        assert all(one is another for one, another in zip(sent, longer, strict=True))
        await other.refresh()
        assert await other.messages() == [framework.codec.encode(one) for one in longer]


def test_a_chunk_and_the_message_that_langchain_makes_of_it_say_the_same() -> None:
    chunk = AIMessageChunk(content="ah", tool_call_chunks=[{"name": "look", "args": "{}", "id": "c", "index": 0}])

    assert MESSAGES.contents([chunk]) == MESSAGES.contents([AIMessage("ah", tool_calls=chunk.tool_calls)])


async def test_the_contents_that_adk_copies_for_a_request_are_not_kept_after_its_response() -> None:
    adk = FRAMEWORKS["google-adk"]
    copied = copy.deepcopy(exchanges(adk, 5))
    kept = weakref.ref(copied[0])
    async with Session.open("c") as session:
        conversation = FrameworkConversation(session, adk.codec)
        await conversation.prepare(copied, ROOMY)
        del copied
        assert kept() is not None

        await conversation.record_response([adk.assistant("fine")], None)

        assert kept() is None


@pytest.mark.parametrize("part", ["response", "nested", "call"])
async def test_what_a_content_of_adk_holds_below_its_parts_is_compared_too(part: str) -> None:
    adk, content = FRAMEWORKS["google-adk"], _nested_content(part)
    messages = [adk.user("look"), *adk.call("a"), content, adk.user("and now?")]
    before = adk.codec.contents(copy.deepcopy(messages))
    assert adk.codec.contents(messages) == before

    assert content.parts is not None
    (only,) = content.parts
    if part == "call":
        assert only.function_call is not None
        assert only.function_call.partial_args is not None
        only.function_call.partial_args[0].string_value = "corrected"
    elif part == "nested":
        assert only.function_response is not None
        assert only.function_response.parts is not None
        only.function_response.parts[0].inline_data = types.FunctionResponseBlob(mime_type="image/png", data=b"other")
    else:
        assert only.function_response is not None
        assert only.function_response.response is not None
        only.function_response.response["result"] = "corrected"

    assert adk.codec.contents(messages) != before


def _nested_content(part: str) -> types.Content:
    if part == "call":
        partial = types.PartialArg(json_path="$.query", string_value="word")
        return _content("model", function_call=types.FunctionCall(name="look", partial_args=[partial]))
    blob = types.FunctionResponseBlob(mime_type="image/png", data=b"picture")
    parts = [types.FunctionResponsePart(inline_data=blob)] if part == "nested" else None
    return _content(
        "user", function_response=types.FunctionResponse(name="look", response={"result": "found"}, parts=parts)
    )


async def test_a_call_without_a_result_is_answered_before_the_model_is_asked_again(framework: Framework) -> None:
    call, _ = framework.call("word")
    async with Session.open("c") as session:
        conversation = FrameworkConversation(session, framework.codec)

        sent = await conversation.prepare([framework.user("look"), call, framework.user("and now?")], ROOMY)

    assert [framework.codec.encode(one) for one in (sent[0], sent[1], sent[-1])] == [
        framework.codec.encode(one) for one in (framework.user("look"), call, framework.user("and now?"))
    ]
    assert len(sent) == 4


async def test_a_message_that_a_sub_agent_changes_is_added_to_its_list(framework: Framework) -> None:
    messages = exchanges(framework, 2)
    async with Session.open("c") as session:
        context = session.delegate("helper", task="look", sees=SEES_NOTHING, adds_task_message=False)
        async with context as helper:
            conversation = FrameworkConversation(session, framework.codec, helper)
            await conversation.prepare(messages, ROOMY)

            changed = [*messages[:4], framework.user("something else"), *messages[5:]]
            sent = await conversation.prepare(changed, ROOMY)
            again = await conversation.prepare(changed, ROOMY)

            added = [framework.codec.encode(one) for one in (*messages, changed[4])]
            assert await helper.messages() == added
            assert [framework.codec.encode(one) for one in sent] == added
            assert again == sent


class FullStore(MemoryStore):
    """A store that takes nothing more once it is full."""

    is_full = False

    async def append(self, session: str, records: Sequence[Any], **options: Any) -> int:
        if self.is_full:
            raise StoreUnavailableError("the store", "the disk is full")
        return await super().append(session, records, **options)


async def test_every_agent_inside_a_call_ends_though_the_answer_of_another_cannot_be_stored() -> None:
    framework, store = FRAMEWORKS["langchain"], FullStore()
    async with Session.open("s", store=store) as session:
        parent = FrameworkConversation(session, framework.codec)
        await parent.prepare([framework.user("go")], ROOMY)

        async def find_parent() -> FrameworkConversation[Any]:
            return parent

        call = SubAgentCall(find_parent, framework.codec, "helper")
        for key in ("one", "other"):
            child = await call.conversation(key, key)
            await child.prepare([framework.user(key)], ROOMY)
            await child.record_response([framework.assistant("done")], None)
        store.is_full = True
        with pytest.raises(StoreUnavailableError):
            await call.end()
        store.is_full = False
        owners = session.history.session_state.running_delegates.values()

        assert (len(owners), HELD_HERE.isdisjoint(owners)) == (2, True)
        assert (parent.active_runs, call.is_delegated) == (0, False)


async def test_tuples_of_a_framework_are_copied() -> None:
    block: Any = {"type": "text", "text": "hello", "span": (1, [2])}
    async with Session.open("c") as session:
        conversation = FrameworkConversation(session, MESSAGES)
        [sent] = await conversation.prepare([HumanMessage([block])], ROOMY)
        block["span"][1].append(3)
        [again] = await conversation.prepare([HumanMessage([block])], ROOMY)

        assert len([one for one in await session.events() if isinstance(one, log.MessageAppended)]) == 2
    assert (sent.content, again.content) == ([block], [block])


async def test_a_request_that_cannot_be_prepared_is_not_waited_for() -> None:
    async with Session.open("s", store="memory://") as session:
        conversation = FrameworkConversation(session, MESSAGES)
        with pytest.raises(CannotFitError):
            await conversation.prepare([HumanMessage("word " * 2_000)], TIGHT)
        assert not conversation.is_asked

        await conversation.prepare([HumanMessage("word")], TIGHT)
        assert conversation.is_asked
        await conversation.record_response([AIMessage("ok")], None)
        assert not conversation.is_asked


@pytest.mark.parametrize("has_system_text", [False, True])
async def test_known_messages_of_pydantic_ai_are_not_searched_for_system_text_again(has_system_text: bool) -> None:  # noqa: FBT001
    found: list[Counter[str]] = []
    for length in (20, 60):
        messages = exchanges(FRAMEWORKS["pydantic-ai"], length)
        if has_system_text:
            messages[0].parts.insert(0, SystemPromptPart("Be brief.", timestamp=NOON))
        async with Session.open("c") as session:
            conversation = AgentConversation(session)
            await conversation.prepare(conversation.elements(messages), ROOMY)
            with lines_of_the_package() as done:
                elements = conversation.elements([*messages, *FRAMEWORKS["pydantic-ai"].call("more")])

            assert native_messages(elements) == native_messages([*messages, *elements[-2:]])
            found.append(done)
    short, long = found
    assert short == long


@pytest.mark.parametrize("is_delegate", [False, True])
async def test_system_text_that_is_put_into_a_known_message_is_recorded_as_a_message_of_its_own(
    is_delegate: bool,  # noqa: FBT001
) -> None:
    messages = exchanges(FRAMEWORKS["pydantic-ai"], 2)
    async with (
        Session.open("c") as session,
        session.delegate("helper", task="look", sees=SEES_NOTHING, adds_task_message=False) as helper,
    ):
        conversation = AgentConversation(session, helper if is_delegate else None)
        await conversation.prepare(conversation.elements(messages), ROOMY)

        messages[4].parts.insert(0, SystemPromptPart("Be brief.", timestamp=NOON))
        sent = await conversation.prepare(conversation.elements(messages), ROOMY)

        recorded = await (helper if is_delegate else session).messages()
        text, prompt = native_messages([messages[4]])
        assert text in recorded
        assert prompt in recorded
        if not is_delegate:
            assert recorded == native_messages(messages)
            assert all(any(one is other for other in sent) for one in (*messages[:4], *messages[5:]))
