"""`holdfast chat`."""

import argparse

from holdfast.cli.configuring import settings_of
from holdfast.stores.base import Store

NEWEST = ""
"""What `--resume` means without an id."""


async def chat(args: argparse.Namespace, store: Store) -> int:
    """Talk to a model in a conversation that is kept, and can go on for ever.

    holdfast chat --resume
    """
    del store
    from holdfast.chat.start import Wish, start  # noqa: PLC0415 - for this command only

    wish = Wish(
        prompt=" ".join(args.prompt) or None,
        is_once=args.print,
        is_json=args.json,
        session=args.resume or None,
        is_resumed=args.resume == NEWEST,
    )
    return await start(settings_of(args, is_tolerant=True), wish)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what may be said about a chat."""
    parser.add_argument("prompt", nargs="*", metavar="PROMPT", help="the first thing to say")
    parser.add_argument("-p", "--print", action="store_true", help="answer once and exit; reads standard input too")
    parser.add_argument(
        "--resume", nargs="?", const=NEWEST, metavar="ID", help="go on with the newest conversation, or with this one"
    )
    parser.add_argument("--model", metavar="NAME", help="who answers: embedded, openai:gpt-5, http://…/v1#name, …")
    parser.add_argument("--preset", metavar="NAME", help="default, co-cli, inkeep, copilot or cowagent")
    parser.add_argument("--system", metavar="FILE", help="a file with the system text")
    parser.add_argument("--tools", metavar="LIST", help="what the model may do: read, run, or none (read)")
    parser.add_argument("--budget", metavar="TOKENS", help="the most that is sent")
