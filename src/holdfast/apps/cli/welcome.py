"""The welcome page that `holdfast` prints without arguments."""

from holdfast.apps.settings.settings import Settings

WELCOME_PAGE = """\
Holdfast: long conversations that fit the context window and lose nothing.

It keeps a conversation with a language model inside the model's window: it compacts old messages, deletes none,
and can undo every compaction.

Try these three:
  holdfast chat       talk to a model; without an API key, a small model on this machine answers
  holdfast doctor     check this machine: model, store, settings
  holdfast sessions   list the stored sessions

Sessions are stored in {store}.
More: holdfast --help, holdfast COMMAND --help, holdfast config"""


def render_welcome(settings: Settings) -> str:
    """Return the welcome page for the settings."""
    return WELCOME_PAGE.format(store=settings.render_value("store"))
