"""What a chat, a gateway and an MCP server import and build before their first answer.

The server that forks programs does it once.
"""

import gc
from importlib import import_module

from holdfast.adapters.pydantic_ai.messages import validate_messages
from holdfast.counters.vocabularies import counter_for

gc.disable()
for name in (
    "anyio._backends._asyncio",
    "holdfast.apps.chat.agent",
    "holdfast.apps.chat.loop",
    "holdfast.apps.chat.main",
    "holdfast.apps.chat.markdown",
    "holdfast.apps.chat.terminal_screen",
    "holdfast.apps.chat.turn",
    "holdfast.apps.cli.chat",
    "holdfast.apps.cli.gateway",
    "holdfast.apps.cli.mcp",
    "holdfast.apps.cli.output",
    "holdfast.apps.gateway",
    "holdfast.apps.mcp",
    "holdfast.models.openai_compatible",
    "holdfast.stores.sqlite.store",
    "openai.resources.chat.completions",
    "pydantic_ai.mcp",
    "tests.programs",
):
    import_module(name)
validate_messages([])
counter_for("gpt-5").count("a word of several tokens: xqzvwkj")
# What is imported stays until the end: no fork looks through it for garbage, which would copy the pages it shares.
gc.freeze()
gc.enable()
