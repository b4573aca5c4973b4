"""A machine with files of settings, made anew for each test."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest

from holdfast.apps.settings.settings import Settings
from holdfast.apps.settings.sources import load_settings

Setup: TypeAlias = Callable[..., Settings]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The user's folder."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The root of a repository."""
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    return folder


@pytest.fixture
def settings(home: Path, project: Path) -> Setup:
    """Write the files that are given and load the settings of the project."""

    def setup(  # noqa: PLR0917
        user: str = "",
        project_file: str = "",
        config_json: str = "",
        environ: Mapping[str, str] | None = None,
        flags: Mapping[str, object] | None = None,
        is_tolerant: bool = False,  # noqa: FBT001, FBT002
    ) -> Settings:
        for path, text in (
            (home / "holdfast.toml", user),
            (project / "holdfast.toml", project_file),
            (project / "config.json", config_json),
        ):
            if text:
                path.write_text(text, encoding="utf-8")
        known = {"HOLDFAST_HOME": str(home), **(environ or {})}
        return load_settings(flags=flags, cwd=project, environ=known, is_tolerant=is_tolerant)

    return setup
