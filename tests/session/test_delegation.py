"""Agents that are sent out: what they see, what comes back, and what the log says of it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast import MalformedInputError, PendingToolCallsError, SettingsError, read_policy, validate
from holdfast.core.history.events import AgentChanged, MessageAppended, SystemChanged, ToolsChanged
from holdfast.core.planning.policy import PRESETS
from holdfast.delegation import DelegateAnswer, Visibility
from holdfast.errors import DelegationEndedError, SessionClosedError, StoreUnavailableError, UnknownScopeError
from holdfast.session.log.leases import HELD_HERE
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.session.session import Session
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message


@pytest.fixture
async def session(store: Store) -> AsyncIterator[Session]:
    async with Session.open("c1", store=store, model="gpt-5") as opened:
        await opened.record(
            [
                user_message("fix the build"),
                tool_call_message("m1"),
                tool_result_message("m1", "top result"),
                assistant_message("I will ask."),
            ]
        )
        yield opened


def texts(messages: Any) -> list[str]:
    """Return what messages say; a call says nothing."""
    return [str(message.get("content") or "") for message in messages]


async def worked(child: Any, name: str, result: str) -> None:
    """Let a delegate call a tool."""
    await child.record([tool_call_message(name), tool_result_message(name, result)])


@pytest.mark.seed("B-19", "B-20", "B-25")
async def test_a_delegate_sees_the_conversation_and_its_own_work(session: Session) -> None:
    async with session.delegate("tester", task="run the tests") as child:
        await worked(child, "t1", "3 failed")

        request = await child.prepare(16_000)

    assert texts(request.messages) == [
        "fix the build",
        "",
        "top result",
        "I will ask.",
        "run the tests",
        "",
        "3 failed",
    ]
    assert validate(request.messages, "openai-chat") == []


@pytest.mark.seed("B-18")
async def test_the_main_agent_sees_what_its_delegates_did(session: Session) -> None:
    async with session.delegate("tester", task="run the tests") as child:
        await worked(child, "t1", "3 failed")
        await child.answer("three tests fail")
    await session.record([user_message("and now?")])

    request = await session.prepare(16_000)

    told = f"[Told to the agent {child.scope}, and not by the user:]\nrun the tests"
    assert texts(request.messages)[4:] == [told, "", "3 failed", "three tests fail", "and now?"]


@pytest.mark.seed("B-18")
@pytest.mark.parametrize(
    ("main_sees", "expected", "recalled"),
    [
        ("answers", ["three tests fail", "and now?"], False),
        ("recall", ["and now?"], True),
        ("nothing", ["and now?"], False),
    ],
)
async def test_the_main_agent_can_be_shown_less(
    session: Session, main_sees: Any, expected: list[str], *, recalled: bool
) -> None:
    async with session.delegate("tester", task="run the tests", main_sees=main_sees) as child:
        await worked(child, "t1", "3 failed")
        await child.answer("three tests fail")
    await session.record([user_message("and now?")])

    request = await session.prepare(16_000)

    assert texts(request.messages)[4:] == expected
    assert ("\n3 failed" in str(await session.recall("failed"))) is recalled


@pytest.mark.parametrize("is_prepared_meanwhile", [False, True])
async def test_an_answer_is_seen_with_its_reasoning_and_no_call_is(*, is_prepared_meanwhile: bool) -> None:
    question = {"role": "user", "content": "Is it ready?"}
    call = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "run", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "3 failed"}
    program = {"type": "program", "id": "prog_1", "call_id": "p1", "code": "run()"}
    program_output = {"type": "program_output", "id": "po_1", "call_id": "p1", "result": "4"}
    answer = {"type": "message", "id": "msg_1", "role": "assistant", "content": [output_text("three tests fail")]}
    work = [
        reasoning("rs_1"),
        call,
        output,
        reasoning("rs_2"),
        program,
        program_output,
        reasoning("rs_3"),
        reasoning("rs_4"),
        answer,
    ]
    async with Session.open("s", model="gpt-5", format="openai-responses") as session:
        await session.record([question, reasoning("rs_0")])
        await session.interrupt()
        async with session.delegate("tester", task="run the tests", main_sees="answers") as child:
            for item in work:
                await child.record([item])
                if is_prepared_meanwhile:
                    await session.prepare(16_000)
            await child.answer("three tests fail")
        await session.record([question])

        request = await session.prepare(16_000)

        assert request.messages == [question, reasoning("rs_3"), reasoning("rs_4"), answer, question]


async def test_a_delegate_of_gemini_does_not_see_the_call_that_it_works_for() -> None:
    def turn(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
        return {"role": role, "parts": list(parts)}

    function, call = {"name": "delegate", "args": {}}, {"name": "delegate", "response": {"output": "It is."}}
    answered = [
        turn("user", {"text": "Is it ready?"}),
        turn("model", {"functionCall": function, "thoughtSignature": "c2ln"}),
        turn("user", {"functionResponse": call}),
        turn("model", {"text": "It is."}),
        turn("user", {"text": "And now?"}),
    ]
    async with Session.open("s", model="gemini-3-pro-preview", format="gemini") as session:
        await session.record([*answered, turn("model", {"functionCall": function, "thoughtSignature": "bmV3"})])
        async with session.delegate("tester", task="run the tests") as child:
            request = await child.prepare(16_000)

            assert request.messages == [*answered, turn("user", {"text": "run the tests"})]
            assert request.receipt.repairs == ()


async def test_a_turn_stays_interrupted_while_others_work_and_a_text_is_attached(session: Session) -> None:
    await session.record([user_message("and this?"), tool_call_message("c9")])
    await session.interrupt()
    interrupted = await session.prepare(16_000)
    async with session.delegate("tester", task="run the tests", main_sees="nothing") as child:
        await worked(child, "t1", "3 failed")
        await child.answer("three tests fail")
    await session.attach("log.txt", "a long text")

    assert (await session.prepare(16_000)).messages == interrupted.messages
    await session.record([tool_call_message("c10")])
    with pytest.raises(PendingToolCallsError):
        await session.prepare(16_000)


async def test_an_open_call_of_a_delegate_is_no_open_call_of_the_main_agent(session: Session) -> None:
    asked = [user_message("and this?"), tool_call_message("m2")]
    await session.record(asked)
    async with session.delegate("tester", task="run the tests") as child:
        await child.record([assistant_message("I run them."), tool_call_message("t1")])
        with pytest.raises(PendingToolCallsError):
            await session.prepare(16_000)
    await session.record([tool_result_message("m2", "it did not answer")])

    request = await session.prepare(16_000)

    told = f"[Told to the agent {child.scope}, and not by the user:]\nrun the tests"
    assert child.state == "silent"
    assert validate(request.messages, "openai-chat") == []
    assert texts(request.messages)[4:8] == ["and this?", "", "it did not answer", told]
    assert texts(request.messages)[8] == "I run them."


def reasoning(item_id: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": item_id, "summary": [], "encrypted_content": f"of {item_id}"}


def output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


async def test_what_the_main_agent_sees_is_the_policys_to_say(store: Store) -> None:
    policy = read_policy('base = "default"\nmain_sees = "nothing"')
    async with Session.open("c2", store=store, model="gpt-5", policy=policy) as session:
        await session.record([user_message("go")])
        async with session.delegate("tester", task="look") as child:
            await child.answer("seen")

        assert (await session.prepare(16_000)).messages == [user_message("go")]


@pytest.mark.seed("B-21")
async def test_two_delegates_at_once_do_not_see_each_other(session: Session) -> None:
    async with session.delegate("a", task="task a") as one, session.delegate("b", task="task b") as other:
        await asyncio.gather(worked(one, "a1", "secret a"), worked(other, "b1", "secret b"))
        asked = [str((await child.prepare(16_000)).messages) for child in (one, other)]

    assert ["secret b" in asked[0], "task b" in asked[0], "secret a" in asked[0]] == [False, False, True]
    assert ["secret a" in asked[1], "task a" in asked[1], "secret b" in asked[1]] == [False, False, True]


async def test_a_delegates_delegate_sees_what_its_sender_did_and_no_other(session: Session) -> None:
    async with session.delegate("a", task="task a") as child, session.delegate("b", task="task b") as other:
        await worked(child, "a1", "result a")
        await worked(other, "b1", "result b")
        async with child.delegate("deep", task="deeper") as grandchild:
            asked = texts((await grandchild.prepare(16_000)).messages)

    told = f"[Told to the agent {child.scope}, and not by the user:]\ntask a"
    assert asked[4:] == [told, "", "result a", "deeper"]
    assert [one.started.parent for one in await session.delegations()] == ["main", "main", child.scope]


async def test_an_answer_comes_back_with_its_sources(session: Session) -> None:
    async with session.delegate("tester", task="run") as child:
        await worked(child, "t1", "3 failed")
        answer = await child.answer("three fail", sources=["#6", "tests/test_a.py"])

    assert answer == DelegateAnswer("three fail", ("#6", "tests/test_a.py"), "tester", child.scope)
    assert str(answer) == "three fail\n\nSources: #6, tests/test_a.py"
    assert child.result == answer


@pytest.mark.parametrize("before", [0, 1, 2])
async def test_an_answer_that_is_the_delegates_last_message_is_recorded_once(store: Store, before: int) -> None:
    async with Session.open("c2", store=store, model="gpt-5") as session:
        await session.record([user_message("look"), assistant_message("I will ask.")][:before])
        async with session.delegate("reader", adds_task_message=False) as child:
            await child.record([assistant_message("It is short.")])
            await child.answer("It is short.")
        async with session.delegate("reader", adds_task_message=False) as child:
            await child.answer("It is short.")

        assert texts(await session.messages_at(before, len(session.history))) == ["It is short."] * 2


async def test_an_answer_may_not_rest_on_what_its_delegate_cannot_have_seen(session: Session) -> None:
    async with session.delegate("a") as other:
        await worked(other, "a1", "secret")
        async with session.delegate("b") as child:
            for source in ("#5", "#99"):
                with pytest.raises(MalformedInputError, match="is no message that 'b:"):
                    await child.answer("so it is", sources=[source])

            await child.answer("so it is", sources=["#2"])


async def test_what_became_of_delegations_is_in_the_log(session: Session, store: Store) -> None:
    async with session.delegate("tester", task="run") as child:
        await child.prepare(16_000)
        await child.answer("done")
    async with session.delegate("reviewer", task="read", sees=Visibility(turns=1, max_tokens=1_000)):
        pass

    async with Session.open("c1", store=store) as again:
        first, second = await again.delegations()

    assert (first.started.agent, first.started.task, first.started.parent, first.state, first.answer) == (
        "tester",
        "run",
        "main",
        "answered",
        "done",
    )
    assert (first.description, first.message_count, first.request_count) == ("4 messages (#0–#3)", 2, 1)
    assert (second.started.agent, second.state, second.error) == ("reviewer", "silent", "it did not answer")
    assert (second.started.visibility["turns"], second.started.visible_spans, second.started.visible_tokens > 0) == (
        1,
        ((0, 4),),
        True,
    )


async def test_a_delegate_that_raises_leaves_a_valid_history(session: Session) -> None:
    async def work() -> None:
        async with session.delegate("tester", task="run") as child:
            await child.record([tool_call_message("t1")])
            raise RuntimeError("no network")

    with pytest.raises(RuntimeError):
        await work()

    assert [(one.state, one.error) for one in await session.delegations()] == [("failed", "RuntimeError: no network")]


async def test_a_long_error_of_a_delegate_is_recorded_with_its_first_500_characters(session: Session) -> None:
    with pytest.raises(RuntimeError):
        async with session.delegate("tester", task="run the tests"):
            raise RuntimeError("x" * 900)

    assert [one.error for one in await session.delegations()] == [f"RuntimeError: {'x' * 486}"]
    await session.record([user_message("go on")])
    request = await session.prepare(16_000)
    assert validate(request.messages, "openai-chat") == []
    assert all(request.is_same for request in rebuilt_requests(await session.events()))


async def test_a_delegate_that_is_stopped_leaves_a_valid_history(session: Session) -> None:
    began, never = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async with session.delegate("tester", task="run") as child:
            await child.record([tool_call_message("t1")])
            began.set()
            await never.wait()

    task = asyncio.create_task(work())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert [one.state for one in await session.delegations()] == ["cancelled"]
    await session.record([user_message("go on")])
    assert validate((await session.prepare(16_000)).messages, "openai-chat") == []


async def test_a_delegate_that_never_returns_is_ended_when_its_time_runs_out(session: Session) -> None:
    async def work() -> None:
        async with session.delegate("tester", task="run", timeout_seconds=0.01):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await work()

    assert [(one.state, one.error) for one in await session.delegations()] == [("timed_out", "its time ran out")]


async def test_two_delegations_that_end_at_once_are_both_recorded(store: Store) -> None:
    async with Session.open("c3", store=store) as one, Session.open("c3", store=store) as other:
        await one.record([user_message("go")])

        async def work(session: Session, name: str) -> None:
            async with session.delegate(name, task=name) as child:
                await child.answer(f"{name} done")

        await asyncio.gather(*(work(session, name) for session in (one, other) for name in ("a", "b", "c")))
        ended = await one.delegations()

    assert sorted(found.answer for found in ended) == ["a done", "a done", "b done", "b done", "c done", "c done"]
    assert {found.state for found in ended} == {"answered"}


async def test_who_has_answered_can_say_no_more(session: Session) -> None:
    async with session.delegate("tester") as child:
        await child.answer("done")

        for saying in (child.record([user_message("x")]), child.prepare(16_000), child.answer("again")):
            with pytest.raises(DelegationEndedError, match="answered"):
                await saying


async def test_who_has_answered_compacts_no_more(session: Session) -> None:
    async with session.delegate("tester") as child:
        for number in range(8):
            await child.record([assistant_message(f"{number}: " + "work " * 200), user_message("go on " * 200)])
        preview = await child.preview(budget=4_000)
        await child.answer("done")
        events = await session.events()

        for compacting in (child.compact(), child.apply_preview(preview)):
            with pytest.raises(DelegationEndedError, match="answered"):
                await compacting
        told = await child.compact_tool().call({})

        assert told == f"[compact_context: nothing was changed: delegation {child.scope!r} has ended (answered)]"
        assert await session.events() == events


@pytest.mark.parametrize(
    ("sees", "expected"),
    [
        (Visibility(), []),
        (Visibility(pins=True), ["pinned rule"]),
        (Visibility(turns=1), ["second", "2"]),
        (Visibility(turns=2), ["first", "1", "second", "2"]),
        (Visibility(pins=True, turns=1), ["pinned rule", "second", "2"]),
        (Visibility(everything=True), ["pinned rule", "so be it", "first", "1", "second", "2"]),
        (Visibility(turns=9, max_tokens=14), ["second", "2"]),
        (Visibility(turns=9, max_tokens=0), []),
    ],
)
async def test_what_a_delegate_sees_is_chosen_by_class(sees: Visibility, expected: list[str]) -> None:
    async with Session.open("c4", model="gpt-5") as session:
        await session.record(
            [user_message("pinned rule"), assistant_message("so be it"), user_message("first"), assistant_message("1")]
        )
        await session.record([user_message("second"), assistant_message("2")])
        await session.pin(0)
        async with session.delegate("x", task="task", sees=sees) as child:
            await session.record([user_message("later")])
            asked = texts((await child.prepare(16_000)).messages)

    assert [text for text in asked if text not in {"task", "later"}] == expected
    assert ("later" in asked) == sees.is_unlimited


async def test_the_ledger_and_the_files_are_told_in_words() -> None:
    async with Session.open("c5", model="gpt-5") as session:
        await session.record(
            [user_message("Never use tabs in src/app.py."), tool_call_message("m1", arguments={"path": "src/app.py"})]
        )
        await session.record([tool_result_message("m1", "print(1)"), assistant_message("Read.")])
        async with session.delegate("x", task="go on", sees=Visibility(ledger=True)) as child:
            told = texts((await child.prepare(16_000)).messages)
        async with session.delegate("y", task="go on", sees=Visibility(files=True)) as other:
            files = texts((await other.prepare(16_000)).messages)

    assert "Never use tabs in src/app.py." in told[0]
    assert told[0].endswith("\n\ngo on")
    assert files == ["[Files that were read or written so far; #n is where.]\nsrc/app.py: read #2\n\ngo on"]


async def test_the_ledger_of_a_delegate_has_nothing_of_other_delegates() -> None:
    async with Session.open("c6", model="gpt-5") as session:
        await session.record([user_message("look at everything")])
        async with session.delegate("a", task="read") as child:
            await child.record(
                [tool_call_message("a1", arguments={"path": "secret_a.py"}), tool_result_message("a1", "x = 1")]
            )
            await child.answer("it is in secret_a.py")
        async with session.delegate(
            "b", task="go", sees=Visibility(ledger=True, files=True, pins=True, turns=5)
        ) as other:
            asked = str((await other.prepare(16_000)).messages)

    assert "secret_a.py" not in asked


async def test_a_delegate_goes_on_from_the_compaction_of_who_sent_it() -> None:
    async with Session.open("c8", model="gpt-5") as session:
        await session.record(
            [user_message("begin"), assistant_message("yes"), user_message("more"), assistant_message("fine")]
        )
        await session.compact()
        compacted = [entry.message for entry in await session.visible_messages()]
        async with session.delegate("b", task="go") as child:
            assert [entry.message for entry in await child.visible_messages()][:-1] == compacted
            assert await session.undo()
            assert [entry.message for entry in await child.visible_messages()][:-1] == compacted


async def test_nothing_from_before_a_clear_reaches_a_delegate(session: Session) -> None:
    await session.clear()
    for sees in (Visibility(everything=True), Visibility(pins=True, ledger=True, files=True, turns=9)):
        async with session.delegate("x", task="go", sees=sees) as child:
            assert (await child.prepare(16_000)).messages == [user_message("go")]


async def test_a_delegation_is_no_change_of_context_that_undo_takes_back(session: Session) -> None:
    await session.compact()
    async with session.delegate("x", task="go") as child:
        await child.answer("done")

    assert await session.undo()
    assert texts(entry.message.native for entry in await session.visible_messages())[:1] == ["fix the build"]
    assert not await session.undo()


async def test_a_list_that_is_sent_again_knows_nothing_of_delegates(session: Session) -> None:
    mine = [
        user_message("fix the build"),
        tool_call_message("m1"),
        tool_result_message("m1", "top result"),
        assistant_message("I will ask."),
    ]
    async with session.delegate("x", task="go") as child:
        await child.answer("done")

    assert await session.sync([*mine, user_message("thanks")]) == range(6, 7)
    assert await session.messages() == [*mine, user_message("thanks")]


async def test_what_delegates_are_shown_survives_a_snapshot(session: Session, store: Store) -> None:
    async with session.delegate("x", task="go", sees=Visibility(turns=0), main_sees="nothing") as child:
        await session.record([user_message(f"message {number}") for number in range(120)])
        async with Session.open("c1", store=store, model="gpt-5") as again:
            assert (await again.prepare(16_000, scope=child.scope)).messages == [user_message("go")]
            assert "go" not in texts((await again.prepare(16_000)).messages)


async def test_a_delegate_at_work_has_ended_in_a_fork_and_goes_on_in_the_session(session: Session) -> None:
    async with session.delegate("tester", task="run the tests") as child:
        await child.record([tool_call_message("t1")])
        fork = await session.fork("f")
        compacted = await fork.compact()
        await child.record([tool_result_message("t1", "3 failed")])
        await child.answer("3 failed")

    assert fork.history.session_state.running_delegates == {}
    assert [(one.state, one.error) for one in await fork.delegations()] == [
        ("abandoned", "the session was forked before its answer")
    ]
    assert "Agents at work" not in "".join(compacted.replacement)
    assert [(one.state, one.answer) for one in await session.delegations()] == [("answered", "3 failed")]
    await fork.close()


async def test_a_delegation_whose_process_is_gone_is_ended_by_who_opens_the_session_next(store: Store) -> None:
    session = await Session.open("c9", store=store)
    delegating = session.delegate("x", task="go")
    child = await delegating.__aenter__()
    HELD_HERE.clear()
    await session.close()

    async with Session.open("c9", store=store) as again:
        ended = await again.delegations()

    assert [(one.started.scope, one.state) for one in ended] == [(child.scope, "abandoned")]
    with pytest.raises(SessionClosedError):
        await delegating.__aexit__(None, None, None)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"agent": ""}, "agent"),
        ({"agent": 3}, "agent"),
        ({"task": None}, "task"),
        ({"sees": "everything"}, "sees"),
        ({"main_sees": "some"}, "main_sees"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"timeout_seconds": True}, "timeout_seconds"),
        ({"timeout_seconds": 10**400}, "timeout_seconds"),
        ({"timeout_seconds": float("inf")}, "timeout_seconds"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds"),
    ],
)
async def test_an_errand_that_cannot_be_is_named(session: Session, given: dict[str, Any], named: str) -> None:
    errand: dict[str, Any] = {"agent": "x", **given}

    with pytest.raises(SettingsError) as refused:
        session.delegate(errand.pop("agent"), **errand)

    assert refused.value.setting == named


@pytest.mark.parametrize("wrong", [{"turns": -1}, {"turns": True}, {"max_tokens": 1.5}, {"pins": 1}])
def test_a_choice_of_what_to_see_that_cannot_be_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=f"sees.{next(iter(wrong))}"):
        Visibility(**wrong)


async def test_sources_are_a_list(session: Session) -> None:
    async with session.delegate("x") as child:
        with pytest.raises(MalformedInputError, match="must be a list"):
            await child.answer("so", sources="#1")


@pytest.mark.seed("B-1")
async def test_a_transfer_between_agents_is_part_of_the_history(session: Session) -> None:
    await session.transfer("billing", message="The order is 4711.")
    await session.record([assistant_message("Hello from billing.")], agent="billing")
    await session.transfer("support")

    events = await session.events()

    assert [event for event in events if isinstance(event, AgentChanged)] == [
        AgentChanged(name="billing", summary="The order is 4711."),
        AgentChanged(name="support", previous="billing"),
    ]


@pytest.mark.seed("B-1")
@pytest.mark.parametrize("policy", PRESETS)
async def test_what_an_agent_says_when_it_hands_over_is_in_the_next_request_and_nobodys_word(policy: str) -> None:
    async with Session.open("c1", policy=policy) as session:
        await session.record([user_message("Where is my parcel?")])
        await session.transfer("billing", message="Never charge order 4711 twice.")
        request = await session.prepare(8_000)
        messages, wishes = await session.messages(), list(session.history.ledger("main", 2).constraints)

    note = (
        "[The conversation was handed over to billing, with this message from the agent before:]\n"
        "Never charge order 4711 twice."
    )
    assert [message["content"] for message in request.messages] == ["Where is my parcel?", note]
    assert (messages, wishes) == ([user_message("Where is my parcel?")], [])


class FullForMessages(MemoryStore):
    """A store that has no room for a message."""

    is_full = False

    async def append(self, session: str, records: Any, **options: Any) -> int:
        if self.is_full and any(record["type"] == MessageAppended.KIND for record in records):
            raise StoreUnavailableError("store", "the disk is full")
        return await super().append(session, records, **options)


async def test_a_transfer_whose_message_cannot_be_stored_has_not_happened_and_can_be_repeated() -> None:
    store = FullForMessages()
    async with Session.open("c1", store=store) as session:
        await session.record([user_message("Where is my parcel?")])
        store.is_full = True
        with pytest.raises(StoreUnavailableError):
            await session.transfer("billing", message="The order is 4711.")
        store.is_full = False
        await session.transfer("billing", message="The order is 4711.")
        events = await session.events()

    changes = [event for event in events if isinstance(event, AgentChanged)]
    assert (len(events), changes) == (3, [AgentChanged(name="billing", summary="The order is 4711.")])
    assert [hit.position for hit in await store.search("4711")] == [1]


async def test_each_agent_has_a_system_text_and_tools_of_its_own(session: Session) -> None:
    mine, theirs = [{"name": "run"}], [{"name": "look"}]
    await session.record([user_message("go")])
    async with session.delegate("a", task="a", main_sees="nothing") as child:
        for _ in range(3):
            await session.prepare(16_000, system="Be brief.", tools=mine)
            await child.prepare(16_000, system="Be long.", tools=theirs)

        events = await session.events()

    changes = [event for event in events if isinstance(event, SystemChanged | ToolsChanged)]
    assert changes == [
        SystemChanged(text="Be brief."),
        ToolsChanged(tools=({"name": "run"},)),
        SystemChanged(text="Be long.", scope=child.scope),
        ToolsChanged(tools=({"name": "look"},), scope=child.scope),
    ]
    rebuilt = list(rebuilt_requests(events))
    assert [(one.system, one.is_same) for one in rebuilt] == [("Be brief.", True), ("Be long.", True)] * 3


async def test_a_delegate_says_who_sent_it_what_for_and_how_it_stands(session: Session) -> None:
    async with session.delegate("tester", task="run the tests") as child:
        before = (child.parent, child.task, child.state)
        await child.answer("all green")

    assert (before, child.state) == (("main", "run the tests", "running"), "answered")


@pytest.mark.parametrize("is_refused", [True, False])
async def test_a_delegate_whose_request_was_refused_sends_a_smaller_one_and_may_compact_by_itself(
    session: Session,
    is_refused: bool,  # noqa: FBT001
) -> None:
    async with session.delegate("tester", task="run the tests") as child:
        for number in range(12):
            await worked(child, f"t{number}", "3 failed " * 60)
        first = await child.prepare(16_000)

        if is_refused:
            smaller = await child.retry("prompt is too long: 2000 tokens > 1000 maximum", status=400)
        else:
            await child.compact()
            smaller = await child.prepare(16_000)

    assert smaller.tokens.total < min(1_000, first.tokens.total)


async def test_an_error_in_a_delegation_that_cannot_be_recorded_is_raised_with_a_note() -> None:
    class Full(MemoryStore):
        is_full = False

        async def append(self, *args: Any, **options: Any) -> int:
            if self.is_full:
                raise StoreUnavailableError("memory", "the disk is full")
            return await super().append(*args, **options)

    store = Full()
    session: Session = await Session.open("c1", store=store, model="gpt-5")

    async def fail() -> None:
        async with session.delegate("explorer", task="look around"):
            store.is_full = True
            raise ValueError("nothing there")

    with pytest.raises(ValueError, match="nothing there") as raised:
        await fail()

    assert raised.value.__notes__ == ["Holdfast could not record how the delegation ended: memory: the disk is full"]


async def test_an_ended_delegation_goes_on_where_it_was_after_its_key_is_given(store: Store) -> None:
    async with Session.open("c1", store=store) as first:
        async with first.delegate("tester", task="run the tests", key="t-1", sees=Visibility()) as child:
            await child.answer("3 failed")
        with pytest.raises(UnknownScopeError, match=r"^key: no delegation has the key 't-2'; pass one of 't-1'$"):
            await first.resume_delegate("t-2").__aenter__()
    async with Session.open("c1", store=store) as later:
        async with later.resume_delegate("t-1") as again:
            await again.record([user_message("and now?")])
            running = [(one.state, one.answer) for one in await later.delegations()]
            await again.answer("none")
        [delegation] = await later.delegations()

        assert (again.scope, again.agent, again.parent) == (child.scope, "tester", "main")
        assert texts(await later.messages(scope=child.scope)) == ["run the tests", "3 failed", "and now?", "none"]
        assert (running, delegation.state, delegation.answer) == ([("running", "")], "answered", "none")


async def test_a_delegation_that_another_session_has_resumed_is_not_ended_by_the_first(store: Store) -> None:
    one, other = Session.open("c1", store=store), Session.open("c1", store=store)
    async with one as first, other as second:
        context = first.delegate("tester", task="run the tests", key="t-1")
        child = await context.__aenter__()
        async with second.resume_delegate("t-1") as resumed:
            await first.refresh()
            owned = [one.is_running_here for one in (child, resumed)]
            await context.__aexit__(None, None, None)
            states = [one.state for one in await second.delegations()]
            await resumed.answer("3 failed")

        assert (owned, states) == ([False, True], ["running"])
        assert [(one.state, one.answer) for one in await first.delegations()] == [("answered", "3 failed")]
