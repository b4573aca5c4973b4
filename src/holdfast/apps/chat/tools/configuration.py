"""Which files of a folder configure Holdfast itself: its settings, its skills, and what the settings name.

They decide which programs start without a question and which instructions a model gets. A permission to change files
would become a permission to run commands if it held for them too.
"""

from collections.abc import Sequence
from pathlib import Path
from unicodedata import category, normalize

from holdfast.apps.chat.tools.skills import SKILL_FILE, SKILL_FOLDERS, skill_folders
from holdfast.apps.settings.paths import JSON_SETTINGS_FILE, SETTINGS_FILE
from holdfast.apps.settings.settings import Settings
from holdfast.apps.settings.sources import JSON_KEY_PREFIX
from holdfast.session.compaction.hooks import HookCommand

_OWN_FOLDER = ".holdfast"


def folded_name(name: str) -> str:
    """Return a name of a file as the least exact file system compares it.

    Those of macOS and Windows ignore upper and lower case; some ignore invisible characters, or dots and spaces at the
    end, and what follows a colon.
    """
    visible = "".join(one for one in normalize("NFKC", name) if category(one) != "Cf")
    return visible.partition(":")[0].casefold().rstrip(". ")


class ConfigurationFiles:
    """The files that configure Holdfast in one folder."""

    def __init__(self, root: Path, settings: Settings | None = None) -> None:
        """Without settings, only names decide."""
        self._root = root
        self._settings = settings

    def has(self, path: Path, text: str = "") -> bool:
        """Return whether a resolved path inside the folder is one of them, whether it exists or not.

        `text` is what the file holds, and is to hold: a `config.json` is one only with keys of Holdfast.
        """
        parts = [folded_name(part) for part in path.relative_to(self._root).parts]
        if not parts or parts[-1] in {SETTINGS_FILE, SKILL_FILE.casefold()} or _OWN_FOLDER in parts:
            return True
        if any(f"/{folder}/" in f"/{'/'.join(parts)}/" for folder in SKILL_FOLDERS):
            return True
        if path in self._named_files() or any(path.is_relative_to(folder) for folder in self._named_folders()):
            return True
        is_json = parts[-1] == JSON_SETTINGS_FILE or path in _resolved(self._settings_files(JSON_SETTINGS_FILE))
        return is_json and JSON_KEY_PREFIX in text

    def _settings_files(self, name: str) -> Sequence[Path]:
        """Return the settings files with a name that the folder and the folders around it have."""
        around = () if self._settings is None else self._settings.paths.project_files(name)
        return [self._root / name, *around]

    def _named_folders(self) -> set[Path]:
        """Return the folders of skills, memory and boards; each can be a link to another place in the folder."""
        settings = self._settings
        places = [self._root / name for name in SKILL_FOLDERS]
        if settings is not None:
            places += [settings.paths.project_folder / name for name in SKILL_FOLDERS]
            places += [*skill_folders(settings), *(one for one in (settings.memory, settings.boards) if one)]
        return {linked for place in places for linked in _resolved([place, *_children(place)])} - {self._root}

    def _named_files(self) -> set[Path]:
        """Return the files of settings, those that settings name, and programs that start without a question."""
        places = [*self._settings_files(SETTINGS_FILE)]
        places += [skill / SKILL_FILE for name in SKILL_FOLDERS for skill in _children(self._root / name)]
        settings = self._settings
        if settings is not None:
            places += [file for file in (settings.system, settings.policy) if file is not None]
            files = [text.partition("=")[2].strip() for text in settings.gateway_policies]
            hooks = (*settings.hooks.pre_compact, *settings.hooks.post_compact)
            words = [word for hook in hooks if isinstance(hook, HookCommand) for word in hook.argv]
            words += [word for server in settings.mcp.values() for word in (server.command or "", *server.args)]
            places += [self._root / word for word in (*files, *words) if word]
        return _resolved(places)


def _children(folder: Path) -> Sequence[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _resolved(places: Sequence[Path]) -> set[Path]:
    found: set[Path] = set()
    for place in places:
        try:
            found.add(place.resolve())
        except (OSError, ValueError, RuntimeError):
            continue
    return found
