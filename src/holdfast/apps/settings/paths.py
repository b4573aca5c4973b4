"""The paths of a program's files: the settings of the user and the project, and stored data."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from holdfast.errors import SettingsError

HOME_VARIABLE = "HOLDFAST_HOME"
SETTINGS_FILE, JSON_SETTINGS_FILE = "holdfast.toml", "config.json"
MAX_FOLDER_NAME_CHARS = 80
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPaths:
    """The folders of settings and of data."""

    user_folder: Path
    """The folder of the user's settings."""
    data_folder: Path
    """The folder of conversations, checkpoints, memory and boards."""
    cwd: Path
    project_folder: Path
    """The root of the repository around the working folder, or that folder itself."""
    is_cwd_deleted: bool = False
    """Whether the working folder was deleted; `cwd` is then the home folder, which is not taken for a project."""

    def check_cwd(self) -> None:
        """Raise if the working folder was deleted."""
        if self.is_cwd_deleted:
            raise SettingsError("the working folder", "was deleted; change to another one, such as: cd ~")

    @property
    def user_file(self) -> Path:
        """The user's settings file, which may be missing."""
        return self.user_folder / SETTINGS_FILE

    @property
    def project_file(self) -> Path | None:
        """The nearest settings file from the working folder up to the root of its repository."""
        return next(self.project_files(SETTINGS_FILE), None)

    @property
    def store(self) -> str:
        """The default store."""
        return f"sqlite:///{display_path(self.data_folder / 'chats.db')}"

    @property
    def prompt_history(self) -> Path:
        """The history of the input line."""
        return self.data_folder / "prompts"

    def attachments(self, session_id: str) -> Path:
        """Return the folder for the attachments of a session."""
        return self.data_folder / "attachments" / session_folder_name(session_id)

    def project_files(self, name: str) -> Iterator[Path]:
        """Yield the project's files with that name, the nearest first; skip the user's own file."""
        if self.is_cwd_deleted:
            return
        for folder in (self.cwd, *self.cwd.parents):
            path = folder / name
            if folder != self.user_folder and os.path.isfile(path):  # noqa: PTH113 - False if it cannot be checked
                yield path
            if folder == self.project_folder:
                return


def find_paths(environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> ProgramPaths:
    """Return the paths for an environment and a working folder.

    `$HOLDFAST_HOME` is one folder for everything. Without it, settings are in the configuration folder of the user
    and conversations in `~/.holdfast`.
    """
    known = os.environ if environ is None else environ
    present = cwd or _working_folder()
    here = (present or home_folder()).absolute()
    home, configured = known.get(HOME_VARIABLE), known.get("XDG_CONFIG_HOME")
    if home:
        user = data = _expand(home)
    else:
        data = home_folder() / ".holdfast"
        user = (_expand(configured) if configured else home_folder() / ".config") / "holdfast"
    return ProgramPaths(
        user_folder=user,
        data_folder=data,
        cwd=here,
        project_folder=_repository_root(here),
        is_cwd_deleted=present is None,
    )


def session_folder_name(session_id: str) -> str:
    """Return a valid folder name for any session id."""
    name = _UNSAFE.sub("-", session_id)[:MAX_FOLDER_NAME_CHARS].strip(".-")
    # A hash distinguishes ids that would give the same name.
    mark = "" if name == session_id else f"-{sha256(session_id.encode(errors='replace')).hexdigest()[:8]}"
    return f"{name}{mark}".lstrip("-")


def home_folder() -> Path:
    """Return the user's home folder; `/nonexistent` if it is unknown."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")


def _expand(text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        return Path(text).absolute()


def _working_folder() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was deleted
        return None


def _repository_root(folder: Path) -> Path:
    return next((one for one in (folder, *folder.parents) if os.path.exists(one / ".git")), folder)  # noqa: PTH110 - False if it cannot be checked


def display_path(path: Path) -> str:
    """Return a path with `~` for the home folder."""
    try:
        inside = path.relative_to(home_folder())
    except ValueError:
        return str(path)
    return f"~/{inside}" if inside.parts else "~"
