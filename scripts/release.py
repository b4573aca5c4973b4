"""Go through the checklist of a release, and stop at the first step that fails.

It uploads nothing and changes nothing but `dist` and `build`. docs/maintainers/releasing.md has the steps by hand.
"""

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from holdfast import __version__

ROOT = Path(__file__).parent.parent
RESERVED = (".example", ".invalid", ".test", ".localhost", "example.com", "example.org", "example.net")
"""How names end that belong to nobody (RFC 2606)."""
STORED_NAMES = "tests/persisted_names.json"


class NotReadyError(Exception):
    """Raised when a step of the checklist is not done; the message says what to do."""


def git(*arguments: str) -> str:
    """Return what git prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.rstrip()


def make(target: str) -> None:
    """Run a target of the Makefile."""
    if subprocess.run(["make", "--no-print-directory", target], cwd=ROOT, check=False).returncode != 0:
        raise NotReadyError(f"make {target} failed")


def project() -> dict[str, object]:
    """Return the metadata of the project."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def version_key(version: str) -> tuple[int, ...]:
    """Return the numbers of a version."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise NotReadyError(f"{version!r} is not a version such as 0.2.0")
    return tuple(map(int, version.split(".")))


def last_tag() -> str | None:
    """Return the newest tag of a release."""
    tags = git("tag", "--list", "v*.*.*", "--sort=-version:refname").splitlines()
    return tags[0] if tags else None


def check_version(version: str) -> None:
    """Check that the version is declared, and newer than the last one."""
    if __version__ != version:
        raise NotReadyError(f"src/holdfast/__init__.py says {__version__}; set it to {version}")
    before = last_tag()
    if before and version_key(version) <= version_key(before.removeprefix("v")):
        raise NotReadyError(f"{version} is not newer than {before}")


def check_clean(_: str) -> None:
    """Check that everything is committed."""
    if changed := git("status", "--short"):
        raise NotReadyError(f"commit these first:\n{changed}")


def changelog_section(version: str) -> str:
    """Return what the changelog says about a version."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = dict(
        re.findall(r"^## \[?([\w.]+)\]?(?: - \d{4}-\d{2}-\d{2})?\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    )
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d{{2}}-\d{{2}}$", text, re.MULTILINE):
        raise NotReadyError(f"CHANGELOG.md needs a heading `## [{version}] - YYYY-MM-DD`")
    if sections.get("Unreleased", "").strip():
        raise NotReadyError(f"CHANGELOG.md still has lines under Unreleased; move them to {version}")
    return sections[version].strip()


def check_changelog(version: str) -> None:
    """Check that the changelog has the version, with a date, and nothing left over."""
    changelog_section(version)


def check_addresses(_: str) -> None:
    """Check that the addresses of the project belong to somebody."""
    urls = project()["urls"]
    assert isinstance(urls, dict)  # noqa: S101 - TOML says so
    for name, url in urls.items():
        host = urlsplit(str(url)).hostname or ""
        if host.endswith(RESERVED):
            raise NotReadyError(f"pyproject.toml: project.urls.{name} is {url}, a name that belongs to nobody; set it")


def check_stored_names(_: str) -> None:
    """Check that no name that a log of the last release may hold has gone."""
    before = last_tag()
    if before is None:
        return
    old: object = json.loads(git("show", f"{before}:{STORED_NAMES}"))
    new: object = json.loads((ROOT / STORED_NAMES).read_text(encoding="utf-8"))
    if gone := sorted(flat_names(old) - flat_names(new)):
        raise NotReadyError(f"{STORED_NAMES} lost names that old logs may hold: {', '.join(gone)}")


def flat_names(value: object, place: str = "") -> set[str]:
    """Return every name in a tree of names, with its place."""
    if isinstance(value, dict):
        return {
            one for key, inner in value.items() for one in ({f"{place}/{key}"} | flat_names(inner, f"{place}/{key}"))
        }
    if isinstance(value, list):
        return {one for inner in value for one in flat_names(inner, place)}
    return {f"{place}/{value}"}


def write_notes(version: str) -> None:
    """Write the release notes, from the changelog."""
    target = ROOT / "dist" / "NOTES.md"
    target.parent.mkdir(exist_ok=True)
    name = project()["name"]
    target.write_text(
        f"# Holdfast {version}\n\n{changelog_section(version)}\n\n"
        f"Install: `pip install {name}`, or `pip install '{name}[programs]'` for every program.\n",
        encoding="utf-8",
    )
    print(f"wrote {target.relative_to(ROOT)}")


STEPS: tuple[tuple[str, Callable[[str], None]], ...] = (
    ("version", check_version),
    ("clean", check_clean),
    ("changelog", check_changelog),
    ("addresses", check_addresses),
    ("stored names", check_stored_names),
    ("tests", lambda _: make("test")),
    ("documentation", lambda _: make("docs")),
    ("artifacts", lambda _: make("release-check")),
    ("notes", write_notes),
)


def main(arguments: list[str]) -> int:
    """Go through the steps."""
    parser = argparse.ArgumentParser(prog="python -m scripts.release", description=__doc__)
    parser.add_argument("version", metavar="VERSION", help="the version to release, such as 0.2.0")
    version: str = parser.parse_args(arguments).version
    for name, step in STEPS:
        try:
            version_key(version)
            step(version)
        except NotReadyError as error:
            print(f"not ready: {name}: {error}", file=sys.stderr)
            return 1
        print(f"ok: {name}")
    print(f"ready: tag it (git tag -s v{version}), upload dist/*.whl and dist/*.tar.gz, publish build/docs")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
