"""Faulty providers over a real connection: an overflow is recovered, and every other fault is an error with a remedy.

An endpoint on this machine rejects requests in every known wording, truncates them silently, answers 200 with an error
in it, cuts its stream, never ends it, sends it byte by byte, or stops answering. After each fault the log is valid, the
key is nowhere, and the next turn succeeds.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from benchmarks.torture.observed import STUCK_SECONDS, differing_requests, messages_of
from holdfast import Session, classify, counter_for, validate
from holdfast.core.conversation.tokens import request_tokens
from holdfast.errors import CannotFitError, ModelError, ModelOverflowError
from holdfast.models.base import CachedPrefix, ModelReply, SummaryPrompt
from holdfast.models.openai_compatible import ChatSummarizer
from holdfast.testing.chat import JsonMessage, assistant_message, user_message
from holdfast.testing.endpoint import (
    ReceivedRequest,
    ResponsePiece,
    ScriptedEndpoint,
    http_response,
    sse_event,
    stream_response,
    text_chunk,
    text_stream,
)
from holdfast.wire.formats import format_named
from holdfast.wire.overflow import MALFORMED_PATTERNS, OUTPUT_CAP_PATTERNS, OVERFLOW_PATTERNS, RATE_LIMIT_PATTERNS
from holdfast.wire.request import Request

KEY = "sk-torture-0123456789abcdef"
MODEL, BUDGET, WINDOW = "gpt-5", 6_000, 2_000
WORDS = "The flood comes six hours behind the ebb. "
IDLE_SECONDS = 0.05
MAX_RETRIES = 6
ERROR = {"error": {"message": f"upstream failed for {KEY}", "code": 500}}


def _matching_texts(patterns: Sequence[str]) -> st.SearchStrategy[str]:
    plain = st.characters(min_codepoint=32, max_codepoint=126)
    return st.one_of([st.from_regex(f"(?i:{pattern})", fullmatch=True, alphabet=plain) for pattern in patterns])


REFUSALS = st.fixed_dictionaries(
    {
        "does": st.just("refuse"),
        "text": st.one_of(
            *map(_matching_texts, (RATE_LIMIT_PATTERNS, OUTPUT_CAP_PATTERNS, MALFORMED_PATTERNS, OVERFLOW_PATTERNS)),
            st.just(""),
        ),
        "status": st.sampled_from([400, 401, 402, 404, 408, 413, 422, 429, 500, 503, 529, 200]),
        "is_json": st.booleans(),
    }
)
TOO_LONG = st.fixed_dictionaries(
    {
        "does": st.just("refuse"),
        "text": _matching_texts(OVERFLOW_PATTERNS),
        "status": st.just(400),
        "is_json": st.booleans(),
    }
)
BEHAVIORS: Mapping[str, Callable[[], Sequence[ResponsePiece]]] = {
    "answer": lambda: text_stream("It does."),
    "truncate": lambda: text_stream("It does.", input_tokens=WINDOW),
    "error in 200": lambda: http_response(200, ERROR),
    "error in the stream": lambda: stream_response(text_chunk("It "), sse_event(ERROR)),
    "cut": lambda: stream_response(text_chunk("It "), text_chunk("do"), is_cut=True),
    "cut within an event": lambda: stream_response(text_chunk("It does")[:20], is_cut=True),
    "endless": lambda: stream_response(*[text_chunk("more " * 40)] * 600),
    "slow": lambda: [bytes([byte]) for piece in text_stream("It ", "does.") for byte in piece or b""],
    "silent": lambda: stream_response(text_chunk("It "), None),
    "mute": lambda: [None],
    "gone": list[ResponsePiece],
    "noise": lambda: [b"\x00\xff\x16\x03\x01 no HTTP at all\r\n\r\n"],
    "page": lambda: http_response(200, f"<html>sign in, {KEY}</html>"),
    "nothing": stream_response,
    "no choice": lambda: http_response(200, {"choices": []}),
}
STEP = st.one_of(st.sampled_from(list(BEHAVIORS)).map(lambda name: {"does": name}), TOO_LONG, REFUSALS)
STRATEGIES = (st.fixed_dictionaries({"turns": st.lists(st.lists(STEP, max_size=3), min_size=1, max_size=6)}),)


def check(case: Mapping[str, Any]) -> None:
    """Run a conversation with such a provider."""
    asyncio.run(_converse(case))


def _reply(step: Mapping[str, Any]) -> Sequence[ResponsePiece]:
    if step["does"] != "refuse":
        return BEHAVIORS[step["does"]]()
    body = {"error": {"message": f"{step['text']} {KEY}"}} if step["is_json"] else step["text"]
    return http_response(step["status"], body, headers={"Retry-After": "7"})


async def _converse(case: Mapping[str, Any]) -> None:
    steps: list[Mapping[str, Any]] = []

    def reply(_: ReceivedRequest) -> Sequence[ResponsePiece]:
        return _reply(steps.pop(0)) if steps else text_stream("It does.")

    talk: list[JsonMessage] = []
    async with ScriptedEndpoint(reply) as endpoint, Session.open("c", model=MODEL) as session:
        writer = ChatSummarizer(endpoint.url, MODEL, api_key=KEY, idle_seconds=IDLE_SECONDS)
        for number, turn in enumerate(case["turns"]):
            talk.append(user_message(f"Question {number}? {WORDS * 60}"))
            await session.record(talk[-1:])
            steps[:] = turn
            if answer := await _ask_until_answered(session, writer, turn):
                # As long as the question, so that there is something to compact soon.
                talk.append(assistant_message(f"{answer.text or '-'} {WORDS * 60}"))
                used = answer.usage.input_tokens if answer.usage else 0
                await session.record(talk[-1:], usage={"input_tokens": used} if used else None)
        events = await session.events()

    assert messages_of(events) == talk
    assert differing_requests(events) == []
    assert KEY not in json.dumps(talk), "a key was answered"


async def _ask_until_answered(
    session: Session, writer: ChatSummarizer, turn: Sequence[Mapping[str, Any]]
) -> ModelReply | None:
    """Send requests until there is an answer, or an error that a smaller request cannot avoid."""
    async with asyncio.timeout(STUCK_SECONDS):
        try:
            request = await session.prepare(BUDGET)
        except CannotFitError as error:
            # A provider has named a window that is smaller than a prompt.
            _check_error(error)
            return None
        for _ in range(MAX_RETRIES):
            _check_request(request)
            try:
                return await writer.write(_make_prompt(request))
            except ModelError as error:
                _check_error(error)
                problem = error
            try:
                smaller = await session.retry(problem)
            except (ModelError, CannotFitError) as error:
                _check_error(error)
                if isinstance(error, ModelOverflowError):
                    assert not _has_room(request, turn), "it gave up although there was something to drop"
                return None
            assert isinstance(problem, ModelOverflowError), "made smaller although it was not too long"
            assert smaller.tokens.counted < request.tokens.counted, "no smaller than before"
            request = smaller
    raise AssertionError("it retries without end")


def _make_prompt(request: Request) -> SummaryPrompt:
    prefix = CachedPrefix(format="openai-chat", messages=request.messages, positions=request.positions)
    return SummaryPrompt(system="", text="Go on.", max_output_tokens=100, prefix=prefix)


def _check_request(request: Request) -> None:
    wire = format_named("openai-chat")
    decoded = [wire.decode(native, index) for index, native in enumerate(request.messages)]

    assert validate(request.messages, "openai") == [], "not valid"
    assert request_tokens(decoded, counter_for(MODEL)) <= BUDGET, "over budget"


def _check_error(error: Exception) -> None:
    """Check that an error has a message with a remedy, and no key."""
    text = str(error)

    assert "; " in text, f"no advice: {text}"
    assert text.rpartition("; ")[2].strip(), f"no advice: {text}"
    assert KEY not in text, "a key is in an error"


def _has_room(request: Request, turn: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether exactly one request was rejected for its length and had more than a prompt."""
    told = [step for step in turn if step["does"] == "refuse" and _is_overflow(step)]
    return len(told) == 1 and request.tokens.counted > BUDGET // 2


def _is_overflow(step: Mapping[str, Any]) -> bool:
    refusal = classify(step["text"], status=step["status"])
    return refusal is not None and refusal.kind == "overflow"
