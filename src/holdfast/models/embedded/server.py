"""The embedded model: its engine process, its server on loopback, and its summarizer.

Only this process can use the server: it listens on 127.0.0.1 and requires a key that is new for each start. The model
is small. It speaks the protocol, fills a cache and refuses long requests as large models do, but it does not write good
summaries. Needs the extra `embedded`.
"""

import asyncio
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Self, cast

from holdfast.distribution import install_command
from holdfast.errors import ModelRefusedError, ModelUnreachableError, SettingsError
from holdfast.models.base import EMBEDDED_MODEL, ModelReply, SummaryPrompt
from holdfast.models.embedded import engine
from holdfast.models.embedded.weights import DownloadProgress, fetch_file, openmp_folder
from holdfast.models.openai_compatible import ChatSummarizer

STOP_SECONDS = 5.0
HEALTH_POLL_SECONDS = 0.05
MAX_STDERR_TAIL_BYTES = 2_000


class EngineProcess:
    """Runs `engine.py`. Its methods block, so call them in a thread."""

    def __init__(self, libraries: Path | None = None) -> None:
        """`libraries` is a folder with shared libraries that the system lacks."""
        self._errors = TemporaryFile()  # noqa: SIM115 - as long as the process
        # Threads that spin while they wait would take cores from those that work.
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        if libraries is not None:
            others = os.environ.get("LD_LIBRARY_PATH")
            environment["LD_LIBRARY_PATH"] = f"{libraries}:{others}" if others else str(libraries)
        self.popen = subprocess.Popen(  # noqa: S603 - our own interpreter and script
            [sys.executable, "-P", str(engine.__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
        )
        self._input = cast("IO[bytes]", self.popen.stdin)
        self._output = cast("IO[bytes]", self.popen.stdout)

    @property
    def is_alive(self) -> bool:
        """Whether the process is running."""
        return self.popen.poll() is None

    def wait_until_ready(self, settings: Mapping[str, object]) -> str:
        """Return the address of the server once it has loaded the model and reports that it is healthy."""
        # A process that has exited does not read; its stderr says why.
        with suppress(OSError):
            self._input.write(json.dumps(dict(settings)).encode() + b"\n")
            self._input.flush()
        line = self._output.readline()
        url = str(json.loads(line)["url"]) if line else ""
        while not (url and _is_healthy(url)):
            if not line or not self.is_alive:
                weights = settings.get("weights")
                problem = f"the engine exited with {self.popen.wait()} at {weights}: {self._last_error_line()}"
                remedy = "the file may be damaged, incomplete or newer than the engine; get it again, or another one"
                raise ModelRefusedError(EMBEDDED_MODEL, problem, remedy=remedy)
            time.sleep(HEALTH_POLL_SECONDS)
        return url

    def stop(self) -> None:
        """Close stdin and wait for the process to exit; kill it if it does not."""
        with suppress(OSError):
            self._input.close()
        try:
            self.popen.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self._output.close()
        self._errors.close()

    def _last_error_line(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - MAX_STDERR_TAIL_BYTES))
        lines = self._errors.read().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it gave no reason")


def _is_healthy(url: str) -> bool:
    connection = HTTPConnection(url.removeprefix("http://"), timeout=STOP_SECONDS)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()


DEFAULT_N_CTX = 8_192
START_SECONDS = 60.0
EMBEDDED_SILENCE_SECONDS = 600.0
"""The server is silent while it processes a prompt, at about fifty tokens a second."""


class EmbeddedServer:
    """A llama.cpp server in its own process: `async with EmbeddedServer() as server: server.summarizer()`."""

    def __init__(
        self,
        *,
        weights: Path | None = None,
        n_ctx: int = DEFAULT_N_CTX,
        threads: int | None = None,
        progress: DownloadProgress | None = None,
    ) -> None:
        """`weights` is a GGUF file, ours by default; `n_ctx` is the window in tokens, reply included.

        `threads` is half of the cores by default; `progress` is called during the one-time download.
        """
        if find_spec("xllamacpp") is None or find_spec("httpx") is None:
            raise SettingsError("model", f"the embedded model needs its engine: {install_command('embedded')}")
        if n_ctx < 1:
            raise SettingsError("n_ctx", f"must be at least 1, not {n_ctx}")
        self.n_ctx = n_ctx
        self.weights = weights
        """The GGUF file; None for ours."""
        self._threads = threads or max(1, (os.cpu_count() or 2) // 2)
        self._progress = progress
        self.api_key = secrets.token_urlsafe(24)
        """The only key that the server accepts."""
        self._url: str | None = None
        self._process: EngineProcess | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def is_running(self) -> bool:
        """Whether the process is running and has printed its address."""
        return self._url is not None and self._process is not None and self._process.is_alive

    @property
    def base_url(self) -> str:
        """The address for OpenAI clients."""
        if self._url is None:
            raise ModelUnreachableError(EMBEDDED_MODEL, "the server is not running", "start it first")
        return f"{self._url}/v1"

    @property
    def pid(self) -> int | None:
        """The id of the engine process."""
        return self._process.popen.pid if self._process else None

    def summarizer(self) -> ChatSummarizer:
        """Return a summarizer that uses this server."""
        return ChatSummarizer(
            self.base_url,
            EMBEDDED_MODEL,
            api_key=self.api_key,
            window=self.n_ctx,
            idle_seconds=EMBEDDED_SILENCE_SECONDS,
        )

    async def start(self) -> None:
        """Download the weights if needed, start the process, and wait until it answers."""
        await self.stop()
        weights = self.weights or await fetch_file(progress=self._progress)
        libraries = await openmp_folder()
        settings = {
            "weights": str(weights),
            "name": EMBEDDED_MODEL,
            "key": self.api_key,
            "n_ctx": self.n_ctx,
            "threads": self._threads,
        }
        self._process = process = EngineProcess(libraries)
        try:
            async with asyncio.timeout(START_SECONDS):
                self._url = await asyncio.to_thread(process.wait_until_ready, settings)
        except TimeoutError:
            raise ModelUnreachableError(EMBEDDED_MODEL, f"not ready within {START_SECONDS:g} s") from None
        finally:
            if self._url is None:
                process.popen.kill()
                await self.stop()

    async def stop(self) -> None:
        """Stop the process; a reply in progress is lost."""
        process, self._process, self._url = self._process, None, None
        if process:
            await asyncio.shield(asyncio.to_thread(process.stop))


class EmbeddedSummarizer:
    """The embedded model as a summarizer: starts its server at the first call, and again if it has exited."""

    name = EMBEDDED_MODEL
    prefix_formats = ChatSummarizer.prefix_formats

    def __init__(self, server: EmbeddedServer | None = None) -> None:
        self._server = server or EmbeddedServer()
        self.window = self._server.n_ctx
        self._start_lock = asyncio.Lock()

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        """Return the reply of the model."""
        async with self._start_lock:
            if not self._server.is_running:
                await self._server.start()
        return await self._server.summarizer().write(prompt)

    async def close(self) -> None:
        """Stop the server."""
        await self._server.stop()
