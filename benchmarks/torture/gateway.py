"""Clients of the gateway that edit their lists, send what no API knows, and leave; providers that break off.

One client keeps a list on one wire and sends it whole with each request, as real clients do, through one of two
gateways on the same store to a provider on a real connection. Whatever it sends: the gateway never fails by itself;
what is not compacted arrives to the byte; what is compacted is valid and within its budget; every word of a list that
can be read, and of every answer that came to its end, is in the log, which stays whole, and so are the bytes of every
request.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, cast
from urllib.parse import unquote

from hypothesis import strategies as st
from starlette.applications import Starlette

from benchmarks.torture.asgi_client import AsgiAnswer, AsgiRequest, ask, quiet_loggers
from benchmarks.torture.fuzzing import mutate_json
from benchmarks.torture.histories import count_tokens
from benchmarks.torture.observed import differing_requests
from benchmarks.torture.odd_values import ODD_MEMBERS, ODD_VALUES, json_bytes
from holdfast import validate
from holdfast.apps.gateway.app import close_gateway, gateway_app
from holdfast.apps.gateway.recording.exchange import ClientRequest, Exchange
from holdfast.apps.gateway.recording.identity import session_id_for
from holdfast.apps.gateway.recording.recorder import Recorder
from holdfast.core.history import events as log
from holdfast.errors import MalformedInputError, RecordingError
from holdfast.session.log.sent_body import sent_body
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import JsonMessage
from holdfast.testing.provider_streams import ProviderReply, event_bytes, stream_events, whole_answer
from holdfast.testing.strategies.every_format import HISTORIES_BY_FORMAT
from holdfast.testing.upstream import FaultyAnswer, FaultyUpstream
from holdfast.wire.answers import Wire, read_answer
from holdfast.wire.formats import format_named

FORMATS: Mapping[Wire, str] = {
    "openai-chat": "openai-chat",
    "openai-responses": "openai-responses",
    "anthropic": "anthropic-messages",
    "gemini": "gemini",
}
PATHS: Mapping[Wire, str] = {
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "anthropic": "/v1/messages?beta=true",
    "gemini": "/v1beta/models/gemini-3-pro:generateContent",
}
LISTS: Mapping[Wire, str] = {
    "openai-chat": "messages",
    "openai-responses": "input",
    "anthropic": "messages",
    "gemini": "contents",
}
MAX_EXACT_DIGITS = 18
EXCUSES = ("not governed: ", "not compacted: ", "over budget: ")
"""What a gateway may say about a request that it has recorded: it cannot be governed, compacting had no effect, or it
is over its budget because nothing fits, or because somebody else is to compact."""
EDITS = ["grow", "grow", "grow", "edit", "drop", "swap", "double", "rewind", "restart", "again"]
REFUSALS = [
    (400, b'{"error":{"message":"maximum context length is 900 tokens","code":"context_length_exceeded"}}'),
    (413, b'{"type":"error","error":{"type":"request_too_large","message":"too large"}}'),
    (429, b'{"error":{"message":"slow"}}'),
    (500, b"<html>oops</html>"),
]
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            ["x-holdfast-budget", "x-holdfast-policy", "x-holdfast-compaction", "x-holdfast-recall", "x-session-id",
             "thread-id", "x-claude-code-session-id", "x-claude-code-agent-id", "content-encoding", "authorization",
             "x-codex-turn-metadata", "anthropic-beta", "traceparent"]
        ),
        st.one_of(
            st.sampled_from(["", "on", "now", "ask", "off", "300", "-1", "1e9", "default", "co-cli", "gzip", "br",
                             "a b", "../..", "%00", '{"request_kind": "compaction"}', "{", "x" * 300]),
            st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=8),
        ),
    ),
    max_size=2,
)  # fmt: skip


def _steps(wire: Wire) -> st.SearchStrategy[list[dict[str, Any]]]:
    history = HISTORIES_BY_FORMAT[FORMATS[wire]]
    return st.lists(
        st.fixed_dictionaries(
            {
                "gateway": st.integers(0, 1),
                "edit": st.sampled_from(EDITS),
                "at": st.integers(0, 8),
                "messages": st.one_of(history, mutate_json(history)),
                "odd": st.one_of(st.none(), st.none(), ODD_VALUES),
                "members": st.one_of(st.just({}), ODD_MEMBERS),
                "headers": st.one_of(st.just([]), HEADERS),
                "cut": st.one_of(st.none(), st.none(), st.none(), st.integers(0, 400)),
                "answer": st.sampled_from(["stream", "whole", "call", "refused", "garbage", "empty"]),
                "status": st.integers(0, len(REFUSALS) - 1),
                "fault": st.sampled_from(["none", "none", "none", "close", "reset"]),
                "fault_at": st.integers(0, 900),
                "leaves_after": st.one_of(st.none(), st.none(), st.none(), st.integers(0, 300)),
            }
        ),
        min_size=1,
        max_size=5,
    )


def _cases(wire: Wire) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "wire": st.just(wire),
            "budget": st.sampled_from([None, 600, 2_000]),
            "recalls": st.booleans(),
            "is_named": st.booleans(),
            "steps": _steps(wire),
        }
    )


STRATEGIES = tuple(_cases(wire) for wire in PATHS)


def check(case: Mapping[str, Any]) -> None:
    """Let a client talk through a gateway."""
    with quiet_loggers(logging.ERROR, "holdfast.gateway"):
        asyncio.run(_converse(case))


async def _converse(case: Mapping[str, Any]) -> None:
    store = MemoryStore()
    async with FaultyUpstream() as upstream:
        upstreams = {name: upstream.url + path for name, path in (("openai", "/v1"), ("anthropic", ""), ("gemini", ""))}
        apps = [
            gateway_app(store=store, budget=case["budget"], offers_recall=case["recalls"], upstreams=upstreams)
            for _ in range(2)
        ]
        client = HostileClient(case, apps, upstream)
        unexpected = [note_unexpected_errors(app.state.recorder) for app in apps]
        try:
            for number, step in enumerate(case["steps"]):
                await client.take(step, number)
                found = [f"{type(error).__name__}: {error}" for errors in unexpected for error in errors]
                assert found == [], found[0]
            await client.check_log()
        finally:
            for app in apps:
                await close_gateway(app)


def note_unexpected_errors(recorder: Recorder) -> list[Exception]:
    """Return a list to which every error is added that recording a request raises, except for its own."""
    found: list[Exception] = []
    receive = recorder.receive

    async def noting(request: ClientRequest, *, seconds: float | None = None) -> Exchange:
        try:
            return await receive(request, seconds=seconds)
        except RecordingError:
            raise
        except Exception as error:
            found.append(error)
            raise

    recorder.receive = noting
    return found


class HostileClient:
    """A client with one list of messages, and what its words were."""

    def __init__(self, case: Mapping[str, Any], apps: Sequence[Starlette], upstream: FaultyUpstream) -> None:
        self.wire: Wire = case["wire"]
        self.is_named, self.recalls = case["is_named"], case["recalls"]
        self.apps, self.upstream = apps, upstream
        self.messages: list[Any] = []
        self.sessions: set[str] = set()
        self.is_small_for_good = False
        """Whether something made the requests smaller from then on: a compaction, or a limit that a provider named."""
        self.words: list[str] = []
        """What must be in the log."""

    async def take(self, step: Mapping[str, Any], number: int) -> None:
        """Edit the list, send it, and check what arrived where."""
        self._edit(step)
        self.messages.append(_prompt(self.wire, f"prompt{number}x"))
        body = json_bytes({"model": "gpt-5", LISTS[self.wire]: self.messages, **step["members"]})
        body = body if step["cut"] is None else body[: step["cut"]]
        odd = step["odd"] if isinstance(step["odd"], str) else ""
        reply = ProviderReply(f"answer{number}x and {odd} words", "read" if step["answer"] == "call" else None)
        self.upstream.answer = answer = self._answer(step, reply, number)
        before = len(self.upstream.requests)
        self.is_small_for_good |= step["answer"] == "refused" or "now" in str(step["headers"])
        headers = [*step["headers"], *([("x-session-id", "talk")] if self.is_named else ())]
        request = AsgiRequest("POST", PATHS[self.wire], headers, body, step["leaves_after"])
        seen = await ask(self.apps[step.get("gateway", 0)], request)

        arrived = self.upstream.requests[before:]
        if not arrived:
            assert 400 <= seen.status < 500, f"not forwarded: {seen.status} {seen.body[:200]!r}"
            if step["leaves_after"] is None:
                json.loads(seen.body)
            return
        assert seen.status in {answer.status, 502, 499, 0}, f"status {seen.status} {seen.body[:200]!r}"
        if seen.status == 0:
            assert answer.fault != "none" or step["leaves_after"] is not None, "no answer"
        self._check_arrived(seen, body, arrived[-1].body)
        is_heard = seen.status == answer.status == 200 and answer.fault == "none" and step["leaves_after"] is None
        self._check_recorded(seen, body, step, f"answer{number}x" if is_heard else "")
        if is_heard and step["answer"] in {"stream", "whole", "call"}:
            self.messages += read_answer(self.wire, [whole_answer(self.wire, reply, number)]).messages

    def _edit(self, step: Mapping[str, Any]) -> None:
        listed, at, new = self.messages, step["at"], [*step["messages"]]
        at = min(at, len(listed))
        match step["edit"]:
            case "edit":
                listed[at : at + len(new)] = new
            case "drop":
                del listed[at : at + 2]
            case "swap":
                listed[at:] = reversed(listed[at:])
            case "double":
                listed += listed[at:]
            case "rewind":
                del listed[at:]
            case "restart":
                listed[:] = new
            case "again":
                pass
            case _:
                listed += new
        if step["odd"] is not None:
            listed.insert(at, _prompt(self.wire, step["odd"]))

    def _answer(self, step: Mapping[str, Any], reply: ProviderReply, number: int) -> FaultyAnswer:
        kind, status, pieces = step["answer"], 200, list[bytes]()
        media = "application/json"
        match kind:
            case "stream":
                media = "text/event-stream"
                pieces = [event_bytes(name, event) for name, event in stream_events(self.wire, reply, number)]
            case "whole" | "call":
                pieces = [json.dumps(whole_answer(self.wire, reply, number)).encode()]
            case "refused":
                status, body = REFUSALS[step["status"]]
                pieces = [body]
            case "garbage":
                pieces = [json_bytes(step["odd"] if step["odd"] is not None else step["members"])]
            case _:
                pass
        return FaultyAnswer(
            status=status,
            headers=[("content-type", media)],
            pieces=pieces,
            framing="chunked" if step["at"] % 2 else "length",
            fault=step["fault"],
            at=step["fault_at"],
        )

    def _check_arrived(self, seen: AsgiAnswer, body: bytes, arrived: bytes) -> None:
        """Check that the provider got the client's bytes, or a valid list within the budget."""
        if seen.headers.get("x-holdfast-compacted") != "1":
            assert seen.status != 200 or arrived == body, "nothing was compacted, but other bytes arrived"
        problem = seen.headers.get("x-holdfast-error", "")
        is_left_to_somebody = problem.startswith("over budget: ") and "and compaction is" in problem
        if "x-holdfast-tokens" not in seen.headers or (problem and not is_left_to_somebody):
            return
        listed, budget = _list_in(arrived, self.wire), int(seen.headers["x-holdfast-budget"])
        if listed is None or not _is_allowed(listed, FORMATS[self.wire]):
            return  # what it says cannot be read here; the gateway reads no reasoning, so it takes one of any shape
        # A compaction that waits for somebody's approval is named, and until then all goes on as it came.
        is_due = is_left_to_somebody or seen.headers.get("x-holdfast-compaction") == "due"
        # The tool that a client asks for by a header changes the body too.
        has_recall = self.recalls or seen.headers.get("x-holdfast-recall") == "on"
        is_same = arrived == body or (has_recall and listed == _list_in(body, self.wire))
        assert (is_due and is_same) or count_tokens(listed, FORMATS[self.wire]) <= budget, "over budget"
        if seen.headers.get("x-holdfast-compacted") == "1" and not has_recall:
            size = count_tokens(_list_in(body, self.wire) or [], FORMATS[self.wire])
            assert self.is_small_for_good or 2 * size > budget, f"compacted {size:,} tokens at a budget of {budget:,}"
            self.is_small_for_good = True
            before = {one.rule for one in validate(_list_in(body, self.wire) or [], FORMATS[self.wire])}
            broken = [one for one in validate(listed, FORMATS[self.wire]) if one.rule not in before]
            assert broken == [], f"compacted, and not valid: {broken}"

    def _check_recorded(self, seen: AsgiAnswer, body: bytes, step: Mapping[str, Any], answer: str) -> None:
        """Check that the request was recorded if it can be read, and remember what must be in the log."""
        problem = seen.headers.get("x-holdfast-error", "")
        if "x-holdfast-session" in seen.headers:
            # The id as the gateway would find it if a client sent the header back.
            self.sessions.add(session_id_for("", unquote(seen.headers["x-holdfast-session"])))
        is_encoded = any(name == "content-encoding" and value.strip() for name, value in step["headers"])
        if not problem or problem.startswith(EXCUSES):
            # A request beside the conversation is not governed, and only its answer is recorded.
            if "x-holdfast-tokens" in seen.headers:
                self.words += _words_of(body, self.wire)
                self.words += [answer] if answer and step["answer"] in {"stream", "whole", "call"} else []
        elif not is_encoded:
            assert not _is_readable(body, self.wire), f"readable, but {problem}"

    async def check_log(self) -> None:
        """Check that the log is whole and has every word."""
        recorder: Recorder = self.apps[0].state.recorder
        texts: list[str] = []
        for session_id in sorted(self.sessions):
            async with recorder.session(session_id) as opened:
                events = await opened.session.events()
                assert opened.session.damage == [], "damaged"
                assert differing_requests(events) == [], "a request differs when it is rebuilt"
                _check_bodies(events)
                texts += [json.dumps(event.native) for event in events if isinstance(event, log.MessageAppended)]
                texts += [event.answer for event in events if isinstance(event, log.SideCallRecorded)]
                texts += [event.task for event in events if isinstance(event, log.DelegationStarted)]
        found = "\n".join(texts)
        missing = [word for word in self.words if word not in found]
        assert missing == [], f"lost: {missing[:3]}"


def _check_bodies(events: list[log.Event]) -> None:
    count = sum(isinstance(event, log.RequestPrepared) for event in events)
    bodies = [sent_body(events, number) for number in range(count)]
    wrong = [number for number, body in enumerate(bodies) if body is not None and not body.is_same]
    assert wrong == [], f"the bytes of request {wrong[0] + 1} differ when they are put together"


def _prompt(wire: Wire, text: object) -> JsonMessage:
    match wire:
        case "gemini":
            return {"role": "user", "parts": [{"text": text}]}
        case "openai-responses":
            return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        case _:
            return {"role": "user", "content": text}


def _list_in(body: bytes, wire: Wire) -> list[Any] | None:
    """Return the list of a body; None if it has none."""
    with suppress(ValueError, RecursionError):
        value = json.loads(body, parse_constant=_refuse_constant, parse_int=_read_whole_number)
        if isinstance(value, dict):
            listed = cast("dict[str, Any]", value).get(LISTS[wire])
            return cast("list[Any]", listed) if isinstance(listed, list) else None
    return None


def _read_whole_number(digits: str) -> float:
    """Return a number as it is, so that it is counted as it is; one that 64 bits cannot hold is not exact."""
    return int(digits) if len(digits) <= MAX_EXACT_DIGITS else float(digits)


def _refuse_constant(name: str) -> float:
    raise ValueError(name)


def _is_readable(body: bytes, wire: Wire) -> bool:
    """Return whether a body is JSON with a list of messages that the wire allows."""
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False  # not JSON, or nothing that Python reads: a number of thousands of digits
    listed = _list_in(body, wire)
    if not listed or not all(isinstance(one, dict) for one in listed):
        return False
    return _is_allowed(listed, FORMATS[wire])


def _is_allowed(listed: Sequence[Mapping[str, Any]], format_name: str) -> bool:
    """Return whether every message can be decoded."""
    reader = format_named(format_name)
    try:
        for index, native in enumerate(listed):
            reader.decode(native, index)
    except MalformedInputError:
        return False
    return True


def _words_of(body: bytes, wire: Wire) -> list[str]:
    """Return the prompts of the client's own in a body."""
    listed = _list_in(body, wire) or []
    said = json.dumps(listed[-1:])
    return [word for word in [f"prompt{number}x" for number in range(9)] if word in said]
