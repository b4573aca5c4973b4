"""The entry point of the command line.

Tables are for people, `--json` is for programs. Results go to standard output, everything else to standard error. Exit
codes: 0 done, 1 done but something differs or was lost, 2 not done, 130 interrupted.

Each function imports what it needs: `holdfast --version` answers before anything of the package is loaded.
"""

import errno
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from holdfast.stores.base import Store

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
"""The page that `holdfast` prints without arguments."""


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run one command and return its exit code.

    Without `argv` it is the program that this process runs: it ends with the command.
    """
    try:
        return _run_to_end(argv)
    finally:
        if argv is None:
            _let_interrupts_end_the_process()


def _run_to_end(argv: "Sequence[str] | None") -> int:
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except KeyboardInterrupt:
        if argv is None:
            _let_interrupts_end_the_process()
        return _end(130, "interrupted")
    except BrokenPipeError:  # the reader has closed the pipe
        _drop_output()
        return 0
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}:
            raise
        _drop_output()
        return _end(2, f"standard output: {error.strerror}; what it has got is not whole")
    return code


def _let_interrupts_end_the_process() -> None:
    """Let another Ctrl-C end this process at once: what the interpreter still does would answer it with a traceback.

    It is not ignored, so that a thread that does not end cannot hold the terminal.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _run(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        from holdfast import __version__

        print(f"holdfast {__version__}")
        return 0
    if arguments[:1] == ["gateway"]:
        from holdfast.apps.threads import import_at_low_priority

        # Others on this machine may be serving.
        import_at_low_priority(_import_gateway_command)
    import asyncio

    from holdfast.apps.cli.output import configure_output
    from holdfast.apps.cli.parser import parse_arguments
    from holdfast.errors import HoldfastError

    try:
        args = parse_arguments(arguments)
        configure_output(is_utf8=args.json or args.is_data)
        with asyncio.Runner(loop_factory=args.loop_factory) as runner:
            return runner.run(_run_command(args))
    except (HoldfastError, ImportError) as error:
        return _end(2, str(error))


def _import_gateway_command() -> None:
    import asyncio

    from holdfast.apps.cli import gateway, output, parser

    del asyncio, gateway, output, parser


def _end(code: int, reason: str) -> int:
    from holdfast.apps.cli.output import warn

    warn(reason)
    return code


def _drop_output() -> None:
    """Let nothing more be written to standard output, at exit either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


async def _run_command(args: "argparse.Namespace") -> int:
    if args.command is None:
        from holdfast.apps.cli.config import settings_for

        print(WELCOME_PAGE.format(store=settings_for(args, is_tolerant=True).render_value("store")))
        return 0
    store = _open_store(args)
    try:
        return await args.command(args, store)
    finally:
        await store.close()


def _open_store(args: "argparse.Namespace") -> "Store":
    from holdfast.stores.memory import MemoryStore

    if not args.needs_store or (args.is_store_needed is not None and not args.is_store_needed(args)):
        return MemoryStore()
    from holdfast.apps.cli.config import settings_for
    from holdfast.errors import StoreUnavailableError
    from holdfast.stores.files import is_missing
    from holdfast.stores.open import open_store
    from holdfast.stores.sqlite.store import SqliteStore

    settings = settings_for(args)
    store, source = open_store(settings.store), settings.source("store")
    if isinstance(store, SqliteStore) and is_missing(store.path) and not args.makes_store:
        if source.kind != "default":
            raise StoreUnavailableError(str(store.path), f"there is no such file; check {source}")
        # A server outlives the first conversation, and has to find it in the file.
        return store if args.is_server else MemoryStore()
    return store
