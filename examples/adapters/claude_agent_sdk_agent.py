"""Record what a Claude agent does, by the hooks of the Claude Agent SDK, and look it up again.

The hooks are called here as Claude Code calls them, so that this runs without it. Needs the extra `claude-agent-sdk`.
"""

import asyncio
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions

from holdfast.adapters.claude_agent_sdk import HoldfastHooks

TOLD: list[dict[str, Any]] = [
    {"hook_event_name": "UserPromptSubmit", "prompt": "The release is on Friday. What is in totals.py?"},
    {
        "hook_event_name": "PostToolUse",
        "tool_name": "Read",
        "tool_input": {"file_path": "totals.py"},
        "tool_response": "total = total + price",
        "tool_use_id": "toolu_1",
    },
    {"hook_event_name": "Stop", "stop_hook_active": False, "last_assistant_message": "It adds the prices."},
]


async def main() -> None:
    """Tell the hooks of one turn, and recall it."""
    kept = HoldfastHooks(store="memory://")
    options = kept.options(ClaudeAgentOptions(model="claude-sonnet-5"))  # for query() or ClaudeSDKClient
    hooks: Any = options.hooks
    for told in TOLD:
        await hooks[told["hook_event_name"]][0].hooks[0]({"session_id": "s", **told}, None, {"signal": None})
    session = await asyncio.to_thread(kept.session, "s")
    print(await asyncio.to_thread(session.recall, "Friday"))
    await kept.close()


if __name__ == "__main__":
    asyncio.run(main())
