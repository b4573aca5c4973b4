"""A turn that is over leaves time for the digest that the next request would else wait for."""

from collections.abc import Mapping
from random import Random

import pytest

from holdfast import Session, validate
from holdfast.core.history import events as log
from holdfast.session.maintenance.verify import rebuilt_requests
from holdfast.stores.base import Store
from holdfast.testing.models import ScriptedModel
from holdfast.wire.request import Request

BUDGET, TURNS, READY = 4_000, 24, 11
"""After the last number of turns, the next request would be compacted."""
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def prompt(turn: int) -> dict[str, object]:
    chance = Random(turn)
    return {"role": "user", "content": f"Turn {turn}: " + " ".join(f"w{chance.randrange(900)}" for _ in range(150))}


def answer(turn: int) -> dict[str, object]:
    return {"role": "assistant", "content": f"Answer {turn}: done."}


async def compactions(session: Session) -> list[log.CompactionCompleted]:
    return [event for event in await session.events() if isinstance(event, log.CompactionCompleted)]


async def conversed(session: Session, *, ahead: bool) -> tuple[list[Request], list[int], list[int]]:
    """Return the requests of a chat, the turns that compacted in the request, and those that did after the answer."""
    requests, while_waiting, afterwards = list[Request](), list[int](), list[int]()
    for turn in range(TURNS):
        await session.record([prompt(turn)])
        before = len(await compactions(session))
        requests.append(await session.prepare(BUDGET))
        while_waiting += [turn] * (len(await compactions(session)) - before)
        await session.record([answer(turn)])
        if ahead and await session.compact_ahead():
            afterwards.append(turn)
    return requests, while_waiting, afterwards


async def test_no_request_of_a_chat_waits_for_a_digest_that_was_made_after_the_answer(store: Store) -> None:
    async with Session.open("s", store=store, model="gpt-5") as session:
        requests, while_waiting, afterwards = await conversed(session, ahead=True)
        made = await compactions(session)
        events = await session.events()

    assert while_waiting == []
    assert len(made) == len(afterwards) >= 3
    assert [validate(request.messages, "openai-chat") for request in requests] == [[]] * TURNS
    assert max(request.tokens.total for request in requests) <= BUDGET
    assert [request.is_same and request.is_chained for request in rebuilt_requests(events)] == [True] * TURNS
    assert made[0].reason.startswith(
        "ahead of the next request, with room for a prompt like the last one (346 tokens): "
    )


async def test_it_compacts_before_the_turn_in_which_the_request_would_do_it(store: Store) -> None:
    async with Session.open("without", store=store, model="gpt-5") as session:
        _, without, _ = await conversed(session, ahead=False)
    async with Session.open("with", store=store, model="gpt-5") as session:
        _, _, ahead = await conversed(session, ahead=True)

    assert (ahead[0], without[0]) == (READY - 1, READY)


async def test_the_newest_exchange_stays_whole(store: Store) -> None:
    async with Session.open("s", store=store, model="gpt-5") as session:
        _, _, afterwards = await conversed(session, ahead=True)
        first = afterwards[0]
        kept = (await compactions(session))[0].span

    assert (kept.stop, kept.kept) == (2 * first + 1, (2 * first,))


@pytest.mark.parametrize("policy", ["co-cli", "inkeep", "copilot", "cowagent"])
async def test_a_preset_decides_with_each_request_as_its_system_does(store: Store, policy: str) -> None:
    async with Session.open("s", store=store, model="gpt-5", policy=policy) as session:
        _, _, afterwards = await conversed(session, ahead=True)

    assert afterwards == []


async def test_a_model_that_writes_the_summaries_is_not_forestalled(store: Store) -> None:
    summarizer = ScriptedModel(["Intent: talk."] * TURNS)
    async with Session.open("s", store=store, model="gpt-5", summarizer=summarizer) as session:
        _, _, afterwards = await conversed(session, ahead=True)

    assert afterwards == []


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([], id="nothing was said since"),
        pytest.param([answer(READY - 1), prompt(READY)], id="a prompt waits for its answer"),
        pytest.param([{"role": "assistant", "content": None, "tool_calls": [CALL]}], id="a call waits for its result"),
        pytest.param(
            [
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "seen"},
            ],
            id="a result waits for its answer",
        ),
    ],
)
async def test_nothing_is_compacted_in_the_middle_of_a_turn(store: Store, messages: list[Mapping[str, object]]) -> None:
    async with Session.open("s", store=store, model="gpt-5") as session:
        for turn in range(READY):
            await session.record([prompt(turn)])
            await session.prepare(BUDGET)
            await session.record([answer(turn)] if turn < READY - 1 else messages)
        done = await session.compact_ahead()

        assert (done, await compactions(session)) == (False, [])


async def test_nothing_is_compacted_before_the_first_request(store: Store) -> None:
    async with Session.open("s", store=store, model="gpt-5") as session:
        for turn in range(READY):
            await session.record([prompt(turn), answer(turn)])

        assert not await session.compact_ahead()


async def test_what_another_writer_has_recorded_meanwhile_comes_first(store: Store) -> None:
    async with Session.open("s", store=store, model="gpt-5") as session:
        for turn in range(READY):
            await session.record([prompt(turn)])
            await session.prepare(BUDGET)
            await session.record([answer(turn)])
        async with Session.open("s", store=store, model="gpt-5") as other:
            await other.record([prompt(READY)])
        done = await session.compact_ahead()
        request = await session.prepare(BUDGET)
        events = await session.events()

    assert not done
    assert request.messages[-1] == prompt(READY)
    assert len([event for event in events if isinstance(event, log.CompactionCompleted)]) == 1
    assert [one.is_same and one.is_chained for one in rebuilt_requests(events)] == [True] * (READY + 1)
