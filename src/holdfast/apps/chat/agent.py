"""The model that answers, with its tools, as a pydantic-ai agent whose history the session manages.

Only this module and `turn` import pydantic-ai and the providers' libraries, which take a second or two to load: the
loop loads them in a thread while the user types the first prompt.
"""

import asyncio
import os
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote, urlsplit

from openai import AsyncOpenAI
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models import Model, infer_model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIChatModelSettings
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, WrapperToolset
from pydantic_ai.toolsets.abstract import ToolsetTool
from pydantic_ai.usage import RunUsage

from holdfast.adapters.pydantic_ai import Holdfast, SubAgent, delegation_toolset
from holdfast.adapters.pydantic_ai.tools import RECALL_DEFINITION, tool_json
from holdfast.apps.chat.events import ChangeProposed, ChatNotice, Consent, Screen
from holdfast.apps.chat.tools.editing import ALWAYS_ASKED_REASON, EditTools, FileChange
from holdfast.apps.chat.tools.files import FileTools
from holdfast.apps.chat.tools.plan import PlanTools
from holdfast.apps.chat.tools.shell import AskConsent, ShellTool
from holdfast.apps.chat.tools.skills import SkillTool, find_skills, skill_folders
from holdfast.apps.settings.build import budget_from, memory_from, read_system_text
from holdfast.apps.settings.models import bare_model_name
from holdfast.apps.settings.settings import Settings
from holdfast.apps.settings.tables import AgentSettings, McpServer
from holdfast.core.planning.situation import Budget
from holdfast.distribution import install_command
from holdfast.errors import SettingsError, redact_text
from holdfast.models.base import is_embedded
from holdfast.models.open import ModelEndpoint, parse_endpoint
from holdfast.session.memory.search_tool import MemorySearchTool
from holdfast.session.session import Session

if TYPE_CHECKING:
    from holdfast.models.embedded.server import EmbeddedServer

MCP_START_SECONDS = 30
"""How long an MCP server may take to start, as one that `npx` or `uvx` installs first, and to list its tools."""
CLOSING_INSTRUCTION = (
    "You have used all {steps} steps of this turn, and no tool can be called any more. Answer now with what you have:"
    " what was done, what was found, and what is still open."
)


@dataclass
class StepLimit(AbstractCapability[object]):
    """Limits the steps of a turn; in the last step the model must answer without tools.

    The tools stay in the request, so that the provider's cached prefix remains valid, but they cannot be called.
    """

    max_steps: int

    def get_model_settings(self):  # noqa: ANN201 - pydantic-ai calls the returned function for each step
        """Return settings that forbid tool calls in the last step."""
        return self._settings

    def get_instructions(self):  # noqa: ANN201 - as above
        """Return the instruction for the last step: answer now."""
        return self._instructions

    def _settings(self, ctx: RunContext[object]) -> ModelSettings:
        return ModelSettings(tool_choice="none") if self._is_over(ctx) else ModelSettings()

    def _instructions(self, ctx: RunContext[object]) -> str | None:
        return CLOSING_INSTRUCTION.format(steps=self.max_steps) if self._is_over(ctx) else None

    def _is_over(self, ctx: RunContext[object]) -> bool:
        return ctx.usage.requests >= self.max_steps


EMBEDDED_ANSWER_TOKENS = 1_024
EMBEDDED_SAMPLING: Mapping[str, float] = MappingProxyType(
    {"min_p": 0.05, "repeat_penalty": 1.1, "repeat_last_n": 256, "dry_multiplier": 0.8, "dry_allowed_length": 3}
)
"""A small model that always takes the likeliest word soon repeats itself; these settings of llama.cpp prevent that."""
MCP_SETTINGS_VARIABLE = "FASTMCP_ENV_FILE"
DEFAULT_SYSTEM_TEXT = "You are a helpful assistant. Answer in Markdown, in the language of the user."
DELEGATE_SYSTEM_TEXT = "You work on a task that another agent gives you. Answer with what it asks for, and no more."
FOLDER_SYSTEM_TEXT = " You work in the folder {folder}; look before you answer questions about it."


def build_model(name: str, server: "EmbeddedServer | None" = None) -> Model:
    """Return a model by name: the embedded one on its server, one of an endpoint, or any model of pydantic-ai."""
    if server is not None:
        provider = OpenAIProvider(base_url=server.base_url, api_key=server.api_key)
        # The embedded model is small and would write until its window is full.
        limit = min(EMBEDDED_ANSWER_TOKENS, server.n_ctx // 4)
        settings = OpenAIChatModelSettings(max_tokens=limit, temperature=0.6, extra_body=EMBEDDED_SAMPLING)
        return OpenAIChatModel(name, provider=provider, settings=settings)
    if (endpoint := parse_endpoint(name)) is not None:
        return OpenAIChatModel(endpoint.name, provider=_endpoint_provider(endpoint))
    return infer_model(name)


def _endpoint_provider(endpoint: ModelEndpoint) -> OpenAIProvider:
    """Return the provider of an endpoint. The address is recorded with each answer, so no password stays in it."""
    parts, key = urlsplit(endpoint.url), endpoint.api_key or "none"
    user, has_user, place = parts.netloc.rpartition("@")
    if not has_user:
        return OpenAIProvider(base_url=endpoint.url, api_key=key)
    headers = {"Authorization": f"Basic {b64encode(unquote(user).encode()).decode()}"}
    address = parts._replace(netloc=place).geturl()
    return OpenAIProvider(openai_client=AsyncOpenAI(base_url=address, api_key=key, default_headers=headers))


def build_agent(
    model: Model,
    capability: Holdfast,
    toolsets: Sequence[AbstractToolset[object]],
    system: str,
    *,
    max_steps: int | None,
    idle_seconds: int | None,
) -> Agent[object, str]:
    """Return the agent that answers."""
    limit: list[AbstractCapability[object]] = [] if max_steps is None else [StepLimit(max_steps)]
    settings = ModelSettings(cache=True)  # some providers cache only on request
    if idle_seconds is not None:
        settings["timeout"] = idle_seconds
    return Agent(
        model, instructions=system, model_settings=settings, toolsets=toolsets, capabilities=[capability, *limit]
    )


@dataclass
class OptionalToolset(WrapperToolset[object]):
    """The tools of a server; if the server cannot start, there are none, and the turn goes on without them."""

    name: str
    report: Callable[[str], None]
    """Receives each new problem of the server."""
    settings_problem: str = ""
    """Why the settings of the server cannot work."""
    stop: Callable[[], Awaitable[None]] | None = None
    """Ends the program of the server, which otherwise keeps running between turns."""
    _is_silent: bool = field(default=False, init=False)
    """Whether the server did not say which tools it has, as one that is still busy with a call of an earlier turn."""
    _reported: str = field(default="", init=False)
    _is_running: bool = field(default=False, init=False)

    async def __aenter__(self) -> Self:
        """Start the server."""
        if self.settings_problem:
            self._report(self.settings_problem)
            return self
        try:
            if self._is_silent and self.stop is not None:
                await self.stop()
            self._is_silent = False
            await self.wrapped.__aenter__()
            self._is_running = True
        except Exception as error:  # noqa: BLE001 - a server may fail in any way
            self._report(str(error) or type(error).__name__)
        return self

    async def __aexit__(self, *args: object) -> bool | None:
        """Stop the server, if it runs."""
        is_running, self._is_running = self._is_running, False
        return await self.wrapped.__aexit__(*args) if is_running else None

    async def get_tools(self, ctx: RunContext[object]) -> dict[str, ToolsetTool[object]]:
        """Return the tools of the server, if it runs."""
        if not self._is_running or self._is_silent:
            return {}
        try:
            async with asyncio.timeout(MCP_START_SECONDS):
                return await self.wrapped.get_tools(ctx)
        except asyncio.CancelledError:
            self._is_silent = True
            raise
        except TimeoutError:
            self._is_silent = True
            self._report(f"it did not list its tools within {MCP_START_SECONDS} s")
            return {}
        except Exception as error:  # noqa: BLE001 - as above
            self._report(str(error) or type(error).__name__)
            return {}

    def _report(self, problem: str) -> None:
        before, self._reported = self._reported, problem
        if problem != before:
            cause = redact_text(" ".join(problem.split()))
            self.report(
                f"the MCP server {self.name!r} cannot start: {cause:.200}; the turn goes on without its tools."
                f" Check [mcp.{self.name}] in the settings, or remove it"
            )


def build_toolsets(
    tools: Sequence[str],
    folder: FileTools,
    ask: AskConsent,
    allowed: Sequence[str],
    servers: Sequence[AbstractToolset[object]] = (),
    *,
    variables: Sequence[str] = (),
    edits: EditTools | None = None,
) -> list[AbstractToolset[object]]:
    """Return the tools that the settings name."""
    shell = ShellTool(folder.root, ask, allowed, variables)
    found: list[AbstractToolset[object]] = []
    if "read" in tools:
        found.append(FunctionToolset([folder.list_files, folder.read_file, folder.search_files]))
    elif folder.attachments:
        found.append(FunctionToolset([folder.read_file]))
    if "edit" in tools and edits is not None:
        found.append(FunctionToolset([edits.edit_file, edits.write_file]))
    if "run" in tools:
        found.append(FunctionToolset([shell.run_command]))
    return [*found, *servers]


async def list_tools(toolsets: Sequence[AbstractToolset[object]]) -> list[Mapping[str, object]]:
    """Return the tools of an agent as its requests record them."""
    ctx = RunContext[object](deps=None, model=TestModel(), usage=RunUsage())
    return [tool_json(tool.tool_def) for one in toolsets for tool in (await one.get_tools(ctx)).values()]


def memory_toolset(tool: MemorySearchTool) -> AbstractToolset[object]:
    """Return the tool with which a model searches the notes of earlier conversations."""

    async def search(**arguments: object) -> str:
        return await tool.call(arguments)

    return FunctionToolset([Tool.from_schema(search, tool.name, tool.description, dict(tool.parameters))])


def _sub_agent(
    named: AgentSettings, model: str, budget: Budget | None, toolsets: Sequence[AbstractToolset[object]]
) -> SubAgent:
    limit: list[AbstractCapability[object]] = [] if named.max_steps is None else [StepLimit(named.max_steps)]
    model_name = named.model or model
    made = Agent[object, str](
        build_model(model_name),
        instructions=named.instructions or DELEGATE_SYSTEM_TEXT,
        toolsets=toolsets,
        capabilities=limit,
    )
    return SubAgent(
        agent=made,
        description=named.description,
        sees=named.sees,
        main_sees=named.main_sees,
        timeout_seconds=named.timeout_seconds,
        budget=None if named.model else budget,
        # One more step for the closing answer, and one in case the model calls a tool in it nevertheless.
        max_steps=None if named.max_steps is None else named.max_steps + 2,
        model=bare_model_name(model_name),
    )


def mcp_toolset(server: McpServer, report: Callable[[str], None]) -> OptionalToolset:
    """Return the tools of a server; `report` receives the problem if it cannot start."""
    try:
        toolset, stop = _mcp_toolset(server)
    except SettingsError as error:
        return OptionalToolset(FunctionToolset(), server.name, report, error.problem)
    return OptionalToolset(toolset, server.name, report, stop=stop)


def _mcp_toolset(server: McpServer) -> tuple[AbstractToolset[object], Callable[[], Awaitable[None]] | None]:
    """Return the tools of a server, and what ends its program if it has one here."""
    # FastMCP reads its settings when it is imported, by default from `.env` in the working folder: an untrusted file.
    settings_file = os.environ.setdefault(MCP_SETTINGS_VARIABLE, os.devnull)
    try:
        from fastmcp.client.transports import StdioTransport  # noqa: PLC0415 - an extra, and slow to load
        from pydantic_ai.mcp import MCPToolset  # noqa: PLC0415 - as above
    except ImportError:
        raise SettingsError(f"mcp.{server.name}", f"needs the client: {install_command('mcp')}") from None
    finally:
        if settings_file == os.devnull:
            del os.environ[MCP_SETTINGS_VARIABLE]
    server = server.with_environment(os.environ)
    if server.url:
        served = MCPToolset[object](server.url, id=server.name, headers=dict(server.headers) or None)
        return served.prefixed(server.name), None
    # A server's standard error would garble the screen.
    transport = StdioTransport(server.command or "", list(server.args), env=dict(server.env), log_file=Path(os.devnull))
    toolset = MCPToolset[object](transport, id=server.name, init_timeout=MCP_START_SECONDS)
    return toolset.prefixed(server.name), transport.disconnect


def build_system_text(text: str | None, folder: Path, *, has_tools: bool) -> str:
    """Return the user's system text, or a short default."""
    if text is not None:
        return text
    return DEFAULT_SYSTEM_TEXT + (FOLDER_SYSTEM_TEXT.format(folder=folder) if has_tools else "")


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """The tools and the system text of an agent."""

    toolsets: list[AbstractToolset[object]]
    system: str
    recall_tools: list[Mapping[str, object]]
    """The recall tool, which requests offer once something is left out; empty if the agent may not have it."""


def plan_agent(settings: Settings, session: Session, folder: FileTools, screen: Screen) -> AgentPlan:
    """Return the tools and the system text that the settings name; questions and problems go to the screen."""
    # Tool calls run at the same time, also those of sub-agents. A question is shown after the answer to the one before.
    question_lock = asyncio.Lock()

    async def ask_consent(command: str) -> Consent:
        async with question_lock:
            return await screen.ask_consent(f"Run: {command}", has_always=True)

    async def ask_change(change: FileChange) -> Consent:
        async with question_lock:
            screen.show(ChangeProposed(change.path, change.diff))
            if change.is_always_asked:
                return await screen.ask_consent(f"{change}; {ALWAYS_ASKED_REASON}")
            return await screen.ask_consent(f"{change}; always means every change", has_always=True)

    def toolsets_named(
        names: Sequence[str], servers: Sequence[AbstractToolset[object]] = ()
    ) -> list[AbstractToolset[object]]:
        return build_toolsets(
            names, folder, ask_consent, settings.allow, servers, variables=settings.pass_env, edits=edits
        )

    # The embedded model cannot use tools: they would only fill its window.
    takes_tools = not is_embedded(settings.model)
    tools = settings.tools if takes_tools else ()
    named = settings.mcp.values() if takes_tools else ()
    servers = [mcp_toolset(one, lambda problem: screen.show(ChatNotice(problem, "warning"))) for one in named]
    edits = EditTools(folder, ask_change, is_accepted=settings.accept_edits, settings=settings)
    toolsets = toolsets_named(tools, servers)
    if "plan" in tools:
        plan = PlanTools(session)
        toolsets.append(FunctionToolset([plan.update_todos, plan.update_plan]))
    if tools and (skills := find_skills(skill_folders(settings))):
        skill = SkillTool(skills, session)
        toolsets.append(
            FunctionToolset([Tool.from_schema(skill.call, skill.name, skill.description, skill.parameters)])
        )
    if settings.agents and takes_tools:
        budget = budget_from(settings)
        agents = {
            name: _sub_agent(agent, settings.model, budget, toolsets_named(agent.tools))
            for name, agent in settings.agents.items()
        }
        toolsets.append(delegation_toolset(agents))
    system = build_system_text(read_system_text(settings), folder.root, has_tools=bool(toolsets))
    if tools and (daily := memory_from(settings)) is not None:
        toolsets.append(memory_toolset(MemorySearchTool(daily)))
    rule = settings.effective_policy.compaction
    has_recall = bool(tools or servers) and (rule is None or rule.allows_recall_tool)
    return AgentPlan(toolsets, system, [tool_json(RECALL_DEFINITION)] if has_recall else [])
