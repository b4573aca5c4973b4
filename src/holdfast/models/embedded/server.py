"""The embedded model as a server on loopback, and as a writer.

Only this process can use it: it listens on 127.0.0.1 alone and wants a key that is made anew each time. Needs the
extra `holdfast[embedded]`. The model is small: it is there to speak the protocol, fill a cache and refuse what is
too long, as large ones do, and not to write good summaries.
"""

import asyncio
import os
import secrets
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from holdfast.errors import ModelUnreachableError, SettingsError
from holdfast.models.base import ModelReply, SummaryPrompt
from holdfast.models.embedded.process import EngineProcess
from holdfast.models.embedded.weights import EMBEDDED_MODEL, DownloadProgress, fetch_weights
from holdfast.models.openai_compatible import ChatSummarizer

DEFAULT_N_CTX = 8_192
START_SECONDS = 60.0
EMBEDDED_SILENCE_SECONDS = 600.0
"""A long prompt is read in silence, at some fifty tokens a second."""


class EmbeddedServer:
    """A llama.cpp server in a process of its own: `async with EmbeddedServer() as server: server.writer()`."""

    def __init__(
        self,
        *,
        weights: Path | None = None,
        n_ctx: int = DEFAULT_N_CTX,
        threads: int | None = None,
        progress: DownloadProgress | None = None,
    ) -> None:
        """`weights` is a GGUF file, ours by default; `n_ctx` is the window in tokens, answer included.

        `threads` is half of the machine's cores by default; `progress` hears of the one-time download.
        """
        if find_spec("xllamacpp") is None or find_spec("httpx") is None:
            raise SettingsError(
                "model", "the embedded model needs its engine: pip install '.[embedded]' in Holdfast's folder"
            )
        if n_ctx < 1:
            raise SettingsError("n_ctx", f"must be at least 1, not {n_ctx}")
        self.n_ctx = n_ctx
        self._weights = weights
        self._threads = threads or max(1, (os.cpu_count() or 2) // 2)
        self._progress = progress
        self._key = secrets.token_urlsafe(24)
        self._url: str | None = None
        self._process: EngineProcess | None = None

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        await self.stop()

    @property
    def is_running(self) -> bool:
        """Whether the process is there and has told its address."""
        return self._url is not None and self._process is not None and self._process.is_alive

    @property
    def base_url(self) -> str:
        """Where it listens, as OpenAI's clients want it."""
        if self._url is None:
            raise ModelUnreachableError(EMBEDDED_MODEL, "the server is not running", "start it first")
        return f"{self._url}/v1"

    @property
    def api_key(self) -> str:
        """The key that this server alone accepts."""
        return self._key

    @property
    def pid(self) -> int | None:
        """The process that holds the model."""
        return self._process.pid if self._process else None

    def summarizer(self) -> ChatSummarizer:
        """Return a writer that asks this server."""
        return ChatSummarizer(
            self.base_url, EMBEDDED_MODEL, api_key=self._key, window=self.n_ctx, idle_seconds=EMBEDDED_SILENCE_SECONDS
        )

    async def start(self) -> None:
        """Fetch the weights where they are not here, start the process, and wait until it answers."""
        await self.stop()
        weights = self._weights or await fetch_weights(progress=self._progress)
        settings = {
            "weights": str(weights),
            "name": EMBEDDED_MODEL,
            "key": self._key,
            "n_ctx": self.n_ctx,
            "threads": self._threads,
        }
        self._process = process = EngineProcess()
        try:
            async with asyncio.timeout(START_SECONDS):
                self._url = await asyncio.to_thread(process.wait_until_ready, settings)
        except TimeoutError:
            raise ModelUnreachableError(EMBEDDED_MODEL, f"not ready within {START_SECONDS:g} s") from None
        finally:
            if self._url is None:
                process.kill()
                await self.stop()

    async def stop(self) -> None:
        """End the process; what it was writing is lost."""
        process, self._process, self._url = self._process, None, None
        if process:
            await asyncio.shield(asyncio.to_thread(process.stop))


class EmbeddedSummarizer:
    """The embedded model as a writer: starts its server at the first ask, and again if that has died."""

    prefix_formats = ChatSummarizer.prefix_formats

    def __init__(self, server: EmbeddedServer | None = None) -> None:
        self._server = server or EmbeddedServer()
        self._start_lock = asyncio.Lock()

    @property
    def name(self) -> str:
        """What it is called."""
        return EMBEDDED_MODEL

    @property
    def window(self) -> int | None:
        """The window in tokens; the answer counts too."""
        return self._server.n_ctx

    async def write(self, prompt: SummaryPrompt) -> ModelReply:
        """Return what the model wrote."""
        async with self._start_lock:
            if not self._server.is_running:
                await self._server.start()
        return await self._server.summarizer().write(prompt)

    async def close(self) -> None:
        """Stop the server."""
        await self._server.stop()
