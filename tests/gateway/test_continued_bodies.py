"""A body that continues the last one of its conversation is read as if nothing had come before it."""

import json
from typing import Any, get_args

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.apps.gateway.recording.client_body import LIST_MEMBERS, ClientBody, read_body
from holdfast.wire.answers import Wire

TEXTS = st.sampled_from(["", "a", 'say "messages": [', "\\", "é", "\ud83d", '{"role":"user"}', "]}", "input"])
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]), "content": st.one_of(TEXTS, st.lists(TEXTS, max_size=2))}
)
MEMBERS = st.dictionaries(
    st.sampled_from(["model", "tools", "system", "metadata", "stream", "instructions"]),
    st.one_of(TEXTS, st.none(), st.lists(MESSAGES, max_size=2), st.fixed_dictionaries({"messages": st.lists(TEXTS)})),
)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " : ")])


def said_by(body: ClientBody) -> tuple[Any, ...]:
    lists = [list(map(bytes, one)) for one in (body.system_slices, body.slices, body.leading)]
    return body.wire, body.model, *lists, bytes(body.tools_slice), body.fields


@given(
    wire=st.sampled_from(get_args(Wire)),
    messages=st.lists(MESSAGES, min_size=1, max_size=5),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    first=MEMBERS,
    last=st.lists(MEMBERS, min_size=4, max_size=4),
    separators=SEPARATORS,
)
def test_a_continued_body_says_what_the_whole_body_says(
    *,
    wire: Wire,
    messages: list[Any],
    lengths: list[int],
    first: dict[str, Any],
    last: list[dict[str, Any]],
    separators: tuple[str, str],
) -> None:
    before: ClientBody | None = None

    for length, others in zip(lengths, last, strict=False):
        members = {**first, LIST_MEMBERS[wire]: messages[:length]}
        members |= {name: value for name, value in others.items() if name not in first}
        raw = json.dumps(members, separators=separators, ensure_ascii=length % 2 == 0).encode(errors="surrogatepass")
        try:
            whole = read_body(wire, raw)
        except (ValueError, msgspec.DecodeError):
            continue
        before = read_body(wire, raw, before)
        assert said_by(before) == said_by(whole)


def test_only_what_follows_the_last_body_is_read() -> None:
    body = b'{"model": "m", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]}'
    longer = body[:-2] + b', {"role": "assistant", "content": "b"}], "metadata": {"session_id": "x"}}'
    first = read_body("openai-chat", body)

    second = read_body("openai-chat", longer, first)

    assert second.slices[0] is first.slices[0]
    assert said_by(second) == said_by(read_body("openai-chat", longer))


def test_a_body_with_a_second_list_is_read_as_a_whole() -> None:
    body = b'{"messages": [{"role": "user", "content": "a"}]}'
    doubled = body[:-1] + b', "messages": [{"role": "user", "content": "b"}]}'

    read = read_body("openai-chat", doubled, read_body("openai-chat", body))

    assert list(map(bytes, read.slices)) == [b'{"role": "user", "content": "b"}']
