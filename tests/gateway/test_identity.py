"""What a client's words say about the purpose of a request."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.apps.gateway.provider_apis import destination_of
from holdfast.apps.gateway.recording.identity import (
    MIN_ORDER_CHARS,
    AnswerIndex,
    header_of_session,
    is_from_model,
    name_outside_body,
    orders_a_summary,
    session_id_for,
)
from holdfast.core.conversation.json_values import is_utf8
from holdfast.stores.memory import MemoryStore

ORDER = "Your task is to create a detailed summary of the conversation so far, for the next session. "


@pytest.mark.parametrize(
    ("text", "is_order"),
    [
        (ORDER * 40, True),
        (ORDER, False),
        ("Please go on with the parser, and run the tests. " * 80, False),
    ],
    ids=["an order", "too short", "about something else"],
)
def test_a_long_order_for_a_summary_is_told_from_other_prompts(text: str, is_order: bool) -> None:  # noqa: FBT001
    assert (len(text) >= MIN_ORDER_CHARS) == (text is not ORDER)
    assert orders_a_summary({"role": "user", "content": text}) is is_order


def test_a_setting_that_a_client_changes_is_no_answer_of_the_model() -> None:
    assert not is_from_model("openai-responses", {"type": "configuration_update", "reasoning": {"effort": "low"}})


async def test_answers_that_memory_has_no_room_for_are_found_in_the_store() -> None:
    index = AnswerIndex(MemoryStore(), max_entries=1)
    await index.add(b"1", "stored")
    index.remember(b"2", "forgotten")
    index.remember(b"3", "newest")

    found = [await index.sessions_with([link]) for link in (b"3", b"2", b"1")]

    assert found == [(b"3", ["newest"]), None, (b"1", ["stored"])]


@pytest.mark.parametrize(
    ("segment", "header", "session_id"),
    [
        ("b%C3%A5t", "b\u00e5t".encode(), "b\u00e5t"),
        ("b%C3%A5t", b"b%C3%A5t", "b\u00e5t"),
        ("%E6%97%A5", "\u65e5".encode(), "\u65e5"),
        ("b%C3%A5t", "b\u00e5t".encode("latin-1"), "b\u00e5t"),
        ("a%20b", b"a b", "a b"),
        ("a%2Fb", b"a/b", "a%2Fb"),
        ("a%252Fb", b"a%252Fb", "a%252Fb"),
        ("a%0Ab%00", b"a%0Ab%00", "a%0Ab%00"),
        ("%E2%80%AEa", "\u202ea".encode(), "%E2%80%AEa"),
        ("100%", b"100%", "100%25"),
        ("plain-1_2.~", b"plain-1_2.~", "plain-1_2.~"),
    ],
)
def test_a_path_and_a_header_name_the_same_session(segment: str, header: bytes, session_id: str) -> None:
    in_path = destination_of(f"/s/{segment}/v1/messages", "POST", {}).session
    names = [name_outside_body(in_path, {}), name_outside_body(None, {"x-holdfast-session": header.decode("latin-1")})]

    ids = [session_id_for("", name or "") for name in names]

    assert ids == [session_id, session_id]
    again = {"x-holdfast-session": header_of_session(session_id)}
    assert header_of_session(session_id).isascii()
    assert session_id_for("", name_outside_body(None, again) or "") == session_id


@given(st.text(min_size=1, max_size=50), st.text(min_size=1, max_size=50))
def test_two_names_have_two_ids_of_one_printable_line_without_a_slash(one: str, other: str) -> None:
    assume(one != other and is_utf8(one + other))

    ids = [session_id_for("", name) for name in (one, other)]

    assert ids[0] != ids[1]
    assert all(found.isprintable() and "/" not in found for found in ids)
