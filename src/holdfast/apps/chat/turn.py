"""One turn of the agent, as events for the screen.

References to artifacts are removed from the answer while it streams.
"""

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace

from pydantic_ai import Agent, AgentRunResultEvent
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import (
    AgentStreamEvent,
    BinaryContent,
    FinishReason,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
)
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.usage import UsageLimits

from holdfast.apps.chat.attachments import PreparedPrompt
from holdfast.apps.chat.events import (
    ChatEvent,
    ChatNotice,
    TextDelta,
    ThinkingDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnEnded,
)
from holdfast.apps.chat.tools.files import ToolRefusal
from holdfast.core.recall.artifacts import ARTIFACT_REFERENCE

REFERENCE_START = "[artifact:"
CUT_PROBLEMS: Mapping[FinishReason | None, str] = {
    "length": "the answer reached the model's output limit and is cut; say “go on” for the rest",
    "content_filter": "the provider's content filter stopped the answer; it is cut",
    "error": "the provider reported an error in the middle of the answer; it is cut, and /retry asks again",
    None: "the stream ended without a finish reason, so the answer may be cut; /retry asks again",
}
MAX_HELD_CHARS = 4_000
"""A text that is longer cannot be a reference."""


REPETITION_WINDOW_CHARS, REPEATED_PROBE_CHARS, MIN_REPETITIONS = 2_400, 40, 6
"""An answer is stopped if its last characters are one text, six times or more; a table or a list is not."""
REPETITION_PROBLEM = "the model began to repeat itself, so the answer was stopped; ask again, or say what you need"


class ReferenceFilter:
    """Removes references from streamed text; holds back what may be the beginning of one."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """Return the text that is safe to display now."""
        self._held += piece
        shown = ""
        while (start := _find_start(self._held)) is not None:
            shown, self._held = shown + self._held[:start], self._held[start:]
            if found := ARTIFACT_REFERENCE.match(self._held):
                self._held = self._held[found.end() :]
            elif "\n\n" in self._held or len(self._held) > MAX_HELD_CHARS:
                shown, self._held = shown + self._held[: len(REFERENCE_START)], self._held[len(REFERENCE_START) :]
            else:
                return shown
        start = len(self._held) - _partial_start_chars(self._held)
        shown, self._held = shown + self._held[:start], self._held[start:]
        return shown

    def flush(self) -> str:
        """Return the text that is still held back, at the end of the stream."""
        held, self._held = self._held, ""
        return ARTIFACT_REFERENCE.sub("", held)


class RepetitionDetector:
    """Notices that an answer has begun to repeat itself, word for word."""

    def __init__(self) -> None:
        self._end = ""

    def feed(self, piece: str) -> bool:
        """Return whether the answer ends with the same text many times in a row."""
        self._end = (self._end + piece)[-REPETITION_WINDOW_CHARS:]
        if len(self._end) < REPETITION_WINDOW_CHARS:
            return False
        # If a text consists of repetitions, its last words are in it again, one repetition before its end.
        last = self._end[-REPEATED_PROBE_CHARS:]
        before = self._end.rfind(last, 0, -1)
        period = len(self._end) - REPEATED_PROBE_CHARS - before
        if before < 0 or not last.strip() or period * MIN_REPETITIONS > REPETITION_WINDOW_CHARS:
            return False
        repeated = self._end[-period * MIN_REPETITIONS :]
        return repeated == repeated[:period] * MIN_REPETITIONS and any(map(str.isalpha, repeated[:period]))


def _find_start(text: str) -> int | None:
    """Return where a possible reference begins."""
    at = text.find("[")
    while at >= 0 and text[at : at + len(REFERENCE_START)].lower() != REFERENCE_START:
        at = text.find("[", at + 1)
    return at if at >= 0 else None


def _partial_start_chars(text: str) -> int:
    """Return how many characters at the end may begin a reference."""
    end = text[1 - len(REFERENCE_START) :].lower()
    return next((size for size in range(len(end), 0, -1) if end.endswith(REFERENCE_START[:size])), 0)


async def turn_events(
    agent: Agent[object, str], prompt: PreparedPrompt | None, max_steps: int | None
) -> AsyncGenerator[ChatEvent]:
    """Yield what happens while the agent answers."""
    images = [BinaryContent(image.data, media_type=image.media_type) for image in (prompt.images if prompt else ())]
    said = [prompt.text, *images] if prompt and images else prompt.text if prompt else None
    # One more step for the closing answer, and one in case the model calls a tool in it nevertheless.
    limits = UsageLimits(request_limit=None if max_steps is None else max_steps + 2)
    references, repetition = ReferenceFilter(), RepetitionDetector()
    try:
        async with agent.run_stream_events(said, usage_limits=limits) as events:
            async for event in events:
                chat_event = _to_chat_event(event)
                if isinstance(chat_event, TextDelta):
                    if repetition.feed(chat_event.text):
                        yield TextDelta(chat_event.text)
                        yield ChatNotice(REPETITION_PROBLEM, "warning")
                        yield TurnEnded("cut")
                        return
                    text = references.feed(chat_event.text)
                    chat_event = TextDelta(text) if text else None
                elif chat_event is not None and (rest := references.flush()):
                    yield TextDelta(rest)
                if isinstance(event, AgentRunResultEvent) and isinstance(chat_event, TurnEnded):
                    reports_finish = isinstance(agent.model, OpenAIChatModel)
                    if problem := cut_problem(event.result.response, reports_finish=reports_finish):
                        yield ChatNotice(problem, "warning")
                        chat_event = replace(chat_event, outcome="cut")
                if chat_event is not None:
                    yield chat_event
    except UsageLimitExceeded:
        yield ChatNotice(f"stopped after {max_steps} steps without a final answer; say “go on” to continue", "warning")
        yield TurnEnded("failed")


def takes_images(agent: Agent[object, str]) -> bool:
    """Return whether the model of an agent takes images, as far as pydantic-ai knows it."""
    return not isinstance(agent.model, Model) or agent.model.profile.get("supports_image_input", True)


def cut_problem(response: ModelResponse, *, reports_finish: bool) -> str:
    """Say why an answer is not whole; empty if it is.

    pydantic-ai reports a stream of the OpenAI format that ends without a finish reason as finished. If the model
    `reports_finish`, the reason as the provider wrote it tells the difference.
    """
    reason = response.finish_reason
    if reports_finish and reason == "stop" and not (response.provider_details or {}).get("finish_reason"):
        reason = None
    return CUT_PROBLEMS.get(reason, "")


def _to_chat_event(event: AgentStreamEvent | AgentRunResultEvent[str]) -> ChatEvent | None:
    """Return the chat event for an event of the run; None if the user does not need to see it."""
    match event:
        case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            return TextDelta(text) if text else None
        case PartStartEvent(part=ThinkingPart(content=text)):
            return ThinkingDelta(text) if text else None
        case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str() as text)):
            return ThinkingDelta(text) if text else None
        case FunctionToolCallEvent(part=call):
            return ToolCallStarted(call.tool_call_id, call.tool_name, _as_text(call.args))
        case FunctionToolResultEvent(part=result):
            is_error = result.outcome != "success" or isinstance(result.content, ToolRefusal)
            return ToolCallFinished(result.tool_call_id, result.tool_name, _as_text(result.content), is_error=is_error)
        case AgentRunResultEvent():
            used = event.result.usage
            reason = event.result.response.finish_reason or ""
            read, cached, written = used.input_tokens, used.cache_read_tokens, used.output_tokens
            return TurnEnded("done", read, cached, written, used.requests, reason)
        case _:
            return None


def _as_text(value: object) -> str:
    """Return the arguments or the result of a call as text; of a file only its type and size."""
    if value is None:
        return ""
    if isinstance(value, str | bytes | BinaryContent):
        return _describe(value)
    return json.dumps(value, ensure_ascii=False, default=_describe)


def _describe(value: object) -> str:
    if isinstance(value, BinaryContent):
        return f"[{value.media_type}, {len(value.data):,} bytes]"
    return f"[{len(value):,} bytes]" if isinstance(value, bytes) else str(value)
