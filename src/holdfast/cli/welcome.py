"""What is said to somebody who says nothing but `holdfast`."""

from holdfast.app.settings import Settings

PAGE = """Holdfast: long conversations that fit, and lose nothing.

It keeps a conversation with a language model inside the model's window: old parts are folded, nothing that was
said is deleted, and every fold can be undone.

Try these three:
{commands}

Conversations are kept in {store}.
More: holdfast --help, holdfast COMMAND --help, holdfast config
"""
FIRST = (
    ("holdfast chat", "talk to a model; without a key it is a small one on this machine"),
    ("holdfast doctor", "check this machine: model, store, settings"),
    ("holdfast sessions", "what is kept"),
)


def page(settings: Settings) -> str:
    """Return the page."""
    width = max(len(command) for command, _ in FIRST)
    commands = "\n".join(f"  {command.ljust(width)}   {what}" for command, what in FIRST)
    return PAGE.format(commands=commands, store=settings.shown("store")).rstrip("\n")
