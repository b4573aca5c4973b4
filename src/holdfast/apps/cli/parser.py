"""The parser of the command line. It loads only the command that is used, or all of them for `--help`.

Each command is a function; its docstring is its help, with examples in the last paragraph.
"""

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from inspect import cleandoc
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, TypeAlias

from holdfast import __version__
from holdfast.apps.settings.paths import find_paths
from holdfast.errors import SettingsError

if TYPE_CHECKING:
    from holdfast.apps.cli.sessions import CommandFunction

PROGRAM_DESCRIPTION = """\
Keep long conversations with a language model inside its context window; inspect, verify, move and clean what is stored.

  holdfast chat                            talk to a model in a session that is stored
  holdfast gateway                         serve any client that can change its base URL
  holdfast wrap claude                     start a coding agent behind it
  holdfast doctor                          check the model, the store and the settings
  holdfast sessions                        list the stored sessions
  holdfast view                            see them in the browser: what the model was sent, and why
  holdfast show report --json              show one of them, by the beginning of its id
  holdfast replay report --verify          check that every request is what was sent
  holdfast import --from claude-code       import the sessions that another program has left on this machine
  holdfast lab run report                  compare what policies would have kept, lost and cost
  holdfast COMMAND --help                  explain a command, with its defaults and an example

Exit codes: 0 done, 1 done but something differs or was lost, 2 not done, 130 interrupted."""

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
AddCommands: TypeAlias = Callable[[Subparsers], None]


def build_parser(argv: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Return the parser. If the command line begins with a command, the parser knows only that command."""
    parser = argparse.ArgumentParser(
        prog="holdfast", description=PROGRAM_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(json=False, command=None, needs_store=True, makes_store=False, is_server=False)
    parser.set_defaults(is_store_needed=None)  # a function of the arguments, where these decide
    parser.set_defaults(is_data=False, loop_factory=None)
    parser.add_argument("--version", action=_VersionAction, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(metavar="COMMAND")
    group = COMMAND_GROUPS.get(argv[0]) if argv else None
    for add in [group] if group else dict.fromkeys(COMMAND_GROUPS.values()):
        add(commands)
    return parser


class _VersionAction(argparse.Action):
    """Prints the version."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"holdfast {__version__}")
        parser.exit()


def _add_chat(commands: Subparsers) -> None:
    from holdfast.apps.cli.chat import add_chat_arguments, run_chat_command  # noqa: PLC0415 - loaded when the command runs

    chat = _add_command(commands, "chat", run_chat_command)
    chat.set_defaults(needs_store=False)
    add_chat_arguments(chat)


def _add_gateway(commands: Subparsers) -> None:
    from holdfast.apps.cli import gateway as do  # noqa: PLC0415 - loaded when the command runs

    gateway = _add_command(commands, "gateway", do.run_gateway)
    gateway.set_defaults(needs_store=False, loop_factory=do.new_server_loop)
    do.add_gateway_arguments(gateway)
    inner = gateway.add_subparsers(metavar="[key]")
    key = _add_command(inner, "key", do.add_key)
    key.set_defaults(needs_store=False, loop_factory=None)
    do.add_key_arguments(key)


def _add_wrap(commands: Subparsers) -> None:
    from holdfast.apps.cli import wrap as do  # noqa: PLC0415 - loaded when the command runs

    wrap = _add_command(commands, "wrap", do.run_wrapped)
    wrap.set_defaults(needs_store=False)
    do.add_wrap_arguments(wrap)


def _add_sessions(commands: Subparsers) -> None:
    from holdfast.apps.cli import sessions as do  # noqa: PLC0415 - loaded when the command runs
    from holdfast.apps.cli.output import positive_number, typed_text  # noqa: PLC0415 - as above

    sessions = _add_command(commands, "sessions", do.list_sessions)
    sessions.add_argument(
        "--prefix", type=typed_text, default="", help="list only ids that begin with this (default: all)"
    )
    limit = "list at most this many (default: 50)"
    sessions.add_argument("--limit", type=positive_number, default=50, metavar="N", help=limit)
    inner = sessions.add_subparsers(metavar="[rm | prune]")
    remove = _add_command(inner, "rm", do.delete_session, of_session=True)
    prune = _add_command(inner, "prune", do.delete_old_sessions)
    days = "delete sessions that have not changed for this many days"
    prune.add_argument("--days", type=positive_number, required=True, metavar="N", help=days)
    prune.add_argument("--dry-run", action="store_true", help="only list what would be deleted")
    for deleting in (remove, prune):
        deleting.add_argument("--yes", action="store_true", help="delete without asking")
    show = _add_command(commands, "show", do.show_session, of_session=True)
    at = "show the N-th request, counted from 1 (default: the current context)"
    show.add_argument("--at", type=positive_number, metavar="N", help=at)
    replay = _add_command(commands, "replay", do.replay_session, of_session=True)
    replay.add_argument("--verify", action="store_true", help="exit with 1 if a request differs from what was sent")
    head = "exit with 1 unless the chain of requests holds this head, which an earlier --verify printed"
    replay.add_argument("--head", metavar="HASH", help=head)
    scrub = _add_command(commands, "scrub", do.scrub_session, of_session=True)
    scrub.add_argument("text", type=typed_text, metavar="TEXT", help="the secret; - reads it from standard input")


def _add_files(commands: Subparsers) -> None:
    from holdfast.apps.cli import sessions as do  # noqa: PLC0415 - loaded when the command runs
    from holdfast.apps.cli.imports import add_import_arguments, import_command  # noqa: PLC0415 - as above

    export = _add_command(commands, "export", do.export_session, of_session=True)
    export.set_defaults(is_data=True)
    importing = _add_command(commands, "import", import_command)
    add_import_arguments(importing)
    recover = _add_command(commands, "recover", do.recover_file)
    recover.add_argument("file", type=Path, metavar="FILE", help="the file to read")
    for reading in (importing, recover):
        reading.set_defaults(makes_store=True)
    for writing, default in ((export, "standard output, as with -"), (recover, "the same name with .recovered.db")):
        output = f"the file to write (default: {default})"
        writing.add_argument("-o", "--output", type=Path, metavar="FILE", help=output)


def _add_memory(commands: Subparsers) -> None:
    from holdfast.apps.cli.memory import consolidate_sessions, show_memory  # noqa: PLC0415 - as above

    consolidate = _add_command(commands, "consolidate", consolidate_sessions)
    consolidate.add_argument("--apply", action="store_true", help="apply the proposals without asking")
    now = "also read sessions that changed less than ten minutes ago and may continue"
    consolidate.add_argument("--now", action="store_true", help=now)
    memory = _add_command(commands, "memory", show_memory)
    memory.set_defaults(needs_store=False)
    what = "a day as YYYY-MM-DD, or `search` and a text (default: list the days)"
    memory.add_argument("what", nargs="*", metavar="DAY | search TEXT", help=what)


def _add_settings(commands: Subparsers) -> None:
    from holdfast.apps.cli.config import config_command, list_models  # noqa: PLC0415 - as above
    from holdfast.apps.cli.doctor import run_doctor  # noqa: PLC0415 - as above

    config = _add_command(commands, "config", config_command)
    config.add_argument("key", nargs="?", metavar="KEY", help="the name of a setting (default: show all settings)")
    config.add_argument("value", nargs="?", metavar="VALUE", help="the new value; +VALUE adds to a list")
    config.add_argument("--unset", action="store_true", help="remove the setting from the file")
    scope = config.add_mutually_exclusive_group()
    scope.add_argument("--user", action="store_true", help="change your own settings file (the default)")
    scope.add_argument("--project", action="store_true", help="change the settings file of this project")
    models = _add_command(commands, "models", list_models)
    models.add_argument(
        "filter", nargs="?", default="", metavar="FILTER", help="list only names that contain this (default: all)"
    )
    doctor = _add_command(commands, "doctor", run_doctor, needs_url=False)
    doctor.add_argument("--ask", action="store_true", help="also call the model once")
    through = "also send a short request through a running gateway (default address: http://127.0.0.1:8787)"
    doctor.add_argument("--gateway", nargs="?", const="http://127.0.0.1:8787", metavar="URL", help=through)
    for command in (config, models, doctor):
        command.set_defaults(needs_store=False)
        for setting in ("preset", "model"):
            help_text = f"use this {setting} (default: the setting `{setting}`)"
            command.add_argument(f"--{setting}", metavar="NAME", help=help_text)


def _add_lab(commands: Subparsers) -> None:
    from holdfast.apps.cli.lab import (  # noqa: PLC0415 - as above
        add_run_arguments,
        add_tuning_arguments,
        has_session_source,
        lab_run,
        lab_tune,
    )

    help_text = "Replay recorded conversations under any policy, or tune one; see lab run --help and lab tune --help."
    inner = commands.add_parser("lab", help=help_text, description=help_text).add_subparsers(
        metavar="run | tune", required=True
    )
    run, tune = _add_command(inner, "run", lab_run), _add_command(inner, "tune", lab_tune)
    add_run_arguments(run)
    add_tuning_arguments(tune)
    for command in (run, tune):
        command.set_defaults(is_store_needed=has_session_source)


def _add_view(commands: Subparsers) -> None:
    from holdfast.apps.cli.view import add_view_arguments, view_sessions  # noqa: PLC0415 - as above

    view = _add_command(commands, "view", view_sessions)
    view.set_defaults(is_server=True)
    add_view_arguments(view)


def _add_mcp(commands: Subparsers) -> None:
    from holdfast.apps.cli.mcp import serve_mcp  # noqa: PLC0415 - as above
    from holdfast.apps.cli.output import typed_text  # noqa: PLC0415 - as above

    mcp = _add_command(commands, "mcp", serve_mcp)
    mcp.set_defaults(is_data=True, is_server=True)
    session = "the conversation of calls that name none, by the beginning of its id (default: $CLAUDE_CODE_SESSION_ID)"
    mcp.add_argument("--session", type=typed_text, default="", metavar="ID", help=session)


COMMAND_GROUPS: Mapping[str, AddCommands] = {
    "chat": _add_chat,
    "gateway": _add_gateway,
    "wrap": _add_wrap,
    "mcp": _add_mcp,
    **dict.fromkeys(("sessions", "show", "replay", "scrub"), _add_sessions),
    **dict.fromkeys(("export", "import", "recover"), _add_files),
    **dict.fromkeys(("consolidate", "memory"), _add_memory),
    **dict.fromkeys(("config", "models", "doctor"), _add_settings),
    "lab": _add_lab,
    "view": _add_view,
}
"""The function that adds each command."""


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the parsed arguments of a command line; what follows `--` belongs to a wrapped program."""
    own, wrapped = list(arguments), list[str]()
    if own[:1] == ["wrap"] and "--" in own:
        at = own.index("--")
        own, wrapped = own[:at], own[at + 1 :]
    parser = build_parser(own)
    args, unknown = parser.parse_known_args(own, argparse.Namespace(wrapped=wrapped))
    if unknown and own[0] == "wrap":
        for word in unknown:
            own.remove(word)
        command = f"holdfast {shlex.join(own)} -- {shlex.join([*unknown, *wrapped])}"
        raise SettingsError("wrap", f"the agent's own arguments follow after --: {command}")
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return args


def _add_command(
    group: Subparsers, name: str, command: "CommandFunction", *, of_session: bool = False, needs_url: bool = True
) -> argparse.ArgumentParser:
    """Add a command whose help is the docstring of its function; `needs_url` is whether `--store` alone is an error."""
    # With `python -OO` or PYTHONOPTIMIZE=2 there are no docstrings; commands then work without their help.
    *about, examples = cleandoc(command.__doc__ or "").split("\n\n")
    added = group.add_parser(
        name,
        help=about[0] if about else "",
        description="\n\n".join([*about, f"example:\n{indent(examples, '  ')}"]) if about else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    added.set_defaults(command=command)
    if of_session:
        from holdfast.apps.cli.output import typed_text  # noqa: PLC0415 - as above

        session = "the id of a session, or the beginning of it if only one matches"
        added.add_argument("id", type=typed_text, metavar="ID", help=session)
    store = f"the URL of the store (default: $HOLDFAST_STORE, or {find_paths().store})"
    added.add_argument(
        "--store", nargs=None if needs_url else "?", default=argparse.SUPPRESS, metavar="URL", help=store
    )
    added.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print machine-readable output")
    return added
