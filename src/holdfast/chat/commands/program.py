"""Commands about the program: settings, model, preset, and leaving."""

from holdfast.app.build import budget_from
from holdfast.app.models import bare_name, model_of
from holdfast.app.saving import save
from holdfast.app.settings import canonical, keys
from holdfast.chat.chat import Chat
from holdfast.chat.commands.registry import Commands
from holdfast.chat.happenings import Notice, Table
from holdfast.core.planning.presets import PRESETS
from holdfast.counters.models import budget_for
from holdfast.errors import SettingsError

GROUP = Commands()
SAVE = "--save"


@GROUP.register("[KEY [VALUE [--save]]]", completes=lambda _: keys())
async def config(chat: Chat, given: str) -> None:
    """Show settings with their source, or change one at once; with --save it is kept in your settings file."""
    key, _, value = given.partition(" ")
    if not value.strip():
        names = {canonical(key)} if key else set(keys())
        rows = [(row.name, row.text, str(row.source)) for row in chat.settings.rows() if row.name in names]
        chat.screen.show(Table(("SETTING", "VALUE", "FROM"), rows))
        return
    words = value.split()
    is_saved = words[-1] == SAVE
    text = " ".join(words[:-1]) if is_saved else value.strip()
    changed = chat.settings.with_change(key, text)
    if canonical(key) == "model":
        await model(chat, text)
    else:
        await chat.change(changed)
    kept = f", kept in {save(changed, key, text, scope='user')}" if is_saved else ""
    chat.screen.show(Notice(f"{canonical(key)} = {chat.settings.shown(key)}{kept}"))
    for note in changed.notes:
        chat.screen.show(Notice(note, "warning"))


@GROUP.register("[NAME]")
async def model(chat: Chat, name: str) -> None:
    """Let another model answer; if its window is too small for the conversation, that is compacted first."""
    if not name:
        known = model_of(chat.settings)
        window = f", a window of {known.max_input_tokens:,} tokens" if known else ", whose window nobody knows"
        chat.screen.show(Notice(f"{chat.model}{window}; the most that is sent is {chat.budget.tokens:,}"))
        return
    settings = chat.settings.with_change("model", name)
    budget = budget_from(settings) or budget_for(bare_name(name))
    contents = await chat.session.contents(budget=budget)
    if contents.total > budget.tokens:
        question = f"{contents.total:,} tokens are too many for {name} ({budget.tokens:,}). Compact first, and switch?"
        if await chat.screen.consent(question) == "no":
            chat.screen.show(Notice(f"{chat.model} goes on answering"))
            return
        await chat.session.switch_model(name, budget=budget)
    await chat.change(settings)
    chat.screen.show(Notice(f"{name} answers from now on"))


@GROUP.register("[NAME]", completes=lambda _: list(PRESETS))
async def preset(chat: Chat, name: str) -> None:
    """Show the presets, or go on with another: default, co-cli, inkeep, copilot, cowagent."""
    if not name:
        chat.screen.show(Notice(f"{chat.session.policy.name}; there are: {', '.join(PRESETS)}"))
        return
    if name not in PRESETS:
        raise SettingsError("/preset", f"{name!r} is not known; there are: {', '.join(PRESETS)}")
    await chat.change(chat.settings.with_change("preset", name))
    chat.screen.show(Notice(f"preset {name} from now on"))


@GROUP.register()
async def retry(chat: Chat, _: str) -> None:
    """Ask the last prompt again, after a failure or an interrupt; what was done for it so far stays."""
    shown = await chat.session.shown()
    if not shown:
        raise SettingsError("/retry", "nothing was asked yet")
    last = shown[-1]
    if last.message.role == "assistant" and last.position is not None:
        # An answer, or the beginning of one: it is asked for anew.
        await chat.session.rewind(to=last.position)
    await chat.say(None)


@GROUP.register(aliases=["exit", "q"])
async def quit_(chat: Chat, _: str) -> None:
    """Leave; the conversation is kept."""
    chat.is_over = True
