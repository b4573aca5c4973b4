"""`holdfast chat`."""

import argparse
import os

from holdfast.apps.cli.config import settings_for
from holdfast.stores.base import Store

RESUME_NEWEST = ""
"""The value of `--resume` without an id."""


async def run_chat_command(args: argparse.Namespace, store: Store) -> int:
    """Talk to a model in a conversation that is kept, and can go on for ever.

    holdfast chat --resume
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
    parser.add_argument("prompt", nargs="*", metavar="PROMPT", help="the first thing to say")
    parser.add_argument("-p", "--print", action="store_true", help="answer once and exit; reads standard input too")
    parser.add_argument(
        "--resume",
        nargs="?",
        const=RESUME_NEWEST,
        metavar="ID",
        help="go on with the newest conversation, or with this one",
    )
    parser.add_argument("--model", metavar="NAME", help="who answers: embedded, openai:gpt-5, http://…/v1#name, …")
    parser.add_argument("--preset", metavar="NAME", help="default, co-cli, inkeep, copilot or cowagent")
    parser.add_argument("--system", metavar="FILE", help="a file with the system text")
    parser.add_argument("--tools", metavar="LIST", help="what the model may do: read, run, or none (read)")
    parser.add_argument("--budget", metavar="TOKENS", help="the most that is sent")
