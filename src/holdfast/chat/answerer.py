"""Who answers: the model of the settings with its tools, made when it is first needed and again when they change.

The providers' libraries take a second or two to load and the embedded model a little longer to start. Both happen in
threads and processes of their own, so that a person can type meanwhile.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.app.build import budget_from, memory_from, system_text
from holdfast.app.models import bare_name
from holdfast.app.settings import Settings
from holdfast.app.tables import McpServer
from holdfast.chat.folder import Folder
from holdfast.chat.happenings import Consent, Screen
from holdfast.models.base import Writer
from holdfast.models.embedded.weights import NAME as EMBEDDED
from holdfast.models.refusals import translated
from holdfast.session.memory.looking import MemoryTool
from holdfast.session.session import Session

if TYPE_CHECKING:
    from pydantic_ai import Agent

    from holdfast.adapters.pydantic_ai import Holdfast
    from holdfast.models.embedded.server import EmbeddedServer


@dataclass(frozen=True, slots=True)
class Mind:
    """An agent, and what governs its history."""

    agent: "Agent[object, str]"
    governed: "Holdfast"


class Answerer:
    """Makes whoever answers, and holds what that needs."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._mind: Mind | None = None
        self._server: EmbeddedServer | None = None
        self._former: list[EmbeddedServer] = []
        """Servers of other settings, to be stopped."""
        self._turn = asyncio.Lock()

    def forget(self) -> None:
        """Let it be made anew: something has changed."""
        self._mind = None

    async def ready(self, settings: Settings, session: Session, folder: Folder) -> Mind:
        """Return who answers."""
        async with self._turn:
            if self._mind is None:
                await self._stop_others(settings)
                server = await self._served(settings) if settings.model == EMBEDDED else None
                self._mind = await asyncio.to_thread(self._made, settings, session, folder, server)
            return self._mind

    @staticmethod
    async def check(settings: Settings) -> None:
        """Raise why a model cannot answer, as far as that can be known without asking it."""
        if settings.model == EMBEDDED:
            return

        def made() -> None:
            from holdfast.chat import brain  # noqa: PLC0415 - a second to load

            brain.model_for(settings.model)

        try:
            await asyncio.to_thread(made)
        except Exception as error:
            raise translated(bare_name(settings.model), error) from error

    def writer(self, settings: Settings) -> Writer | None:
        """Return who writes summaries where that is the model which answers, on the same server."""
        if EMBEDDED not in {settings.summarization_model} & {settings.model}:
            return None
        from holdfast.models.embedded.server import EmbeddedWriter  # noqa: PLC0415 - an extra

        return EmbeddedWriter(self._embedded(settings))

    async def close(self) -> None:
        """Stop what was started."""
        for server in (*self._former, self._server):
            if server is not None:
                await server.stop()

    async def _stop_others(self, settings: Settings) -> None:
        """Stop the servers that these settings do not want."""
        if self._server is not None and (settings.model, settings.n_ctx) != (EMBEDDED, self._server.n_ctx):
            self._former.append(self._server)
        while self._former:
            await self._former.pop().stop()

    def _embedded(self, settings: Settings) -> "EmbeddedServer":
        from holdfast.models.embedded.server import EmbeddedServer  # noqa: PLC0415 - as above

        if self._server is None or self._server.n_ctx != settings.n_ctx:
            if self._server is not None:
                self._former.append(self._server)
            self._server = EmbeddedServer(n_ctx=settings.n_ctx, progress=self._fetching)
        return self._server

    async def _served(self, settings: Settings) -> "EmbeddedServer":
        server = self._embedded(settings)
        if not server.is_running:
            self._screen.busy("starting the embedded model")
            try:
                await server.start()
            finally:
                self._screen.busy("")
        return server

    def _fetching(self, what: str, done: int, total: int) -> None:
        share = f"{done / total:.0%} of {total / 1e6:.0f} MB" if total else ""
        self._screen.busy(f"{what} the embedded model, once: {share}")

    def _made(self, settings: Settings, session: Session, folder: Folder, server: "EmbeddedServer | None") -> Mind:
        from holdfast.adapters.pydantic_ai import Holdfast  # noqa: PLC0415 - a second to load
        from holdfast.chat import brain  # noqa: PLC0415 - as above

        # The embedded model cannot use tools: they would only fill its window.
        wanted = () if server is not None else settings.tools
        servers: Mapping[str, McpServer] = {} if server is not None else settings.mcp
        toolsets = brain.toolsets_of(wanted, folder, self._consent, settings.allow, servers)
        if settings.agents and server is None:
            toolsets.append(
                brain.delegation_of(
                    settings.agents,
                    settings.model,
                    budget_from(settings),
                    lambda tools: brain.toolsets_of(tools, folder, self._consent, settings.allow, {}),
                )
            )
        system = brain.system_of(system_text(settings), folder.root, has_tools=bool(toolsets))
        if wanted and (daily := memory_from(settings)) is not None:
            toolsets.append(brain.memory_toolset(MemoryTool(daily)))
        budget, has_tools = budget_from(settings), bool(wanted or servers)
        governed = Holdfast(session=session, budget=budget, model=settings.model, recall=has_tools)
        model = brain.model_for(settings.model, server)
        return Mind(brain.agent_of(model, governed, toolsets, system, settings.max_steps), governed)

    async def _consent(self, command: str) -> Consent:
        return await self._screen.consent(f"Run: {command}", has_always=True)
