"""The welcome page that `holdfast` prints without arguments."""

from holdfast.apps.settings.settings import Settings

WELCOME_PAGE = """Holdfast: long conversations that fit, and lose nothing.

It keeps a conversation with a language model inside the model's window: old parts are folded, nothing that was
said is deleted, and every fold can be undone.

Try these three:
{commands}

Conversations are kept in {store}.
More: holdfast --help, holdfast COMMAND --help, holdfast config
"""
FIRST_COMMANDS = (
    ("holdfast chat", "talk to a model; without a key it is a small one on this machine"),
    ("holdfast doctor", "check this machine: model, store, settings"),
    ("holdfast sessions", "what is kept"),
)


def render_welcome(settings: Settings) -> str:
    """Return the welcome page for the settings."""
    width = max(len(command) for command, _ in FIRST_COMMANDS)
    commands = "\n".join(f"  {command.ljust(width)}   {what}" for command, what in FIRST_COMMANDS)
    return WELCOME_PAGE.format(commands=commands, store=settings.render_value("store")).rstrip("\n")
