"""/agents: which agents there are, their tasks, what they could see, and their answers."""

from collections.abc import Iterable

from holdfast.apps.chat.chat import Chat
from holdfast.apps.chat.commands.registry import SlashCommandRegistry, parse_whole_number
from holdfast.apps.chat.events import CommandReply, CommandTable
from holdfast.core.history.scopes import DelegationRecord
from holdfast.errors import SettingsError
from holdfast.models.base import is_embedded
from holdfast.text import pluralize

AGENT_COMMANDS = SlashCommandRegistry()
MAX_TASK_CHARS = 60


@AGENT_COMMANDS.register("[N]", completes=lambda _: ())
async def agents(chat: Chat, number: str) -> None:
    """List the agents, and the tasks that they got.

    With N, show one task in detail. You define agents in the settings, as [agents.NAME].
    """
    found = await chat.session.delegations()
    if number:
        task = parse_whole_number(number)
        if task is None:
            raise SettingsError("/agents", "takes the number of a task; /agents lists them")
        if not 1 <= task <= len(found):
            raise SettingsError("/agents", f"there is no task {task}; /agents lists them")
        chat.screen.show(CommandReply("\n\n".join(_describe_delegation(found[task - 1]))))
        return
    known = [(name, agent.model or chat.model, agent.description) for name, agent in chat.settings.agents.items()]
    if known:
        chat.screen.show(CommandTable(("AGENT", "MODEL", "WHAT FOR"), known))
    if found:
        chat.screen.show(CommandTable(("N", "AGENT", "STATE", "TASK", "SAW"), list(_delegation_rows(found))))
    if is_embedded(chat.model):
        chat.notify("the embedded model has no tools and cannot delegate; /model NAME chooses another")
    elif not known and not found:
        chat.notify("there are no agents; define them in the settings, as [agents.NAME]")


def _delegation_rows(found: list[DelegationRecord]) -> Iterable[tuple[str, ...]]:
    for number, one in enumerate(found, start=1):
        task = " ".join(one.started.task.split())
        short = task if len(task) <= MAX_TASK_CHARS else f"{task[: MAX_TASK_CHARS - 1]}…"
        yield str(number), one.started.agent, one.state.replace("_", " "), short, one.description


def _describe_delegation(one: DelegationRecord) -> Iterable[str]:
    yield f"**{one.started.agent}** ({one.state.replace('_', ' ')}), delegated by {one.started.parent}"
    yield f"Task: {one.started.task}"
    requests, messages = pluralize(one.request_count, "request"), pluralize(one.message_count, "message")
    yield f"Saw {one.description}; {requests}, {messages} of its own."
    if one.started.briefing:
        yield f"Briefing:\n\n{one.started.briefing}"
    if one.answer:
        yield f"Answer: {one.answer}"
    if one.findings:
        yield "\n".join(["Findings:", "", *(f"- {finding}" for finding in one.findings)])
    if one.finished and one.finished.sources:
        yield f"Sources: {', '.join(one.finished.sources)}"
    if one.error:
        yield f"No answer: {one.error}"
