"""The agent that answers, built from the settings on first use and again when they change.

The providers' libraries take a second or two to load, and the embedded model takes a little longer to start. Both run
in other threads and processes, so that the user can type meanwhile.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.apps.chat.events import Screen
from holdfast.apps.chat.tools.files import FileTools
from holdfast.apps.settings.build import request_budget
from holdfast.apps.settings.models import bare_model_name
from holdfast.apps.settings.settings import Settings
from holdfast.core.history.events import MAIN
from holdfast.models.base import Summarizer, is_embedded
from holdfast.models.embedded.weights import cached_weights, weights_file
from holdfast.models.errors import as_model_error
from holdfast.session.session import Session

if TYPE_CHECKING:
    from pydantic_ai import Agent

    from holdfast.adapters.pydantic_ai import Holdfast
    from holdfast.apps.chat.agent import AgentPlan
    from holdfast.models.embedded.server import EmbeddedServer


STARTING = "starting the embedded model"


@dataclass(frozen=True, slots=True)
class RequestParts:
    """What a request to the model carries besides the messages, and the address it goes to."""

    system: str
    tools: list[Mapping[str, object]]
    endpoint: str | None
    """None if it is not known before the first request."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """An agent, and the capability that manages its history."""

    agent: "Agent[object, str]"
    capability: "Holdfast"


async def check_answering_model(settings: Settings) -> None:
    """Raise if the model cannot answer, as far as that can be checked without a call."""
    if is_embedded(settings.model):
        weights_file(settings.model)
        return

    def build() -> None:
        from holdfast.apps.chat import agent  # noqa: PLC0415 - loads the model libraries

        agent.build_model(settings.model)

    try:
        await asyncio.to_thread(build)
    except Exception as error:
        raise as_model_error(bare_model_name(settings.model), error) from error


class RuntimeCache:
    """Builds the agent, and owns the server of the embedded model."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._runtime: Runtime | None = None
        self._discarded_count = 0
        """How often the agent was discarded: one that was being built meanwhile is of no use to later turns."""
        self._parts: tuple[Settings, str, AgentPlan, RequestParts] | None = None
        """What requests carry with some settings in a session, before they offer the recall tool."""
        self._server: EmbeddedServer | None = None
        self._stale_servers: list[EmbeddedServer] = []
        """Servers of earlier settings that must still be stopped."""
        self._lock = asyncio.Lock()

    def invalidate(self) -> None:
        """Discard the agent, so that the next `get` builds it again."""
        self._runtime = self._parts = None
        self._discarded_count += 1

    async def get(self, settings: Settings, session: Session, folder: FileTools) -> Runtime:
        """Return the agent for the settings."""
        async with self._lock:
            if self._runtime is not None:
                return self._runtime
            discarded_count = self._discarded_count
            await self._stop_others(settings)
            server = await self._running_server(settings) if is_embedded(settings.model) else None
            built = await asyncio.to_thread(self._build, settings, session, folder, server)
            if discarded_count == self._discarded_count:
                self._runtime = built
            return built

    async def request_parts(self, settings: Settings, session: Session, folder: FileTools) -> RequestParts:
        """Return what the next request carries besides the messages; starts no server.

        The tools of an MCP server are those of the last request, because the server runs only during a turn.
        """
        if self._parts is None or self._parts[:2] != (settings, session.id):
            plan, endpoint = await asyncio.to_thread(self._plan_with_endpoint, settings, session, folder)
            from holdfast.apps.chat.agent import list_tools  # noqa: PLC0415 - loaded by now

            self._parts = (
                settings,
                session.id,
                plan,
                RequestParts(plan.system, await list_tools(plan.toolsets), endpoint),
            )
        plan, parts = self._parts[2:]
        last = session.history.session_state
        prefixes = () if is_embedded(settings.model) else tuple(f"{name}_" for name in settings.mcp)
        served = [tool for tool in last.extras_for(MAIN).tools if str(tool.get("name")).startswith(prefixes)]
        offered = plan.recall_tools if MAIN in last.recall_scopes else []
        return replace(parts, tools=[*parts.tools, *(served if prefixes else []), *offered])

    def summarizer(self, settings: Settings) -> Summarizer | None:
        """Return a summarizer on the running server if the embedded model both answers and summarizes; else None."""
        if not is_embedded(settings.model) or settings.summarization_model != settings.model:
            return None
        from holdfast.models.embedded.server import EmbeddedSummarizer  # noqa: PLC0415 - an extra

        return EmbeddedSummarizer(self._embedded_server(settings))

    async def close(self) -> None:
        """Stop the servers."""
        for server in (*self._stale_servers, self._server):
            if server is not None:
                await server.stop()

    async def _stop_others(self, settings: Settings) -> None:
        """Stop the servers that these settings do not need."""
        if self._server is not None and not self._is_for(self._server, settings):
            self._stale_servers.append(self._server)
        while self._stale_servers:
            await self._stale_servers.pop().stop()

    def _embedded_server(self, settings: Settings) -> "EmbeddedServer":
        from holdfast.models.embedded.server import EmbeddedServer  # noqa: PLC0415 - as above

        if self._server is None or not self._is_for(self._server, settings):
            if self._server is not None:
                self._stale_servers.append(self._server)
            weights = weights_file(settings.model)
            self._server = EmbeddedServer(weights=weights, n_ctx=settings.n_ctx, progress=self._show_download)
        return self._server

    @staticmethod
    def _is_for(server: "EmbeddedServer", settings: Settings) -> bool:
        """Return whether a server runs the model of the settings."""
        is_same = server.n_ctx == settings.n_ctx and is_embedded(settings.model)
        return is_same and server.weights == weights_file(settings.model)

    async def _running_server(self, settings: Settings) -> "EmbeddedServer":
        server = self._embedded_server(settings)
        if not server.is_running:
            if server.weights is not None or cached_weights() is not None:  # otherwise a download says it at its end
                self._screen.show_busy(STARTING)
            try:
                await server.start()
            finally:
                self._screen.show_busy("")
        return server

    def _show_download(self, what: str, done: int, total: int) -> None:
        share = f"{done / total:.0%} of {total / 1e6:.0f} MB" if total else ""
        is_ready = what == "ready"
        self._screen.show_busy(STARTING if is_ready else f"{what} the embedded model, once: {share}")

    def _build(
        self, settings: Settings, session: Session, folder: FileTools, server: "EmbeddedServer | None"
    ) -> Runtime:
        from holdfast.adapters.pydantic_ai import Holdfast  # noqa: PLC0415 - a second to load
        from holdfast.apps.chat import agent  # noqa: PLC0415 - loads the model libraries

        plan = agent.plan_agent(settings, session, folder, self._screen)
        name, budget = bare_model_name(settings.model), request_budget(settings)
        capability = Holdfast(session=session, budget=budget, model=name, recall=bool(plan.recall_tools))
        answering = agent.build_agent(
            agent.build_model(settings.model, server),
            capability,
            plan.toolsets,
            plan.system,
            max_steps=settings.max_steps,
            idle_seconds=settings.idle_seconds,
        )
        return Runtime(answering, capability)

    def _plan_with_endpoint(
        self, settings: Settings, session: Session, folder: FileTools
    ) -> "tuple[AgentPlan, str | None]":
        """Return the plan of an agent, and the address of its model if that runs already."""
        from holdfast.apps.chat.agent import build_model, plan_agent  # noqa: PLC0415 - loads the model libraries

        address = None if is_embedded(settings.model) else build_model(settings.model).base_url
        return plan_agent(settings, session, folder, self._screen), address
