"""Commands that change settings: /config, /model, /policy and /preset."""

import asyncio
import os

from holdfast.apps.chat.attachments import is_file
from holdfast.apps.chat.chat import Chat
from holdfast.apps.chat.commands.registry import SlashCommandRegistry
from holdfast.apps.chat.events import CommandTable
from holdfast.apps.chat.runtime import check_answering_model
from holdfast.apps.settings.models import available_providers, bare_model_name, configured_model
from holdfast.apps.settings.save import save_setting
from holdfast.apps.settings.schema import setting_name, setting_names
from holdfast.core.planning.policy import PRESETS
from holdfast.counters.models import known_models
from holdfast.errors import SettingsError
from holdfast.models.base import EMBEDDED_MODEL as EMBEDDED
from holdfast.models.local_servers import OLLAMA_PREFIX, list_served_models
from holdfast.models.open import parse_endpoint
from holdfast.redaction import redact_text

CONFIG_COMMANDS = SlashCommandRegistry()
MODEL_NAME_PREFIXES = {
    "anthropic": ("claude-",),
    "openai": ("gpt-", "o1", "o3", "o4"),
    "google": ("gemini-",),
    "mistral": ("mistral-", "codestral", "ministral"),
    "deepseek": ("deepseek-",),
    "xai": ("grok-",),
}
"""How the names of a provider's models begin in the table of models."""
SAVE_FLAG = "--save"


@CONFIG_COMMANDS.register("[KEY [VALUE [--save]]]", completes=lambda _: setting_names())
async def config(chat: Chat, arguments: str) -> None:
    """Show the settings and their source, or change one.

    A change takes effect at once; with --save it is also written to your settings file.
    """
    key, _, value = arguments.partition(" ")
    if not value.strip():
        names = {setting_name(key)} if key else set(setting_names())
        rows = [(row.name, row.text, str(row.source)) for row in chat.settings.rows() if row.name in names]
        chat.screen.show(CommandTable(("SETTING", "VALUE", "FROM"), rows))
        return
    words = value.split()
    is_saved = words[-1] == SAVE_FLAG
    if words == [SAVE_FLAG]:
        raise SettingsError(SAVE_FLAG, f"needs a value to save: /config {key} VALUE {SAVE_FLAG}")
    text = " ".join(words[:-1]) if is_saved else value.strip()
    before = chat.settings
    changed = before.with_change(key, text)
    if setting_name(key) == "model":
        await model(chat, text)
        if chat.settings is before:
            return  # the user did not want the switch
        text = chat.model  # with the address of its endpoint
    else:
        await chat.apply_settings(changed)
    saved = f", saved in {save_setting(chat.settings, key, text, scope='user')}" if is_saved else ""
    chat.notify(f"{setting_name(key)} = {chat.settings.render_value(key)}{saved}")
    for note in chat.settings.notes:
        chat.notify(note, "warning")


def known_model_names(chat: Chat) -> list[str]:
    """Return the models that can be used now: local ones, and those of the table whose provider has a key."""
    table = known_models()
    named = [
        f"{provider}:{name}"
        for provider in available_providers(os.environ)
        for name in table
        if name.startswith(MODEL_NAME_PREFIXES.get(provider, ("\0",))) and "/" not in name
    ]
    return list(dict.fromkeys([chat.model, EMBEDDED, *chat.local_models, *named]))


async def list_endpoint_models(chat: Chat) -> list[str]:
    """Return the models of the endpoint in use, and keep them for completion; empty if it does not list them."""
    endpoint = parse_endpoint(chat.model)
    if endpoint is None or chat.model.startswith(OLLAMA_PREFIX):
        return []
    try:
        names = await asyncio.to_thread(list_served_models, endpoint.url, endpoint.api_key)
    except OSError:
        return []
    models = [f"{endpoint.url}#{name}" for name in names]
    chat.local_models = list(dict.fromkeys([*chat.local_models, *models]))
    return models


@CONFIG_COMMANDS.register("[NAME]", completes=known_model_names)
async def model(chat: Chat, name: str) -> None:
    """Show the model, or switch to another.

    If its window is too small, the conversation is compacted first, and you are asked. Without NAME, also list the
    models of the endpoint.
    """
    if not name:
        known = configured_model(chat.settings)
        window = f"{known.max_input_tokens:,} tokens" if known else "unknown"
        chat.notify(f"{redact_text(chat.model)}; window: {window}; largest request: {chat.budget.tokens:,} tokens")
        if others := [one for one in await list_endpoint_models(chat) if one != chat.model]:
            chat.notify(f"its endpoint also has: {', '.join(map(bare_model_name, others))}; /model NAME switches")
        return
    if ":" not in name:
        name = next((one for one in await list_endpoint_models(chat) if bare_model_name(one) == name), name)
    settings = chat.settings.with_change("model", name)
    await check_answering_model(settings)
    contents = await chat.context_report(settings)
    if contents.total > contents.budget:
        sizes = f"{contents.total:,} tokens are too many for {redact_text(name)}, which takes {contents.budget:,} now"
        if await chat.screen.ask_consent(f"{sizes}. Compact first, and switch?") == "no":
            chat.notify(f"not switched; the model is still {redact_text(chat.model)}")
            return
        await chat.compact_for(settings)
    await chat.apply_settings(settings)
    chat.notify(f"switched to {redact_text(name)}")
    contents = await chat.context_report()
    if contents.total > contents.budget:
        chat.notify(f"that is still too long; the next request is shortened to {contents.budget:,} tokens", "warning")
    chat.warn_about_window()


@CONFIG_COMMANDS.register("[NAME | FILE]", completes=lambda _: list(PRESETS))
async def policy(chat: Chat, name: str) -> None:
    """Show or switch the rules that keep the conversation short.

    NAME is a preset; FILE holds rules of your own.
    """
    if not name:
        own = f", changed by {chat.settings.policy}" if chat.settings.policy is not None else ""
        chat.notify(f"{chat.session.policy.name}{own}; there are: {', '.join(PRESETS)}, or a file of your own")
        return
    if name in PRESETS:
        await chat.apply_settings(chat.settings.with_change("policy", "").with_change("preset", name))
    else:
        if not is_file(chat.file_tools.root, name):
            raise SettingsError("/policy", f"{name!r:.60} is neither a file nor a preset: {', '.join(PRESETS)}")
        await chat.apply_settings(chat.settings.with_change("policy", name))
    chat.notify(f"switched to the policy {name}")


@CONFIG_COMMANDS.register("[NAME]", completes=lambda _: list(PRESETS))
async def preset(chat: Chat, name: str) -> None:
    """Show the presets of these rules, or switch to another.

    There are default, co-cli, inkeep, copilot and cowagent.
    """
    if not name:
        chat.notify(f"{chat.session.policy.name}; there are: {', '.join(PRESETS)}")
        return
    if name not in PRESETS:
        raise SettingsError("/preset", f"{name!r} is not known; there are: {', '.join(PRESETS)}")
    await chat.apply_settings(chat.settings.with_change("preset", name))
    chat.notify(f"switched to preset {name}")
