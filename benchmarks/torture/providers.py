"""Whatever a provider does over a real connection: an overflow recovers, the rest is an error with advice.

A conversation goes to an endpoint on this machine that refuses in every wording we know, cuts what it is sent without
a word, says 200 with an error in it, cuts its stream, never ends it, sends it byte by byte or falls silent. After each
the log is sound, the key is nowhere, and the next turn is made.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from benchmarks.torture.standing import STUCK_SECONDS, messages_of, unproved
from holdfast import Session, classify, counter_for, validate
from holdfast.core.conversation.tokens import total_tokens
from holdfast.errors import CannotFitError, ModelError, ModelOverflowError
from holdfast.models.base import Answer, Ask, Prefix
from holdfast.models.openai_compatible import ChatWriter
from holdfast.session.request import PreparedRequest
from holdfast.testing.chat import Json, answered, said
from holdfast.testing.endpoint import Endpoint, Piece, Received, event, replied, said_chunk, spoken, streamed
from holdfast.wire.formats import format_named
from holdfast.wire.refusal_texts import MALFORMED, OUTPUT_CAPS, OVERFLOWS, RATE_LIMITS

KEY = "sk-torture-0123456789abcdef"
MODEL, BUDGET, WINDOW = "gpt-5", 6_000, 2_000
WORDS = "The flood comes six hours behind the ebb. "
IDLE_SECONDS = 0.05
MOST_CLIMBS = 6
ERROR = {"error": {"message": f"upstream failed for {KEY}", "code": 500}}


def _worded(patterns: Sequence[str]) -> st.SearchStrategy[str]:
    plain = st.characters(min_codepoint=32, max_codepoint=126)
    return st.one_of([st.from_regex(f"(?i:{pattern})", fullmatch=True, alphabet=plain) for pattern in patterns])


REFUSALS = st.fixed_dictionaries(
    {
        "does": st.just("refuse"),
        "text": st.one_of(*map(_worded, (RATE_LIMITS, OUTPUT_CAPS, MALFORMED, OVERFLOWS)), st.just("")),
        "status": st.sampled_from([400, 401, 402, 404, 408, 413, 422, 429, 500, 503, 529, 200]),
        "is_json": st.booleans(),
    }
)
TOO_LONG = st.fixed_dictionaries(
    {"does": st.just("refuse"), "text": _worded(OVERFLOWS), "status": st.just(400), "is_json": st.booleans()}
)
MANNERS: Mapping[str, Callable[[], Sequence[Piece]]] = {
    "answer": lambda: spoken("It does."),
    "truncate": lambda: spoken("It does.", input_tokens=WINDOW),
    "error in 200": lambda: replied(200, ERROR),
    "error in the stream": lambda: streamed(said_chunk("It "), event(ERROR)),
    "cut": lambda: streamed(said_chunk("It "), said_chunk("do"), is_cut=True),
    "cut within an event": lambda: streamed(said_chunk("It does")[:20], is_cut=True),
    "endless": lambda: streamed(*[said_chunk("more " * 40)] * 600),
    "slow": lambda: [bytes([byte]) for piece in spoken("It ", "does.") for byte in piece or b""],
    "silent": lambda: streamed(said_chunk("It "), None),
    "mute": lambda: [None],
    "gone": list[Piece],
    "noise": lambda: [b"\x00\xff\x16\x03\x01 no HTTP at all\r\n\r\n"],
    "page": lambda: replied(200, f"<html>sign in, {KEY}</html>"),
    "nothing": streamed,
    "no choice": lambda: replied(200, {"choices": []}),
}
STEP = st.one_of(st.sampled_from(list(MANNERS)).map(lambda name: {"does": name}), TOO_LONG, REFUSALS)
STRATEGIES = (st.fixed_dictionaries({"turns": st.lists(st.lists(STEP, max_size=3), min_size=1, max_size=6)}),)


def check(case: Mapping[str, Any]) -> None:
    """Converse with such a provider."""
    asyncio.run(_conversed(case))


def _reply(step: Mapping[str, Any]) -> Sequence[Piece]:
    if step["does"] != "refuse":
        return MANNERS[step["does"]]()
    body = {"error": {"message": f"{step['text']} {KEY}"}} if step["is_json"] else step["text"]
    return replied(step["status"], body, headers={"Retry-After": "7"})


async def _conversed(case: Mapping[str, Any]) -> None:
    steps: list[Mapping[str, Any]] = []

    def reply(_: Received) -> Sequence[Piece]:
        return _reply(steps.pop(0)) if steps else spoken("It does.")

    talk: list[Json] = []
    async with Endpoint(reply) as endpoint, Session.open("c", model=MODEL) as session:
        writer = ChatWriter(endpoint.url, MODEL, api_key=KEY, idle_seconds=IDLE_SECONDS)
        for number, turn in enumerate(case["turns"]):
            talk.append(said(f"Question {number}? {WORDS * 60}"))
            await session.record(talk[-1:])
            steps[:] = turn
            if answer := await _asked(session, writer, turn):
                # As long as the question, so that there is something to fold soon.
                talk.append(answered(f"{answer.text or '-'} {WORDS * 60}"))
                used = answer.usage.input_tokens if answer.usage else 0
                await session.record(talk[-1:], usage={"input_tokens": used} if used else None)
        events = await session.events()

    assert messages_of(events) == talk
    assert unproved(events) == []
    assert KEY not in json.dumps(talk), "a key was answered"


async def _asked(session: Session, writer: ChatWriter, turn: Sequence[Mapping[str, Any]]) -> Answer | None:
    """Ask until there is an answer, or an error that no smaller request can help."""
    async with asyncio.timeout(STUCK_SECONDS):
        try:
            request = await session.prepare(BUDGET)
        except CannotFitError as error:
            # A provider has named a window that is smaller than a prompt.
            _tells(error)
            return None
        for _ in range(MOST_CLIMBS):
            _sound(request)
            try:
                return await writer.write(_ask(request))
            except ModelError as error:
                _tells(error)
                problem = error
            try:
                smaller = await session.retry(problem)
            except (ModelError, CannotFitError) as error:
                _tells(error)
                if isinstance(error, ModelOverflowError):
                    assert not _has_room(request, turn), "it gave up though there was something to leave out"
                return None
            assert isinstance(problem, ModelOverflowError), "made smaller though nobody said it was too long"
            assert smaller.tokens.counted < request.tokens.counted, "no smaller than before"
            request = smaller
    raise AssertionError("it climbs for ever")


def _ask(request: PreparedRequest) -> Ask:
    prefix = Prefix(format="openai-chat", messages=request.messages, positions=request.positions)
    return Ask(system="", text="Go on.", max_output_tokens=100, prefix=prefix)


def _sound(request: PreparedRequest) -> None:
    wire = format_named("openai-chat")
    decoded = [wire.decode(native, index) for index, native in enumerate(request.messages)]

    assert validate(request.messages, "openai") == [], "not valid"
    assert total_tokens(decoded, counter_for(MODEL)) <= BUDGET, "over budget"


def _tells(error: Exception) -> None:
    """Hold an error to what every error is: words with advice behind them, and no key."""
    text = str(error)

    assert "; " in text, f"no advice: {text}"
    assert text.rpartition("; ")[2].strip(), f"no advice: {text}"
    assert KEY not in text, "a key is in an error"


def _has_room(request: PreparedRequest, turn: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether only one refusal was for its length, and there was more than a prompt to send."""
    told = [step for step in turn if step["does"] == "refuse" and _is_overflow(step)]
    return len(told) == 1 and request.tokens.counted > BUDGET // 2


def _is_overflow(step: Mapping[str, Any]) -> bool:
    refusal = classify(step["text"], status=step["status"])
    return refusal is not None and refusal.kind == "overflow"
