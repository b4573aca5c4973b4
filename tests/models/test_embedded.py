"""A real llama.cpp server: streaming, refusals, a prompt cache, and a process that comes and goes."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from holdfast.core.history.events import Usage
from holdfast.errors import (
    ModelAccessError,
    ModelOverflowError,
    ModelRefusedError,
    ModelUnreachableError,
    SettingsError,
)
from holdfast.models.base import CachedPrefix, SummaryPrompt
from holdfast.models.embedded.server import EmbeddedServer, EmbeddedSummarizer
from holdfast.models.openai_compatible import ChatSummarizer
from holdfast.testing.chat import assistant_message, system_message, user_message

N_CTX = 512
STORY = "The harbour master wrote down every ship: its name, its flag, its cargo, and the hour of its arrival."
LISTENING = "0A"
in_one_loop = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(shallow_weights: Path) -> AsyncGenerator[EmbeddedServer]:
    async with EmbeddedServer(weights=shallow_weights, n_ctx=N_CTX) as running:
        yield running


def ask(text: str, *, tokens: int = 4, prefix: CachedPrefix | None = None) -> SummaryPrompt:
    return SummaryPrompt(system="Be brief.", text=text, max_output_tokens=tokens, prefix=prefix)


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - a process tells nobody
        await asyncio.sleep(0)


def is_open(place: tuple[str, int]) -> bool:
    with socket.socket() as connection:
        connection.settimeout(10)
        return connection.connect_ex(place) == 0


def billed(usage: Usage | None) -> Usage:
    assert usage is not None
    return usage


@in_one_loop
async def test_a_real_model_answers_over_a_real_stream(server: EmbeddedServer) -> None:
    writer = server.summarizer()

    answer = await writer.write(ask("Say hello.", tokens=3))

    assert (writer.name, writer.window, answer.model, answer.is_cut_off) == ("embedded", N_CTX, "embedded", True)
    assert (bool(answer.text), billed(answer.usage).output_tokens) == (True, 3)


def listeners(port: int) -> list[str]:
    """Return the addresses at which anybody listens at a port, as the kernel writes them."""
    tables = [Path("/proc/net") / name for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    places = [(*row[1].split(":"), row[3]) for row in rows]
    return [address for address, at, state in places if int(at, 16) == port and state == LISTENING]


@in_one_loop
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux tells who listens where")
async def test_the_engine_listens_on_this_machine_alone(server: EmbeddedServer) -> None:
    address = urlsplit(server.summarizer().base_url)

    assert address.hostname == "127.0.0.1"
    assert listeners(address.port or 0) == ["0100007F"]


@in_one_loop
async def test_the_same_prompt_gets_the_same_answer_and_is_read_from_the_cache(server: EmbeddedServer) -> None:
    first = await server.summarizer().write(ask(STORY))
    second = await server.summarizer().write(ask(STORY))

    usage, again = billed(first.usage), billed(second.usage)
    whole = usage.input_tokens + usage.cache_read_tokens
    assert second.text == first.text
    assert (again.input_tokens, again.cache_read_tokens) == (1, whole - 1)


@in_one_loop
async def test_after_a_conversation_only_the_prompt_is_not_cached(server: EmbeddedServer) -> None:
    history = [
        system_message("You are a clerk."),
        user_message(STORY),
        assistant_message("Noted."),
        user_message("Which hour?"),
    ]
    conversation = SummaryPrompt(
        system="", text="At dawn?", max_output_tokens=1, prefix=CachedPrefix(format="openai-chat", messages=history)
    )
    before = billed((await server.summarizer().write(conversation)).usage)

    summary = ask("Sum up.", prefix=CachedPrefix(format="openai-chat", messages=history))
    after = billed((await server.summarizer().write(summary)).usage)

    asked = before.input_tokens + before.cache_read_tokens
    assert asked > 50
    assert after.cache_read_tokens > asked - 15
    assert after.input_tokens < 25


@in_one_loop
async def test_a_prompt_in_between_keeps_the_cache_of_a_conversation(server: EmbeddedServer) -> None:
    conversation, other = ask(f"First. {STORY}", tokens=1), ask("A fox and a crow met at the river.", tokens=1)
    before = billed((await server.summarizer().write(conversation)).usage)
    await server.summarizer().write(other)

    after = billed((await server.summarizer().write(conversation)).usage)

    assert (after.input_tokens, after.cache_read_tokens) == (1, before.input_tokens + before.cache_read_tokens - 1)


@in_one_loop
async def test_what_is_too_long_is_refused_with_the_limit(server: EmbeddedServer) -> None:
    with pytest.raises(ModelOverflowError) as raised:
        await server.summarizer().write(ask("word " * 2_000))

    assert (raised.value.model, raised.value.limit, (raised.value.size or 0) > 2_000) == ("embedded", N_CTX, True)


@in_one_loop
async def test_the_server_requires_its_key(server: EmbeddedServer) -> None:
    with pytest.raises(ModelAccessError, match="Invalid API Key"):
        await ChatSummarizer(server.base_url, "embedded", api_key="another").write(ask("Hello?"))


@in_one_loop
async def test_a_cancelled_prompt_frees_the_server_for_the_next(server: EmbeddedServer) -> None:
    task = asyncio.create_task(server.summarizer().write(ask("Count to a thousand.", tokens=400)))
    await asyncio.wait({task}, timeout=0.3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    answer = await asyncio.wait_for(server.summarizer().write(ask("Say hello.", tokens=1)), timeout=60)

    assert task.cancelled()
    assert billed(answer.usage).output_tokens == 1


async def test_a_summarizer_starts_its_server_at_the_first_call_and_again_after_it_has_died(weights: Path) -> None:
    server = EmbeddedServer(weights=weights, n_ctx=256)
    writer = EmbeddedSummarizer(server)

    try:
        assert (writer.name, writer.window, server.pid) == ("embedded", 256, None)
        await writer.write(ask("Hello?", tokens=1))
        first = server.pid or 0
        os.kill(first, signal.SIGKILL)
        await until(lambda: not server.is_running)
        answer = await writer.write(ask("Hello?", tokens=1))

        assert (billed(answer.usage).output_tokens, server.pid != first) == (1, True)
    finally:
        await writer.close()
    assert (server.pid, server.is_running) == (None, False)


async def test_a_server_that_has_stopped_is_unreachable(weights: Path) -> None:
    async with EmbeddedServer(weights=weights, n_ctx=256) as server:
        writer, pid = server.summarizer(), server.pid or 0

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(ModelUnreachableError):
        await writer.write(ask("Hello?"))
    with pytest.raises(ModelUnreachableError, match="the server is not running"):
        server.summarizer()


async def test_an_invalid_model_file_is_reported_with_the_engines_message(tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"not a model")
    server = EmbeddedServer(weights=tmp_path / "no.gguf")

    with pytest.raises(ModelRefusedError, match="the engine exited with"):
        await server.start()

    assert (server.pid, server.is_running) == (None, False)


async def test_cancelling_the_start_ends_the_process(weights: Path) -> None:
    server = EmbeddedServer(weights=weights)
    task = asyncio.create_task(server.start())
    await until(lambda: server.pid is not None)
    pid = server.pid or 0
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_engine_does_not_outlive_a_process_that_is_killed(weights: Path) -> None:
    code = (
        "import asyncio, pathlib, sys; from holdfast.models.embedded.server import EmbeddedServer; "
        f"server = EmbeddedServer(weights=pathlib.Path({str(weights)!r}), n_ctx=256); "
        "asyncio.run(server.start()); print(server.base_url, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        address = urlsplit(parent.stdout.readline())
        place = (address.hostname or "", address.port or 0)
        assert is_open(place)
        parent.kill()

    deadline = time.monotonic() + 60
    while is_open(place):
        assert time.monotonic() < deadline


@pytest.mark.parametrize("n_ctx", [0, -1])
def test_a_window_must_hold_something(n_ctx: int) -> None:
    with pytest.raises(SettingsError, match="must be at least 1"):
        EmbeddedServer(n_ctx=n_ctx)
