"""The command line: list, show, prove, move, save and clean sessions; settings, models and a check-up.

Each command is a function; its docstring is its help. Tables are for people, `--json` is for programs. What is asked
for goes to standard output, everything else to standard error. Exit codes: 0 done, 1 done but something differs or
was lost, 2 not done, 130 interrupted.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from inspect import cleandoc
from pathlib import Path
from typing import Protocol

from holdfast.app.places import places
from holdfast.cli import commands as do
from holdfast.cli.chatting import add_arguments, chat
from holdfast.cli.configuring import configure, list_models, settings_of
from holdfast.cli.doctor import examine
from holdfast.cli.laboratory import add_arguments as add_lab_arguments
from holdfast.cli.laboratory import lab_run
from holdfast.cli.remembering import consolidate, look_into_memory
from holdfast.cli.terminal import prepare_output, warn
from holdfast.cli.welcome import page
from holdfast.errors import HoldfastError, StoreUnavailableError
from holdfast.stores.base import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store
from holdfast.stores.sqlite import SqliteStore

DESCRIPTION = """Talk to a model for as long as you like; look at what was kept, prove what was sent, move and clean it.

  holdfast chat                            a conversation that can go on for ever
  holdfast doctor                          check model, store and settings
  holdfast sessions                        what is kept
  holdfast show report --json              one of them, by the beginning of its id
  holdfast replay report --verify          prove that every request is what was sent
  holdfast COMMAND --help                  more, with an example

Exit codes: 0 done, 1 done but something differs or was lost, 2 not done, 130 interrupted."""
MAKING = (do.import_file, do.recover_file)
"""Commands that need no store to be there."""
NEEDS_NO_STORE = (chat, configure, list_models, examine, look_into_memory)
"""Commands that open none, or open it themselves."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = parser().parse_args(argv)
    try:
        prepare_output(is_utf8=args.json or args.command is do.export_session)
        code = asyncio.run(_run(args)) if args.command else _welcome(args)
        sys.stdout.flush()
    except (HoldfastError, ImportError) as error:
        warn(str(error))
        return 2
    except KeyboardInterrupt:
        warn("interrupted")
        return 130
    except BrokenPipeError:
        # Whoever read has seen enough; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    return code


async def _run(args: argparse.Namespace) -> int:
    store = _store(args)
    try:
        return await args.command(args, store)
    finally:
        await store.close()


def _welcome(args: argparse.Namespace) -> int:
    """Say what this is to somebody who said nothing else."""
    print(page(settings_of(args, is_tolerant=True)))
    return 0


def _store(args: argparse.Namespace) -> Store:
    if args.command in NEEDS_NO_STORE:
        return MemoryStore()
    settings = settings_of(args)
    store, source = open_store(settings.store), settings.source("store")
    if isinstance(store, SqliteStore) and not store.path.exists() and args.command not in MAKING:
        if source.kind != "default":
            raise StoreUnavailableError(str(store.path), f"there is no such file; check {source}")
        return MemoryStore()
    return store


class Commands(Protocol):
    """What commands are added to."""

    def add_parser(
        self,
        name: str,
        *,
        help: str,  # noqa: A002 - the word argparse knows
        description: str,
        formatter_class: type[argparse.HelpFormatter],
    ) -> argparse.ArgumentParser:
        """Add a command."""
        ...


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, not {text!r}")
    return int(text)


def _command(group: Commands, name: str, command: do.Command, *, of_session: bool = False) -> argparse.ArgumentParser:
    """Add a command whose help is the docstring of its function."""
    first, _, example = cleandoc(command.__doc__ or "").partition("\n\n")
    parser = group.add_parser(
        name,
        help=first,
        description=f"{first}\n\nexample:\n  {example.strip()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=command)
    if of_session:
        parser.add_argument("id", metavar="ID", help="the id of a session, or how it begins if only one does")
    store = f"where sessions are kept ($HOLDFAST_STORE, or {places().store})"
    parser.add_argument("--store", default=argparse.SUPPRESS, metavar="URL", help=store)
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print machine-readable output")
    return parser


def parser() -> argparse.ArgumentParser:
    """Return what reads a command line."""
    whole = argparse.ArgumentParser(
        prog="holdfast", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    whole.set_defaults(json=False, command=None)
    commands = whole.add_subparsers(metavar="COMMAND")
    add_arguments(_command(commands, "chat", chat))
    sessions = _command(commands, "sessions", do.list_sessions)
    sessions.add_argument("--prefix", default="", help="only ids that begin so")
    sessions.add_argument("--limit", type=_positive, default=50, metavar="N", help="at most so many (50)")
    inner = sessions.add_subparsers(metavar="rm | prune")
    remove = _command(inner, "rm", do.remove_session, of_session=True)
    prune = _command(inner, "prune", do.prune_sessions)
    prune.add_argument("--days", type=_positive, required=True, metavar="N", help="how old")
    prune.add_argument("--dry-run", action="store_true", help="only say what would go")
    for asking in (remove, prune):
        asking.add_argument("--yes", action="store_true", help="do not ask")
    show = _command(commands, "show", do.show_session, of_session=True)
    show.add_argument("--at", type=_positive, metavar="N", help="the N-th request, counted from 1")
    replay = _command(commands, "replay", do.replay_session, of_session=True)
    replay.add_argument("--verify", action="store_true", help="exit with 1 if a request is not what was sent")
    export = _command(commands, "export", do.export_session, of_session=True)
    coming = _command(commands, "import", do.import_file)
    coming.add_argument("--as", dest="session", metavar="ID", help="the id it gets")
    recover = _command(commands, "recover", do.recover_file)
    for reading in (coming, recover):
        reading.add_argument("file", type=Path, metavar="FILE")
    for writing in (export, recover):
        writing.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to write")
    removing = _command(commands, "scrub", do.scrub_session, of_session=True)
    removing.add_argument("text", metavar="TEXT", help="the secret, or - for standard input")
    consolidating = _command(commands, "consolidate", consolidate)
    consolidating.add_argument("--apply", action="store_true", help="do it, without asking")
    memory = _command(commands, "memory", look_into_memory)
    memory.add_argument("what", nargs="*", metavar="DAY | search WORDS", help="a day as YYYY-MM-DD, or what to find")
    _about_settings(commands)
    lab = commands.add_parser("lab", help="Play recorded conversations again under any policy; see lab run.")
    add_lab_arguments(_command(lab.add_subparsers(metavar="run", required=True), "run", lab_run))
    return whole


def _about_settings(commands: Commands) -> None:
    config = _command(commands, "config", configure)
    config.add_argument("key", nargs="?", metavar="KEY", help="the name of a setting")
    config.add_argument("value", nargs="?", metavar="VALUE", help="what it is to be; +WORD adds to a list")
    config.add_argument("--unset", action="store_true", help="forget it")
    scope = config.add_mutually_exclusive_group()
    scope.add_argument("--user", action="store_true", help="in your own settings, which is the default")
    scope.add_argument("--project", action="store_true", help="in the settings of this project")
    models = _command(commands, "models", list_models)
    models.add_argument("filter", nargs="?", default="", metavar="FILTER", help="only names that have this in them")
    doctor = _command(commands, "doctor", examine)
    doctor.add_argument("--ask", action="store_true", help="ask the model for a word, too")
    for about in (config, models, doctor):
        about.add_argument("--preset", metavar="NAME", help="as if this were the preset")
        about.add_argument("--model", metavar="NAME", help="as if this were the model")
