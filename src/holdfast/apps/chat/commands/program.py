"""Commands about the program: settings, model, preset, and leaving."""

from holdfast.apps.chat.chat import Chat
from holdfast.apps.chat.commands.registry import SlashCommandRegistry
from holdfast.apps.chat.events import ChatNotice, CommandTable
from holdfast.apps.settings.build import budget_from
from holdfast.apps.settings.models import bare_model_name, configured_model
from holdfast.apps.settings.save import save_setting
from holdfast.apps.settings.schema import setting_name, setting_names
from holdfast.core.planning.policy import PRESETS
from holdfast.counters.models import budget_for
from holdfast.errors import SettingsError

PROGRAM_COMMANDS = SlashCommandRegistry()
SAVE_FLAG = "--save"


@PROGRAM_COMMANDS.register("[KEY [VALUE [--save]]]", completes=lambda _: setting_names())
async def config(chat: Chat, arguments: str) -> None:
    """Show settings with their source, or change one at once; with --save it is kept in your settings file."""
    key, _, value = arguments.partition(" ")
    if not value.strip():
        names = {setting_name(key)} if key else set(setting_names())
        rows = [(row.name, row.text, str(row.source)) for row in chat.settings.rows() if row.name in names]
        chat.screen.show(CommandTable(("SETTING", "VALUE", "FROM"), rows))
        return
    words = value.split()
    is_saved = words[-1] == SAVE_FLAG
    text = " ".join(words[:-1]) if is_saved else value.strip()
    changed = chat.settings.with_change(key, text)
    if setting_name(key) == "model":
        await model(chat, text)
    else:
        await chat.apply_settings(changed)
    kept = f", kept in {save_setting(changed, key, text, scope='user')}" if is_saved else ""
    chat.screen.show(ChatNotice(f"{setting_name(key)} = {chat.settings.render_value(key)}{kept}"))
    for note in changed.notes:
        chat.screen.show(ChatNotice(note, "warning"))


@PROGRAM_COMMANDS.register("[NAME]")
async def model(chat: Chat, name: str) -> None:
    """Let another model answer; if its window is too small for the conversation, that is compacted first."""
    if not name:
        known = configured_model(chat.settings)
        window = f", a window of {known.max_input_tokens:,} tokens" if known else ", whose window nobody knows"
        chat.screen.show(ChatNotice(f"{chat.model}{window}; the most that is sent is {chat.budget.tokens:,}"))
        return
    settings = chat.settings.with_change("model", name)
    await chat.check_model(settings)
    budget = budget_from(settings) or budget_for(bare_model_name(name))
    contents = await chat.session.context_breakdown(budget=budget)
    if contents.total > budget.tokens:
        question = f"{contents.total:,} tokens are too many for {name} ({budget.tokens:,}). Compact first, and switch?"
        if await chat.screen.ask_consent(question) == "no":
            chat.screen.show(ChatNotice(f"{chat.model} goes on answering"))
            return
        await chat.session.switch_model(name, budget=budget)
    await chat.apply_settings(settings)
    chat.screen.show(ChatNotice(f"{name} answers from now on"))


@PROGRAM_COMMANDS.register("[NAME]", completes=lambda _: list(PRESETS))
async def preset(chat: Chat, name: str) -> None:
    """Show the presets, or go on with another: default, co-cli, inkeep, copilot, cowagent."""
    if not name:
        chat.screen.show(ChatNotice(f"{chat.session.policy.name}; there are: {', '.join(PRESETS)}"))
        return
    if name not in PRESETS:
        raise SettingsError("/preset", f"{name!r} is not known; there are: {', '.join(PRESETS)}")
    await chat.apply_settings(chat.settings.with_change("preset", name))
    chat.screen.show(ChatNotice(f"preset {name} from now on"))


@PROGRAM_COMMANDS.register()
async def retry(chat: Chat, _: str) -> None:
    """Ask the last prompt again, after a failure or an interrupt; what was done for it so far stays."""
    if chat.unrecorded_prompt is not None:
        await chat.take_turn(chat.unrecorded_prompt)
        return
    shown = await chat.session.visible_messages()
    if not shown:
        raise SettingsError("/retry", "nothing was asked yet")
    last = shown[-1]
    if last.message.role == "assistant" and last.position is not None:
        # The turn has an answer, or the beginning of one, which the retry replaces.
        await chat.session.rewind(to=last.position)
    await chat.take_turn(None)


@PROGRAM_COMMANDS.register(aliases=["exit", "q"])
async def quit_(chat: Chat, _: str) -> None:
    """Leave; the conversation is kept."""
    chat.is_over = True
