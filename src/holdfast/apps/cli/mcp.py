"""`holdfast mcp` lets agents of other programs read stored conversations."""

import argparse

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

    await serve_stdio(store, memory=memory_from(settings_for(args)), session=args.session)
    return 0
