"""`holdfast view`: the pages of a store in the browser."""

import argparse
import asyncio
import gc
import signal
import sys
import webbrowser
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from holdfast.apps.cli.config import settings_for
from holdfast.apps.cli.output import configure_output, port_number, print_result, typed_text, warn
from holdfast.apps.settings.build import delete_session_files
from holdfast.errors import SettingsError
from holdfast.session.log.event_log import now_ms
from holdfast.stores.base import Store, resolve_session_id
from holdfast.stores.files import write_private_lines

DEFAULT_PORT, LOOPBACK_ADDRESS, DRAIN_SECONDS = 8788, "127.0.0.1", 2


async def view_sessions(args: argparse.Namespace, store: Store) -> int:
    """Open a browser on the sessions of a store: what was said, what the model was sent, and why.

    Only this machine can reach the pages, and only with the address that is printed, once.

    holdfast view
    holdfast view report-2024 --no-open
    holdfast view --from claude-code
    holdfast view report-2024 --export report.html
    """
    from holdfast.apps.viewer.access import ViewerAccess  # noqa: PLC0415 - an extra
    from holdfast.apps.viewer.app import viewer_app  # noqa: PLC0415 - as above
    from holdfast.apps.viewer.changes import StoreEditor  # noqa: PLC0415 - as above
    from holdfast.apps.viewer.rendering import session_slug  # noqa: PLC0415 - as above

    if args.program is not None:
        await _import_program(args, store)
    elif args.path is not None:
        raise SettingsError("--path", "needs --from, which names the program whose sessions these are")
    session = await resolve_session_id(store, args.id) if args.id else None
    if args.export is not None:
        return await _export(args, store, session)
    settings = settings_for(args)
    access = ViewerAccess(may_change=args.allow_changes)
    editor = StoreEditor(store, policy=settings.effective_policy, delete_files=partial(delete_session_files, settings))
    app = viewer_app(store, access=access, editor=editor, unnamed_model=args.model)

    def announce(address: str) -> None:
        page = f"/s/{session_slug(session)}" if session else "/"
        url = f"{address}{page}?token={access.new_token()}"
        try:
            print(f"{url}\nCtrl-C stops the viewer.", flush=True)
        except BrokenPipeError:  # nobody learns the address
            signal.raise_signal(signal.SIGTERM)
            return
        loop = asyncio.get_running_loop()
        if args.open:
            # Some browsers do not return before they are closed.
            loop.run_in_executor(None, _open_browser, url)
        loop.run_in_executor(None, _make_pages_fast)

    # Not before: it has no extra of its own, but the viewer names the one that is missing.
    from holdfast.apps.serving import serve_app  # noqa: PLC0415 - as above

    try:
        return await serve_app(
            app,
            name="view",
            host=LOOPBACK_ADDRESS,
            port=args.port,
            remedy="choose another with --port, or 0 for any",
            drain_seconds=DRAIN_SECONDS,
            announce=announce,
            on_stop=app.state.stop_streams,
        )
    finally:
        await app.state.close()


async def _import_program(args: argparse.Namespace, store: Store) -> None:
    """Import what is new in the sessions of another program; what cannot be read is told, and the rest is shown."""
    from holdfast.apps.cli.imports import (  # noqa: PLC0415 - for this option only
        describe_report,
        find_importable,
        import_all,
    )
    from holdfast.importers.programs import program_named  # noqa: PLC0415 - as above

    program = program_named(args.program)
    done, problems = await import_all(store, program, find_importable(program, args.path))
    for problem in [*problems, *(text for one in done for text in describe_report(one))]:
        warn(problem)


async def _export(args: argparse.Namespace, store: Store, session: str | None) -> int:
    """Write a session as one HTML file."""
    from holdfast.apps.viewer.export import export_page  # noqa: PLC0415 - an extra
    from holdfast.apps.viewer.pages import Pages  # noqa: PLC0415 - as above
    from holdfast.apps.viewer.session_index import SessionIndexes  # noqa: PLC0415 - as above

    if session is None:
        raise SettingsError("--export", "needs the id of a session: holdfast view ID --export page.html")
    pages = Pages(SessionIndexes(store), unnamed_model=args.model)
    text = await export_page(pages, session, now_ms=now_ms(), is_redacted=args.redact)
    if args.export == Path("-"):
        configure_output(is_utf8=True)  # which the page says it is
        sys.stdout.write(text)
        return 0
    write_private_lines(args.export, [text])
    print_result(args, f"wrote {args.export}", {"session": session, "file": str(args.export)})
    return 0


def _make_pages_fast() -> None:
    """Do what the first pages would else wait for, while the browser starts."""
    from holdfast.apps.viewer.rendering import load_templates  # noqa: PLC0415 - an extra

    load_templates()
    # What was loaded so far lives as long as the program, so no page need wait while it is searched for garbage.
    gc.freeze()


def _open_browser(url: str) -> None:
    if not webbrowser.open(url):
        warn("no browser could be started; open the address above")


def add_view_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `holdfast view`."""
    session = "open this session, by its id or the beginning of it (default: the list of all)"
    parser.add_argument("id", type=typed_text, nargs="?", metavar="ID", help=session)
    program = (
        "first import what is new in the sessions of this program: claude-code, codex, copilot, gemini, opencode, pi"
    )
    parser.add_argument("--from", dest="program", action=_ImportAction, metavar="PROGRAM", help=program)
    path = "with --from, a folder or a file with its sessions (default: where the program keeps them)"
    parser.add_argument("--path", type=Path, metavar="PATH", help=path)
    port = f"the port; 0 takes a free one (default: {DEFAULT_PORT})"
    parser.add_argument("--port", type=port_number, default=DEFAULT_PORT, metavar="N", help=port)
    parser.add_argument("--no-open", dest="open", action="store_false", help="print the address, and open no browser")
    changes = "also allow to compact, undo, rewind, pin, fork and delete (default: reading only)"
    parser.add_argument("--allow-changes", action="store_true", help=changes)
    export = "write the session as one file that opens without a server, - for standard output, and exit"
    parser.add_argument("--export", type=Path, metavar="FILE", help=export)
    redact = "leave keys and passwords in the export (default: remove them)"
    parser.add_argument("--no-redact", dest="redact", action="store_false", help=redact)
    model = "the model of sessions whose log names none, for their cost (default: unknown)"
    parser.add_argument("--model", metavar="NAME", help=model)


class _ImportAction(argparse.Action):
    """Notes the program to import from; an import may begin a store that is named."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        del parser, option_string
        namespace.program, namespace.makes_store = values, True
