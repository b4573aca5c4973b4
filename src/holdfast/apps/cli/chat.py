"""`holdfast chat`."""

import argparse
import os

from holdfast.apps.cli.config import settings_for
from holdfast.stores.base import Store

RESUME_NEWEST = ""
"""The value of `--resume` without an id."""


async def run_chat_command(args: argparse.Namespace, store: Store) -> int:
    """Talk to a model in a session that is stored and never outgrows the model's context window.

    Old messages are compacted and never deleted, and every compaction can be undone.

    holdfast chat --resume
    holdfast chat --print "What does this program do?" < main.py
    """
    del store
    os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")
    from holdfast.apps.chat.main import ChatOptions, run_chat  # noqa: PLC0415 - for this command only

    options = ChatOptions(
        prompt=" ".join(args.prompt) or None,
        is_once=args.print,
        is_json=args.json,
        session=args.resume or None,
        is_resumed=args.resume == RESUME_NEWEST,
    )
    settings = settings_for(args, is_tolerant=True)
    for problem in settings.problems:
        # The chat reports an error in a file and starts; an error in a flag or a variable ends the program.
        if problem.where.startswith(("-", "$")):
            raise problem
    return await run_chat(settings, options)


def add_chat_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `holdfast chat`."""
    parser.add_argument("prompt", nargs="*", metavar="PROMPT", help="the first message (default: wait for input)")
    once = "answer once and exit; standard input is added to the prompt"
    parser.add_argument("-p", "--print", action="store_true", help=once)
    resume = "continue the session with this id, or the newest one (default: start a new session)"
    parser.add_argument("--resume", nargs="?", const=RESUME_NEWEST, metavar="ID", help=resume)
    model = "the model that answers: embedded, openai:gpt-5, http://…/v1#name, … (default: the setting `model`)"
    parser.add_argument("--model", metavar="NAME", help=model)
    preset = "default, co-cli, inkeep, copilot or cowagent (default: the setting `preset`)"
    parser.add_argument("--preset", metavar="NAME", help=preset)
    system = "a file with the system text (default: the setting `system`)"
    parser.add_argument("--system", metavar="FILE", help=system)
    tools = "the tools of the model: read, run, or none (default: the setting `tools`, else read)"
    parser.add_argument("--tools", metavar="LIST", help=tools)
    budget = "the largest request in tokens (default: what the model accepts)"
    parser.add_argument("--budget", metavar="TOKENS", help=budget)
