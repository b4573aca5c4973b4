"""Writes the tables of docs/reference/settings.md from the declarations of the settings.

python scripts/settings_reference.py
"""

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from holdfast.apps.settings.policies import POLICY_LINKS, find_policy_link, linked_value
from holdfast.apps.settings.schema import SETTING_DECLARATIONS, SettingDeclaration
from holdfast.core.planning.policy import PRESETS

TARGET = Path(__file__).parent.parent / "docs" / "reference" / "settings.md"
BLOCK = re.compile(r"(?<=<!-- reference -->\n).*?(?=<!-- end -->)", re.DOTALL)
MAY = {"lower": "lower it", "any": "set it"}
HEAD = "| setting | default | what it is | also |\n|---|---|---|---|\n"


def render_reference() -> str:
    """Return the tables: one for each group of settings, what untrusted projects may set, and what the presets say."""
    groups = groupby(SETTING_DECLARATIONS.values(), key=lambda one: one.group)
    tables = [f"\n### {name}\n\n{HEAD}{''.join(map(render_row, ones))}" for name, ones in groups]
    before = "\n### What a project may set before you trust it\n\n"
    return "".join([*tables, before, *harmless(), "\n### What the presets say\n\n", *preset_rows(), "\n"])


def render_row(one: SettingDeclaration) -> str:
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


def main() -> None:
    """Write the tables into the page."""
    TARGET.write_text(BLOCK.sub(lambda _: render_reference(), TARGET.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
