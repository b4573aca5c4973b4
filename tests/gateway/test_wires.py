"""What tells the providers' APIs apart."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.apps.gateway.provider_apis import (
    Destination,
    LastEventFinder,
    destination_of,
    has_event_end,
    split_events,
)
from holdfast.apps.gateway.upstream import Upstreams
from holdfast.errors import SettingsError
from tests.gateway.test_faults import CALLS


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [
        ("/v1/chat/completions", {}, ("openai", "openai-chat", "/v1/chat/completions", None)),
        ("/chat/completions", {}, ("openai", "openai-chat", "/chat/completions", None)),
        ("/v1/responses", {}, ("openai", "openai-responses", "/v1/responses", None)),
        ("/v1/responses/compact", {}, ("openai", "openai-responses", "/v1/responses/compact", None)),
        ("/v1/messages", {}, ("anthropic", "anthropic", "/v1/messages", None)),
        ("/v1/messages/batches", {}, ("anthropic", None, "/v1/messages/batches", None)),
        ("/v1/messages/count_tokens", {}, ("anthropic", "anthropic", "/v1/messages/count_tokens", None)),
        ("/v1/models/g-2:generateContent", {}, ("gemini", "gemini", "/v1/models/g-2:generateContent", None)),
        ("/v1beta/models/g:embedContent", {}, ("gemini", None, "/v1beta/models/g:embedContent", None)),
        ("/v1/models", {}, ("openai", None, "/v1/models", None)),
        ("/v1/models", {"anthropic-version": "2023-06-01"}, ("anthropic", None, "/v1/models", None)),
        ("/v1/models", {"x-goog-api-key": "k"}, ("gemini", None, "/v1/models", None)),
        ("/v1/embeddings", {"x-api-key": "k"}, ("openai", None, "/v1/embeddings", None)),
        ("/s/my%20id/v1/messages", {}, ("anthropic", "anthropic", "/v1/messages", "my id")),
        ("/u/local/v1/messages", {}, ("local", "anthropic", "/v1/messages", None)),
        ("/u/local/s/1/v1/responses", {}, ("local", "openai-responses", "/v1/responses", "1")),
        ("/s/1/u/local/v1/responses", {}, ("local", "openai-responses", "/v1/responses", "1")),
        ("/u/ds/anthropic/v1/messages", {}, ("ds", "anthropic", "/anthropic/v1/messages", None)),
        (
            "/v1beta/openai/chat/completions",
            {},
            ("gemini", "openai-chat", "/v1beta/openai/chat/completions", None),
        ),
        ("/v1/threads/t/messages", {}, ("openai", None, "/v1/threads/t/messages", None)),
        ("/s/1", {}, ("openai", None, "/", "1")),
        ("/s/1/s/2/v1/x", {}, ("openai", None, "/s/2/v1/x", "1")),
    ],
)
def test_path_and_headers_tell_where_a_request_goes(
    path: str, headers: dict[str, str], expected: tuple[str, str | None, str, str | None]
) -> None:
    found = destination_of(path, "POST", headers)

    assert (found.upstream, found.wire, found.path, found.session) == expected


@pytest.mark.parametrize(
    ("base", "destination", "url"),
    [
        ("http://h/v1", Destination("x", "openai", None, "/v1/chat/completions", None), "http://h/v1/chat/completions"),
        ("http://h/api/v4/", Destination("x", "openai", None, "/v1/models", None), "http://h/api/v4/models"),
        ("http://h", Destination("x", "openai", None, "/v1/models", None), "http://h/models"),
        ("http://h", Destination("x", "anthropic", None, "/v1/messages", None), "http://h/v1/messages"),
        ("http://h/v1", Destination("x", "anthropic", None, "/v1/messages", None), "http://h/v1/messages"),
        ("http://h:8/p", Destination("x", "gemini", None, "/v1beta/m:go", None), "http://h:8/p/v1beta/m:go"),
        ("http://h", Destination("x", "openai", None, "/v1beta/openai/x", None), "http://h/v1beta/openai/x"),
        ("http://h", Destination("x", "anthropic", None, "/a/v1/messages", None), "http://h/a/v1/messages"),
        ("http://h/v1", Destination("x", "openai", None, "/v1/a%2Fb%20c", None), "http://h/v1/a%2Fb%20c"),
    ],
)
def test_a_base_url_is_the_one_that_the_providers_own_client_would_be_given(
    base: str, destination: Destination, url: str
) -> None:
    assert str(Upstreams({"x": base}).url(destination, "")) == url
    assert str(Upstreams({"x": base}).url(destination, "a=%2B&b")) == f"{url}?a=%2B&b"


@pytest.mark.parametrize("url", ["", "h/v1", "ftp://h", "http://", "http://h/?q=1", "http://user:pw@h/v1"])
def test_a_base_url_that_cannot_work_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(SettingsError, match="local"):
        Upstreams({"local": url})


@given(
    wire=st.sampled_from(sorted(CALLS)),
    cuts=st.lists(st.integers(0, 2_000), max_size=12),
    ends=st.sampled_from([b"\n\n", b"\r\n\r\n"]),
)
def test_the_last_event_of_a_stream_is_found_however_it_is_cut(wire: str, cuts: list[int], ends: bytes) -> None:
    *before, last = [one.replace(b"\n\n", ends) for one in CALLS[wire].stream]
    stream = b"".join([*before, last])
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    finder, held_from, seen = LastEventFinder(wire), None, 0  # pyright: ignore[reportArgumentType]

    for start, stop in pairwise(places):
        at = finder.find(stream[start:stop])
        if at is not None and held_from is None:
            held_from = start + at
        seen = stop
        passed = stream[: held_from if held_from is not None else seen]
        assert not has_event_end(passed[len(stream) - len(last) :])

    assert held_from is not None
    assert held_from >= len(stream) - len(last)


@given(st.lists(st.sampled_from([b"\n", b"\n\n", b"\r\n", b"\r", b"data: 1", b": ping"])).map(b"".join))
def test_events_are_parted_where_the_first_end_is_whatever_the_line_breaks(data: bytes) -> None:
    ends = [b"\r\n\r\n", b"\n\n", b"\r\r"]
    expected: list[bytes] = []
    rest = data
    while places := [(rest.find(end), len(end)) for end in ends if end in rest]:
        place, length = min(places)
        expected, rest = [*expected, rest[: place + length]], rest[place + length :]
    assert split_events(data) == (expected, rest)
