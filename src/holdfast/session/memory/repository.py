"""Which piece of work a folder belongs to: a repository and a branch, read off its files; else the folder itself."""

import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

MAX_HEAD_CHARS = 1_000
MAX_KEY_NAME_CHARS = 40
DETACHED_HEAD = "HEAD"
_REF = re.compile(r"ref:\s*refs/heads/(.+)")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository and a branch of it; a folder without a branch where there is no repository."""

    root: Path
    branch: str = ""

    @property
    def key(self) -> str:
        """What tells it from any other, as a part of a file's name."""
        name = _UNSAFE.sub("-", f"{self.root.name}-{self.branch}" if self.branch else self.root.name)
        mark = sha256(f"{self.root}\0{self.branch}".encode(errors="surrogateescape")).hexdigest()[:12]
        return f"{name[:MAX_KEY_NAME_CHARS].strip('.-') or 'folder'}-{mark}"

    def __str__(self) -> str:
        return f"{self.root}, branch {self.branch}" if self.branch else str(self.root)


def repository_of(folder: Path) -> Repository:
    """Return what a folder belongs to; a worktree belongs to the repository that it was made from."""
    here = folder.absolute()
    for root in (here, *here.parents):
        git = root / ".git"
        if (found := _git_folder(git)) is not None:
            common = _common_git_folder(found)
            return Repository(common.parent if common.name == ".git" else root, _branch(found))
    return Repository(here)


def _git_folder(git: Path) -> Path | None:
    """Return where a repository keeps its own: `.git`, or what a file of that name points to."""
    if _is_folder(git):
        return git
    told = _read_start(git).removeprefix("gitdir:").strip()
    pointed = (git.parent / told) if told else None
    return pointed if pointed is not None and _is_folder(pointed) else None


def _common_git_folder(git: Path) -> Path:
    told = _read_start(git / "commondir").strip()
    return (git / told).resolve() if told else git


def _branch(git: Path) -> str:
    head = _read_start(git / "HEAD").strip()
    found = _REF.fullmatch(head)
    return found[1].strip() if found else DETACHED_HEAD if head else ""


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def _read_start(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(MAX_HEAD_CHARS)
    except OSError:
        return ""
