"""Writes the parts of the reference that are read from the code, from the settings to the names of telemetry.

python -m scripts.reference docs/_generated

`make docs` calls it before each build, so that these pages cannot differ from the code. The prose around them is in
docs/reference.
"""

import argparse
import ast
import asyncio
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, is_dataclass
from functools import cache
from itertools import groupby, pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from holdfast import errors
from holdfast.apps.settings.policies import POLICY_LINKS, find_policy_link, linked_value
from holdfast.apps.settings.schema import SETTING_DECLARATIONS, SettingDeclaration
from holdfast.core.history import codec
from holdfast.core.history.events import CompactionCompleted, CompactionStarted, Summary, Usage
from holdfast.core.planning.policy import PRESETS, Policy
from holdfast.core.schema import Bounds, typed_fields, types_in

MAY = {"lower": "lower it", "any": "set it"}
SETTING_HEAD = "| setting | default | what it is | also |\n|---|---|---|---|\n"
HELP_COLUMNS = "100"
TOKEN = "reference"  # noqa: S105 - of a gateway that only this process reaches


def cell(text: str) -> str:
    """Return a text for one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


# Settings


def render_settings() -> str:
    """Return the tables: one for each group of settings, what untrusted projects may set, and what the presets say."""
    groups = groupby(SETTING_DECLARATIONS.values(), key=lambda one: one.group)
    tables = [f"\n### {name}\n\n{SETTING_HEAD}{''.join(map(setting_row, ones))}" for name, ones in groups]
    before = "\n### What a project may set before you trust it\n\n"
    return "".join([*tables, before, *harmless(), "\n### What the presets say\n\n", *preset_rows(), "\n"])


def setting_row(one: SettingDeclaration) -> str:
    """Return the row of a setting."""
    default = (
        "the preset's"
        if one.name in POLICY_LINKS
        else "–"
        if one.default is None
        else one.value_type.render(one.default)
    )
    # Every setting has the variable HOLDFAST_<NAME>.
    also = ", ".join(f"`{name}`" for name in (*one.aliases, *one.variables[1:]))
    return f"| `{one.name}` | {default} | {one.help} | {also} |\n"


def harmless() -> Iterator[str]:
    """Yield the rows of what an untrusted project may do with a setting; every other setting is refused."""
    yield "| setting | an untrusted project may |\n|---|---|\n"
    for one in SETTING_DECLARATIONS.values():
        if one.untrusted != "refused":
            yield f"| `{one.name}` | {MAY[one.untrusted]} |\n"


def preset_rows() -> Iterator[str]:
    """Yield the rows of what each preset says about each setting."""
    yield f"| setting | {' | '.join(f'`{name}`' for name in PRESETS)} |\n|---|{'---|' * len(PRESETS)}\n"
    for name in POLICY_LINKS:
        values = [
            linked_value(policy, link) if (link := find_policy_link(policy, name)) else None
            for policy in PRESETS.values()
        ]
        yield f"| `{name}` | {' | '.join(map(SETTING_DECLARATIONS[name].value_type.render, values))} |\n"


# Dataclasses: their fields with the text under each


@cache
def field_docs(kind: type) -> Mapping[str, str]:
    """Return the text under each field of a dataclass and of the classes that it extends."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        if not is_dataclass(owner):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        body = cast("ast.ClassDef", tree).body
        for item, after in pairwise(body):
            match item, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = inspect.cleandoc(text)
                case _:
                    pass
    return found


def type_text(hint: object) -> str:
    """Return a type in words of JSON and TOML."""
    if get_origin(hint) is Literal:
        return " or ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in get_args(hint))
    if get_origin(hint) in {Union, UnionType}:
        return " or ".join(type_text(one) for one in get_args(hint))
    names = {
        int: "whole number",
        float: "number",
        str: "text",
        bool: "true or false",
        type(None): "none",
        object: "any value",
    }
    origin = get_origin(hint) or hint
    if origin in names:
        return names[origin]
    if isinstance(origin, type):
        sequence = issubclass(origin, Sequence | frozenset)
        return "list" if sequence else "object"
    return "any value"


def default_text(item: "Field[object]") -> str:
    """Return the default of a field, as it is written in a file; empty if there is none."""
    value = item.default
    if value is MISSING and item.default_factory is not MISSING:
        value = item.default_factory()
    if value is MISSING:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return f"{value:,}" if value == int(value) or abs(value) >= 1 else f"{value:g}"
    if isinstance(value, str):
        return f'`"{value}"`'
    return "–" if value is None or value == () else ""


def bounds_text(item: "Field[object]", hint: object) -> str:
    """Return what a key of a policy accepts; TOML has no null, so that `false` stands for none."""
    bounds: Bounds | None = item.metadata.get("bounds")
    options = get_args(hint) if get_origin(hint) in {Union, UnionType} else (hint,)
    accepted = [type_text(option) for option in options if option is not NoneType]
    if bounds is not None:
        upper = f"below {bounds.maximum:g}" if bounds.is_maximum_excluded else f"at most {bounds.maximum:,.15g}"
        accepted = [f"from {bounds.minimum:,g}, {upper}"]
    return " or ".join([*accepted, *(["false"] if NoneType in options else [])])


# Policies


def render_policy() -> str:
    """Return every key of a policy: those of the policy itself, and those of each rule that it can have."""
    rules: list[tuple[str, type]] = []
    plain: list[str] = []
    docs = field_docs(Policy)
    for item, hint in typed_fields(Policy):
        kinds = [kind for kind in types_in(hint) if is_dataclass(kind)]
        if item.name in {"name", "models"}:
            continue
        if kinds:
            rules += [(item.name, kind) for kind in kinds]
        else:
            plain.append(policy_row(item.name, item, hint, docs))
    out = [POLICY_INTRO, "\n## Keys of a policy\n\n", POLICY_HEAD, *plain]
    for table, ones in groupby(rules, key=lambda rule: rule[0]):
        out.append(f"\n## `[{table}]`\n\n{docs.get(table, FIT_TEXT)}\n")
        for _, kind in ones:
            name = getattr(kind, "RULE", "")
            title = f'`rule = "{name}"`' if name else ""
            users = ", ".join(
                f"`{preset}`" for preset, policy in PRESETS.items() if type(getattr(policy, table)) is kind
            )
            out.append(f"\n### {title or kind.__name__}\n\n{inspect.cleandoc(kind.__doc__ or '')}\n\n")
            out.append(f"Used by {users}.\n\n" if users else "")
            out += [POLICY_HEAD, *policy_rows(table, kind)]
    return "".join(out)


POLICY_INTRO = "Defaults are those of the rule itself; a preset may set other values.\n"
POLICY_HEAD = "| key | default | accepts | meaning |\n|---|---|---|---|\n"
FIT_TEXT = "How a request that is too long is made to fit, whatever the policy."


def policy_rows(table: str, kind: type) -> Iterator[str]:
    """Yield the row of each key of a table, and of the tables inside it."""
    docs = field_docs(kind)
    for item, hint in typed_fields(kind):
        if is_dataclass(hint):
            yield from policy_rows(f"{table}.{item.name}", cast("type", hint))
        else:
            yield policy_row(f"{table}.{item.name}", item, hint, docs)


def policy_row(key: str, item: "Field[object]", hint: object, docs: Mapping[str, str]) -> str:
    """Return the row of one key."""
    meaning = cell(docs.get(item.name, ""))
    return f"| `{key}` | {default_text(item)} | {cell(bounds_text(item, hint))} | {meaning} |\n"


# The command line


def render_commands() -> str:
    """Return the help of every command, as the program prints it."""
    os.environ.update(COLUMNS=HELP_COLUMNS, NO_COLOR="1")
    from holdfast.apps.cli.parser import build_parser  # noqa: PLC0415 - it reads the width of the terminal

    out: list[str] = []
    for name, parser in subcommands(build_parser()):
        text = parser.format_help().replace(str(Path.home()), "~")
        out.append(f"\n## `holdfast {name}`\n\n```text\n{text.strip()}\n```\n")
    return "".join(out)


def subcommands(parser: argparse.ArgumentParser, before: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the commands of a parser, each with its name, and the commands of each."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            for name, inner in cast("dict[str, argparse.ArgumentParser]", action.choices).items():
                yield f"{before}{name}", inner
                yield from subcommands(inner, f"{before}{name} ")


# Events


def render_chat_events() -> str:
    """Return the events of `holdfast chat --json`."""
    from holdfast.apps.chat.plain_screen import CHAT_EVENT_NAMES  # noqa: PLC0415 - needs the extra `chat`

    named = cast("Mapping[type, str]", CHAT_EVENT_NAMES)
    return "".join(
        f"\n### `{name}`\n\n{cell(kind.__doc__ or '')}\n\n{plain_fields(kind)}" for kind, name in named.items()
    )


def plain_fields(kind: type) -> str:
    """Return the fields of a dataclass that is written as it is."""
    docs = field_docs(kind)
    hints = get_type_hints(kind)
    rows = [
        f"| `{item.name}` | {cell(type_text(hints[item.name]))} | {cell(docs.get(item.name, ''))} |\n"
        for item, _ in typed_fields(kind)
    ]
    return f"| key | type | meaning |\n|---|---|---|\n{''.join(rows)}" if rows else ""


def render_log_events() -> str:
    """Return the events of a session's log, with the keys under which they are stored."""
    out: list[str] = []
    for name, kind in sorted(codec.EVENT_TYPES.items()):
        out.append(f"\n### `{name}`\n\n{cell(kind.__doc__ or '')}\n\n| key | type | meaning |\n|---|---|---|\n")
        for stored in codec._fields(kind):  # pyright: ignore[reportPrivateUsage] - the one place with the stored names
            owner = dict(typed_fields_by_name(kind)).get(stored.owner, kind) if stored.owner else kind
            meaning = cell(field_docs(cast("type", owner)).get(stored.name, ""))
            needed = "" if stored.is_required else ", optional"
            out.append(f"| `{stored.key}` | {cell(type_text(stored.hint))}{needed} | {meaning} |\n")
    return "".join(out)


def typed_fields_by_name(kind: type) -> Iterator[tuple[str, object]]:
    """Yield the name and the type of each field."""
    for item, hint in typed_fields(kind):
        yield item.name, hint


# The control API


def render_control_api() -> str:
    """Return the routes of the control API, from the description that the gateway itself serves."""
    described = asyncio.run(read_openapi())
    rows = [
        f"| `{method.upper()} {path}` | {cell(one['summary'])} |\n"
        for path, methods in described["paths"].items()
        for method, one in methods.items()
    ]
    return f"| route | result |\n|---|---|\n{''.join(rows)}"


async def read_openapi() -> dict[str, Any]:
    """Ask a gateway of this process for its description."""
    import httpx  # noqa: PLC0415 - an extra

    from holdfast.gateway import Access, close_gateway, gateway_app  # noqa: PLC0415 - as above

    app = gateway_app(store="memory://", access=Access(control_token=TOKEN))
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            token = {"authorization": f"Bearer {TOKEN}"}
            answer = await client.get("/holdfast/v1/openapi.json", headers=token)
            return cast("dict[str, Any]", answer.raise_for_status().json())
    finally:
        await close_gateway(app)


# Errors


def render_errors() -> str:
    """Return every error, in the order of the tree: when it is raised, what to do, and its attributes."""
    return "".join(error_section(errors.HoldfastError, 0))


def error_section(kind: type[Exception], depth: int) -> Iterator[str]:
    """Yield the text of an error and of those below it."""
    bases = " → ".join(f"`{one.__name__}`" for one in reversed(kind.__mro__) if issubclass(one, errors.HoldfastError))
    yield f"\n## `{kind.__name__}`\n\n" if depth == 0 else f"\n### `{kind.__name__}`\n\n"
    yield f"{bases}\n\n" if depth > 0 else ""
    yield f"{inspect.cleandoc(kind.__doc__ or '')}\n"
    source = textwrap.dedent(inspect.getsource(kind))
    if facts := dict.fromkeys(re.findall(r"self\.(\w+) = ", source)):
        yield f"\nAttributes: {', '.join(f'`{name}`' for name in facts)}.\n"
    for one in kind.__subclasses__():
        if one.__module__ == errors.__name__:
            yield from error_section(one, depth + 1)


# Telemetry


def render_telemetry() -> str:
    """Return the names of spans, attributes and metrics, as an OpenTelemetry provider receives them."""
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: PLC0415 - as above
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - as above
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: PLC0415 - as above
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: PLC0415 - as above

    from holdfast.apps.gateway.provider_apis import Destination  # noqa: PLC0415 - as above
    from holdfast.apps.gateway.telemetry.tracing import ExchangeTracer  # noqa: PLC0415 - as above
    from holdfast.session.compaction.telemetry import Telemetry, flush_spans  # noqa: PLC0415 - as above

    exporter, reader, tracers = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    reporting = Telemetry(tracer_provider=tracers, meter_provider=MeterProvider(metric_readers=[reader]))
    usage = Usage(input_tokens=1, output_tokens=1)
    started = CompactionStarted(span=codec.Span(stop=1))
    done = CompactionCompleted(
        success=False, checkpoint_number=1, summary=Summary("", "MODEL", usage, 1, request_id="id")
    )
    span = reporting.compaction_started("id", started)
    with reporting.summary_call("id", "MODEL", provider="p") as call:
        call.record_reply(usage, model="MODEL", response_id="id")
    reporting.compaction_completed(
        "id", done, span=span, conversation_messages_before=1, conversation_messages_after=1, error_type="ErrorName"
    )
    reporting.compaction_completed("id", CompactionCompleted(success=True, summary=done.summary))
    exchange = ExchangeTracer(tracers)
    destination = Destination(upstream="openai", provider="openai", wire="openai-chat", path="/v1/chat", session=None)
    exchange.end(exchange.start("POST", {}, destination), status=500, session="id", ended="complete")
    flush_spans(5)
    return "".join([*span_tables(exporter.get_finished_spans()), *metric_rows(reader), *prometheus_rows()])


def span_tables(spans: Sequence[Any]) -> Iterator[str]:
    """Yield, for each span, its events and attributes."""
    for name, ones in groupby(sorted(spans, key=lambda span: span.name), key=lambda span: span.name):
        group = list(ones)
        attributes = sorted({key for span in group for key in span.attributes})
        events: dict[str, set[str]] = {}
        for event in (event for span in group for event in span.events):
            events.setdefault(event.name, set()).update(event.attributes)
        yield f"\n## The span `{name}`\n\nAttributes: {', '.join(f'`{key}`' for key in attributes)}.\n"
        for event, keys in events.items():
            yield f"\nIts event `{event}` has {', '.join(f'`{key}`' for key in sorted(keys))}.\n"


def metric_rows(reader: Any) -> Iterator[str]:  # noqa: ANN401 - the SDK is an extra
    """Yield the metrics that a meter provider received."""
    yield "\n## Metrics of OpenTelemetry\n\n| metric | kind | unit | meaning | attributes |\n|---|---|---|---|---|\n"
    data = reader.get_metrics_data()
    metrics = [one for resource in data.resource_metrics for scope in resource.scope_metrics for one in scope.metrics]
    for metric in sorted(metrics, key=lambda one: one.name):
        keys = sorted({key for point in metric.data.data_points for key in point.attributes})
        kind = "histogram" if "Histogram" in type(metric.data).__name__ else "counter"
        named = ", ".join(f"`{key}`" for key in keys)
        yield f"| `{metric.name}` | {kind} | {metric.unit} | {metric.description} | {named} |\n"


def prometheus_rows() -> Iterator[str]:
    """Yield the metrics that `/metrics` of the gateway has."""
    from holdfast.apps.gateway.telemetry.metrics import GatewayMetrics  # noqa: PLC0415 - an extra

    yield "\n## Metrics of the gateway, for Prometheus\n\n| metric | kind | meaning | labels |\n|---|---|---|---|\n"
    for metric in vars(GatewayMetrics()).values():
        if hasattr(metric, "describe"):
            (described,) = metric.describe()
            name = f"{described.name}_total" if described.type == "counter" else described.name
            labels = ", ".join(f"`{label}`" for label in metric._labelnames)  # noqa: SLF001 - it has no public name
            yield f"| `{name}` | {described.type} | {described.documentation} | {labels} |\n"


PARTS: Mapping[str, Callable[[], str]] = {
    "settings": render_settings,
    "policy": render_policy,
    "commands": render_commands,
    "chat-events": render_chat_events,
    "log-events": render_log_events,
    "control-api": render_control_api,
    "errors": render_errors,
    "telemetry": render_telemetry,
}
"""The parts by the names of their files."""


def write_reference(folder: Path) -> None:
    """Write every part, and leave a file alone that would be the same, so that its page is not built again."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, render in PARTS.items():
        text, target = render(), folder / f"{name}.md"
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_reference(Path(sys.argv[1]))
