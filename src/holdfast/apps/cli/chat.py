"""`holdfast chat`."""

import argparse
import os
from typing import TYPE_CHECKING

from holdfast.apps.cli.config import settings_for
from holdfast.apps.cli.output import typed_text
from holdfast.errors import SettingsError
from holdfast.stores.base import Store

if TYPE_CHECKING:
    from holdfast.models.open import ModelEndpoint

RESUME_NEWEST = True
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

    if isinstance(args.resume, str) and not args.resume.strip():  # such as a variable that is not set
        raise SettingsError("--resume", "is empty; give the id of a session, or leave it out for the newest one")
    options = ChatOptions(
        prompt=" ".join(args.prompt) or None,
        is_once=args.print,
        is_json=args.json,
        session=None if args.resume is RESUME_NEWEST else args.resume,
        is_resumed=args.resume is RESUME_NEWEST,
        attached=tuple(args.attach),
    )
    if args.base_url is not None:
        args.model = endpoint_model(args.base_url, args.model, args.key_env)
    settings = settings_for(args, is_tolerant=True)
    for problem in settings.problems:
        # The chat reports an error in a file and starts; an error in a flag or a variable ends the program.
        if (problem.where or problem.setting).startswith(("-", "$")):
            raise problem
    if args.key_env is not None and args.base_url is None:
        from holdfast.models.open import parse_endpoint  # noqa: PLC0415 - for this option only

        endpoint = parse_endpoint(settings.model)
        if endpoint is None:
            problem = f"is the key of an endpoint, and {settings.model} is none; name one with --base-url"
            raise SettingsError("--key-env", problem)
        give_key(endpoint, args.key_env)
    return await run_chat(settings, options)


def endpoint_model(base_url: str, model: str | None, key_variable: str | None) -> str:
    """Return the name of a model at an endpoint, and give the endpoint its key."""
    from holdfast.models.local_servers import list_served_models  # noqa: PLC0415 - for this option only
    from holdfast.models.open import ModelEndpoint  # noqa: PLC0415 - as above

    if not base_url.startswith(("http://", "https://")) or "#" in base_url:
        raise SettingsError("--base-url", f"{base_url!r:.200} is not an address; it begins with http:// or https://")
    endpoint = ModelEndpoint(base_url.rstrip("/"), model or "")
    if key_variable is not None:
        give_key(endpoint, key_variable)
    if model:
        return f"{endpoint.url}#{model}"
    try:
        names = list_served_models(endpoint.url, endpoint.api_key)
    except OSError as error:
        reason = getattr(error, "reason", error)
        why = getattr(reason, "strerror", None) or reason
        problem = f"{endpoint.url} does not list its models ({why}); check the address, or name one with --model"
        raise SettingsError("--base-url", problem) from None
    if len(names) != 1:
        raise SettingsError("--model", f"which of its models? {', '.join(names[:20]) or 'it lists none'}")
    return f"{endpoint.url}#{names[0]}"


def give_key(endpoint: "ModelEndpoint", variable: str) -> None:
    """Give an endpoint the key in an environment variable."""
    key = os.environ.get(variable)
    if not key:
        problem = f"the variable {variable} is not set" if variable else "is empty; give the name of a variable"
        raise SettingsError("--key-env", problem)
    os.environ[endpoint.key_variable] = key


def add_chat_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `holdfast chat`."""
    prompt = "the first message (default: wait for input)"
    parser.add_argument("prompt", type=typed_text, nargs="*", metavar="PROMPT", help=prompt)
    once = "answer once and exit; standard input is added to the prompt"
    parser.add_argument("-p", "--print", action="store_true", help=once)
    resume = "continue a session by its id, its title or its words, or the newest one (default: start a new session)"
    parser.add_argument("--resume", type=typed_text, nargs="?", const=RESUME_NEWEST, metavar="ID", help=resume)
    model = "the model that answers: embedded, openai:gpt-5, ollama:qwen3, … (default: the setting `model`)"
    parser.add_argument("--model", metavar="NAME", help=model)
    url = "an OpenAI-compatible endpoint, http://…/v1; --model names one of its models (default: its only one)"
    parser.add_argument("--base-url", metavar="URL", help=url)
    key = "the environment variable with the key of that endpoint (default: one that is named after its host)"
    parser.add_argument("--key-env", metavar="VARIABLE", help=key)
    preset = "default, co-cli, inkeep, copilot or cowagent (default: the setting `preset`)"
    parser.add_argument("--preset", metavar="NAME", help=preset)
    system = "a file with the system text (default: the setting `system`)"
    parser.add_argument("--system", metavar="FILE", help=system)
    attach = "attach a file to the first prompt; - is standard input (may be repeated)"
    parser.add_argument("--attach", metavar="FILE", action="append", default=[], help=attach)
    tools = "the tools of the model: read, edit, run, plan, or none (default: the setting `tools`, else all)"
    parser.add_argument("--tools", metavar="LIST", help=tools)
    budget = "the largest request in tokens (default: what the model accepts)"
    parser.add_argument("--budget", metavar="TOKENS", help=budget)
