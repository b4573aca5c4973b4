"""The policies that can be replayed, by name: presets, files, and baselines."""

import difflib
from pathlib import Path

from holdfast.apps.lab.baselines import BASELINES
from holdfast.core.planning.policy import PRESETS, Policy, read_policy
from holdfast.errors import SettingsError

SUMMARY_OPTION = "summary"
"""The option after a policy's name and a plus that makes a model write summaries."""


def find_policy(name: str, setting: str = "--policy") -> tuple[Policy, bool]:
    """Return a policy by its name, and whether a model writes summaries; raise `SettingsError` if it is unknown."""
    stem, _, option = name.partition("+")
    if option not in {"", SUMMARY_OPTION}:
        raise SettingsError(setting, f"{option!r} is not known; write {stem}+{SUMMARY_OPTION} for a summarizer")
    if stem in PRESETS:
        return PRESETS[stem], bool(option)
    if not stem.endswith(".toml"):
        near = difflib.get_close_matches(stem, [*PRESETS, *BASELINES], n=1)
        known = f"presets: {', '.join(PRESETS)}; baselines: {', '.join(BASELINES)}; or a file: my.toml"
        raise SettingsError(setting, f"{name!r} is not known;{f' did you mean {near[0]!r}?' if near else ''} {known}")
    try:
        return read_policy(Path(stem).read_text(encoding="utf-8")), bool(option)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SettingsError(setting, f"{stem} cannot be read: {why}") from error
    except SettingsError as error:
        raise SettingsError(setting, f"{stem}: {error}") from error
