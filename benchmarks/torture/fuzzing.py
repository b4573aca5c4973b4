"""Malformed input: every input gives a value or an error of a known type.

Valid input is changed in a few places, because the first check rejects pure noise. Functions that read files receive
all kinds of bytes.
"""

import copy
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from holdfast import classify, convert, govern, read_policy, validate
from holdfast.apps.lab.recordings import read_recording
from holdfast.apps.settings.schema import SETTING_DECLARATIONS
from holdfast.apps.settings.sources import load_settings
from holdfast.errors import HoldfastError
from holdfast.stores.jsonl import load_bytes
from holdfast.testing.strategies.every_format import HISTORIES_BY_FORMAT
from holdfast.wire.validate.provider import PROVIDER_VALIDATION_RULES

CORPUS = Path(__file__).parent.parent.parent / "tests" / "corpus"
FILES = [path.read_bytes()[:4_000] for path in sorted(CORPUS.glob("*.json*"))]
ODD_VALUES = st.one_of(
    st.sampled_from([None, True, 0, -1, 1.5, 10**30, "", " ", "\ud800", "\0", [], {}, [[]], {"type": "text"}, ["x"]]),
    st.text(max_size=6),
    st.floats(),
)
REFUSAL_BODIES = [
    {"error": {"message": "prompt is too long: 208310 tokens > 200000 maximum", "type": "invalid_request_error"}},
    {"error": {"message": "maximum context length is 4097 tokens", "code": "context_length_exceeded", "metadata": {}}},
    {"error": {"metadata": {"raw": '{"error": {"message": "n_ctx", "n_ctx": 10, "n_prompt_tokens": 20}}'}}},
    {"choices": [{"finish_reason": "length", "message": {"content": "a"}}], "error": None},
    [{"error": {"code": 429, "message": "Resource exhausted: input token count (12) exceeds (10)"}}],
]
STATUSES = [None, 0, 200, 400, 413, 429, 500, 529]
TABLES = [
    'model = "gpt-5"\nmax_steps = 3\n[window]\nfraction = 0.5\n',
    'policy = "co-cli"\nmemory = "daily"\n[mcp.tides]\ncommand = ["python", "x.py"]\n',
    '[compaction]\nfraction = 0.7\n[agents.reviewer]\nsees = "everything"\n[colors]\nuser = "red"\n',
]
POLICIES = ["[compaction]\nfraction = 0.5\n", "max_steps = 3\nunknown_window = 5\n", "[fit]\nkeep_last = 2\n[[x]]\n"]


def container_slots(value: Any) -> list[tuple[Any, Any]]:
    """Return everything inside a value, as containers and keys."""
    if isinstance(value, dict):
        own: list[tuple[Any, Any]] = [(value, key) for key in value]
    else:
        own = [(value, index) for index in range(len(value))] if isinstance(value, list) else []
    return own + [place for container, key in own for place in container_slots(container[key])]


@st.composite
def mutate_json(draw: st.DrawFn, valid: st.SearchStrategy[Any]) -> Any:
    """Draw a valid value with a few parts replaced, removed or duplicated."""
    value = copy.deepcopy(draw(valid))
    for _ in range(draw(st.integers(1, 3))):
        places = container_slots(value)
        if not places:
            break
        container, key = places[draw(st.integers(0, len(places) - 1))]
        match draw(st.sampled_from(["replace", "remove", "double"])):
            case "remove":
                del container[key]
            case "double" if isinstance(container, list):
                container.append(copy.deepcopy(container[key]))
            case _:
                container[key] = copy.deepcopy(draw(ODD_VALUES))
    return value


@st.composite
def spoil_bytes(draw: st.DrawFn, valid: Sequence[bytes]) -> str:
    """Draw bytes, as Latin-1: a valid file that is cut, joined and overwritten, or noise."""
    content = bytearray(draw(st.sampled_from([*valid, b""])))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        to = min(len(content), at + draw(st.integers(0, 40)))
        content[at:to] = draw(st.one_of(st.binary(max_size=12), st.sampled_from([b'"', b"{", b"]", b"\0" * 9, b"\n"])))
    return bytes(content).decode("latin-1")


def _run_all(*actions: Callable[[], object]) -> None:
    """Call each function; an error of Holdfast is a valid result."""
    for action in actions:
        with suppress(HoldfastError):
            action()


def check_decoding(case: Mapping[str, Any]) -> None:
    """Read, govern, validate and convert messages."""
    messages, source = case["messages"], case["format"]
    _run_all(
        lambda: govern(messages, budget=600, format=source, model="gpt-5", interrupted=True),
        lambda: validate(messages, source),
        *(
            lambda target=target: convert(messages, source=source, target=target)
            for target in PROVIDER_VALIDATION_RULES
        ),
    )


def check_import(case: Mapping[str, Any]) -> None:
    """Import a file, and read its lines as recordings."""
    content = str(case["content"]).encode("latin-1")
    _run_all(lambda: load_bytes(content))
    for line in content.splitlines():
        with suppress(ValueError, RecursionError):
            record = json.loads(line)
            _run_all(lambda record=record: read_recording(record))


def check_refusal(case: Mapping[str, Any]) -> None:
    """Classify an answer as a provider's error: as JSON, as a text, as bytes, and as a stream."""
    body, status = case["body"], case["status"]
    text = body if isinstance(body, str) else json.dumps(body)
    raw = text.encode("utf-8", "replace")
    for one in (body, text, raw, f"data: {text}\n\ndata: [DONE]"):
        _run_all(lambda one=one: classify(one, status=status), lambda one=one: classify(one, is_stream=True))


def check_settings(case: Mapping[str, Any]) -> None:
    """Read settings from a file and from the environment, and a policy."""
    content = str(case["content"]).encode("latin-1")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "holdfast.toml").write_bytes(content)
        (home / "config.json").write_bytes(content)
        environ = {"HOLDFAST_HOME": folder, **case["environ"]}
        _run_all(
            lambda: load_settings(cwd=home, environ=environ),
            lambda: load_settings(cwd=home, environ=environ, is_tolerant=True),
        )
    _run_all(lambda: read_policy(content.decode("utf-8", "replace")))


def _histories(source: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"format": st.just(source), "messages": mutate_json(HISTORIES_BY_FORMAT[source])})


VARIABLES = sorted({variable for declaration in SETTING_DECLARATIONS.values() for variable in declaration.variables})
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
DECODING_CASES = tuple(_histories(source) for source in HISTORIES_BY_FORMAT)
IMPORT_CASES = (st.fixed_dictionaries({"content": spoil_bytes(FILES)}),)
REFUSAL_CASES = (
    st.fixed_dictionaries(
        {
            "body": st.one_of(mutate_json(st.sampled_from(REFUSAL_BODIES)), st.text(max_size=80)),
            "status": st.sampled_from(STATUSES),
        }
    ),
)
SETTINGS_CASES = (
    st.fixed_dictionaries(
        {
            "content": spoil_bytes([text.encode() for text in (*TABLES, *POLICIES)]),
            "environ": st.dictionaries(st.sampled_from(VARIABLES), VALUES, max_size=3),
        }
    ),
)
