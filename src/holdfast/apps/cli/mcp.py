"""`holdfast mcp` lets agents of other programs read stored conversations."""

import argparse
import signal

from holdfast.apps.cli.config import settings_for
from holdfast.apps.settings.build import memory_from
from holdfast.stores.base import Store


async def serve_mcp(args: argparse.Namespace, store: Store) -> int:
    """Serve the tools recall, show, sessions and memory_search to an MCP client, on standard input and output.

    The tools only read. Calls name their conversation; without a name they mean --session, or the session that Claude
    Code names in CLAUDE_CODE_SESSION_ID.

    claude mcp add holdfast -- holdfast mcp
    """
    from holdfast.apps.mcp import serve_stdio  # noqa: PLC0415 - an optional extra

    memory = memory_from(settings_for(args))
    # A thread waits for the next line of the client, and Python would wait for the thread. Nothing has to be closed.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        await serve_stdio(store, memory=memory, session=args.session)
    finally:
        signal.signal(signal.SIGINT, before)
    return 0
