"""Agents of three frameworks whose histories are edited between turns: nothing is lost, and every request is valid.

A framework keeps the list and may change it as it likes: it edits, drops, reorders and repeats messages, hands over
equal copies, begins anew, or another writer takes something back. Before each model call the adapter's conversation
compares the list with its session. The messages are objects of LangChain, the OpenAI Agents SDK and Google's ADK.
"""

import asyncio
import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any

from hypothesis import strategies as st

from benchmarks.torture.fuzzing import mutate_json
from benchmarks.torture.histories import count_tokens
from benchmarks.torture.observed import differing_requests, messages_of
from holdfast import Session, validate
from holdfast.adapters.framework_conversation import FrameworkConversation, FrameworkRequest, MessageCodec
from holdfast.adapters.google_adk import GeminiContents
from holdfast.adapters.langchain import LangChainMessages
from holdfast.adapters.openai_agents import ResponsesItems
from holdfast.errors import CannotFitError, EmptyConversationError, MalformedInputError
from holdfast.stores.memory import MemoryStore
from holdfast.testing.models import ScriptedModel
from holdfast.testing.strategies.every_format import HISTORIES_BY_FORMAT

BUDGETS = [600, 2_000, 100_000]
SUMMARY = "Intent: go on. Done: what was asked."
EXPECTED_ERRORS = (CannotFitError, EmptyConversationError, MalformedInputError)
CODECS: Mapping[str, MessageCodec[Any]] = {
    "langchain": LangChainMessages(),
    "openai-agents": ResponsesItems(),
    "google-adk": GeminiContents(),
}
EDITS = ["grow", "grow", "grow", "edit", "drop", "swap", "double", "rewind", "restart", "copy", "again", "load"]
OTHERS = ["nothing", "nothing", "nothing", "rewind", "clear", "undo", "compact", "say"]


def _cases(name: str) -> st.SearchStrategy[dict[str, Any]]:
    history = HISTORIES_BY_FORMAT[CODECS[name].format]
    turns = st.lists(
        st.fixed_dictionaries(
            {
                "edit": st.sampled_from(EDITS),
                "at": st.integers(0, 8),
                "messages": st.one_of(history, mutate_json(history)),
                "other": st.sampled_from(OTHERS),
                "answers": st.booleans(),
            }
        ),
        min_size=1,
        max_size=6,
    )
    return st.fixed_dictionaries(
        {
            "framework": st.just(name),
            "budget": st.sampled_from(BUDGETS),
            "policy": st.sampled_from(["default", "co-cli", "inkeep"]),
            "turns": turns,
        }
    )


STRATEGIES = tuple(_cases(name) for name in CODECS)


def check(case: Mapping[str, Any]) -> None:
    """Let a framework converse."""
    asyncio.run(_converse(case))


async def _converse(case: Mapping[str, Any]) -> None:
    codec, store = CODECS[case["framework"]], MemoryStore()
    model = ScriptedModel(repeat(SUMMARY))
    async with Session.open("s", store=store, policy=case["policy"], model="gpt-5", summarizer=model) as session:
        conversation = FrameworkConversation(session, codec)
        messages: list[Any] = []
        for number, turn in enumerate(case["turns"]):
            await _act_as_other(store, turn)
            messages = await _edited(conversation, codec, messages, turn)
            prompt = codec.decode(_prompt(codec.format, f"prompt{number}x"))
            before = len(messages_of(await session.events()))
            options = FrameworkRequest(budget=case["budget"], model="gpt-5", system="Be brief.", tools=[])
            try:
                sent = await conversation.prepare([*messages, prompt], options)
            except EXPECTED_ERRORS:
                messages = messages[: turn["at"]]
                continue
            messages.append(prompt)
            natives = [codec.encode(one) for one in sent]
            assert validate(natives, codec.format) == [], "not valid"
            assert count_tokens(natives, codec.format) <= case["budget"], "over budget"
            assert f"prompt{number}x" in str(messages_of(await session.events())[before:]), (
                "the prompt is not in the log"
            )
            assert f"prompt{number}x" in str(natives), "the prompt was not sent"
            again = await conversation.prepare(copy.deepcopy(messages), options)
            assert [codec.encode(one) for one in again] == natives, "an equal list gave another request"
            if turn["answers"]:
                answer = codec.decode(_answer(codec.format, f"answer{number}x"))
                await conversation.record_response([answer], None)
                messages.append(answer)
        assert session.damage == [], "damaged"
        assert differing_requests(await session.events()) == [], "a request differs when it is rebuilt"
    await store.close()


async def _edited(
    conversation: FrameworkConversation[Any], codec: MessageCodec[Any], listed: list[Any], turn: Mapping[str, Any]
) -> list[Any]:
    """Return the list of a framework after an edit."""
    new = _framework_messages(codec, turn["messages"])
    at = min(turn["at"], len(listed))
    edited: Mapping[str, Callable[[], list[Any]]] = {
        "grow": lambda: [*listed, *new],
        "edit": lambda: [*listed[:at], *new, *listed[at + len(new) :]],
        "drop": lambda: [*listed[:at], *listed[at + 2 :]],
        "swap": lambda: [*listed[:at], *reversed(listed[at:])],
        "double": lambda: [*listed, *listed[at:]],
        "rewind": lambda: listed[:at],
        "restart": lambda: new,
        "copy": lambda: [*copy.deepcopy(listed), *new],
        "again": lambda: listed,
    }
    return [*await conversation.load(), *new] if turn["edit"] == "load" else edited[turn["edit"]]()


def _framework_messages(codec: MessageCodec[Any], natives: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return messages as objects of the framework, without those that it refuses itself."""
    made: list[Any] = []
    for native in natives:
        try:
            made.append(codec.decode(native))
        except Exception:  # noqa: BLE001, S112 - each framework has errors of its own
            continue
    return made


async def _act_as_other(store: MemoryStore, turn: Mapping[str, Any]) -> None:
    """Change the session as another process does."""
    if turn["other"] == "nothing":
        return
    async with Session.open("s", store=store, model="gpt-5") as other:
        match turn["other"]:
            case "rewind" if len(other):
                await other.rewind(to=min(turn["at"], len(other) - 1))
            case "clear":
                await other.clear()
            case "undo":
                await other.undo()
            case "say" if other.history.format:
                await other.record([_prompt(other.history.format, "from elsewhere")])
            case _:
                pass


def _prompt(format_name: str, text: str) -> dict[str, Any]:
    if format_name.startswith("gemini"):
        return {"role": "user", "parts": [{"text": text}]}
    return {"role": "user", "content": text}


def _answer(format_name: str, text: str) -> dict[str, Any]:
    if format_name.startswith("gemini"):
        return {"role": "model", "parts": [{"text": text}]}
    if format_name.startswith("openai-responses"):
        block = {"type": "output_text", "text": text, "annotations": list[Any]()}
        return {"type": "message", "id": f"msg_{text}", "role": "assistant", "status": "completed", "content": [block]}
    return {"role": "assistant", "content": text}
