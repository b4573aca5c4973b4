"""Skills: instructions for a kind of task, which the user keeps in folders and a model reads when it needs them.

A skill is a folder with a file SKILL.md, which begins with its name and its description between two lines `---`. Only
these two are always in the context. Which skills were used is state of the session, which a compaction keeps. A project
has skills of its own only if the user trusts it: they are instructions.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.apps.chat.tools.files import ToolRefusal
from holdfast.apps.settings.settings import Settings
from holdfast.apps.settings.trust import is_trusted
from holdfast.core.conversation.frames import neutralize
from holdfast.core.history.events import SkillInvoked
from holdfast.session.session import Session

SKILL_FILE = "SKILL.md"
SKILL_FOLDERS = (".holdfast/skills", ".claude/skills", ".agents/skills")
"""Where a project keeps its skills."""
MAX_SKILLS = 100
MAX_SKILL_CHARS = 60_000
MAX_SKILL_DESCRIPTION_CHARS = 300
FRONT_MATTER = "---"
_BLOCK_MARK = re.compile(r"[>|][0-9+-]{0,2}")
"""What YAML writes for a text that begins on the next line."""


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill that was found."""

    name: str
    description: str
    path: Path

    def read(self) -> str:
        """Return its instructions."""
        return _split_front_matter(_read_skill(self.path))[1].strip()


def skill_folders(settings: Settings) -> list[Path]:
    """Return where skills are: the project's, if the user trusts it, then the user's own."""
    project = settings.paths.project_folder
    of_project = [project / name for name in SKILL_FOLDERS] if is_trusted(project, settings.trust) else []
    return [*of_project, settings.paths.user_folder / "skills"]


def find_skills(folders: Sequence[Path]) -> dict[str, Skill]:
    """Return the skills of some folders by name; the first folder that has a name decides."""
    found: dict[str, Skill] = {}
    for folder in folders:
        for skill in _skills_in(folder):
            if len(found) < MAX_SKILLS:
                found.setdefault(skill.name, skill)
    return found


def _skills_in(folder: Path) -> Iterator[Skill]:
    for path in _skill_files(folder):
        try:
            fields, body = _split_front_matter(_read_skill(path))
        except OSError:
            continue  # the others are there nevertheless
        first = next((line.lstrip("# ").strip() for line in body.splitlines() if line.strip()), "")
        name = neutralize(fields.get("name") or path.parent.name, "name")
        yield Skill(name, neutralize(fields.get("description") or first, "item")[:MAX_SKILL_DESCRIPTION_CHARS], path)


def _skill_files(folder: Path) -> Sequence[Path]:
    """Return the files of the skills in a folder; a pipe of that name would never end."""
    try:
        return sorted(path for path in folder.glob(f"*/{SKILL_FILE}") if path.is_file())
    except OSError:
        return []


def _read_skill(path: Path) -> str:
    return path.read_text("utf-8", errors="replace").removeprefix("\ufeff")[:MAX_SKILL_CHARS]


def _split_front_matter(text: str) -> tuple[dict[str, str], str]:
    """Return the fields at the beginning of a file, and what follows."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != FRONT_MATTER:
        return {}, text
    end = next((number for number, line in enumerate(lines[1:], start=1) if line.strip() == FRONT_MATTER), None)
    if end is None:
        return {}, text
    return _fields_of(lines[1:end]), "\n".join(lines[end + 1 :])


def _fields_of(lines: Sequence[str]) -> dict[str, str]:
    """Return the fields of a front matter by name. A line that is indented continues the field above it."""
    parts: dict[str, list[str]] = {}
    key = ""
    for line in lines:
        if not line[:1].isspace() and ":" in line:
            name, _, value = line.partition(":")
            key = name.strip().lower()
            parts[key] = [] if _BLOCK_MARK.fullmatch(value.strip()) else [value.strip()]
        elif key and not line.startswith("#"):
            parts[key].append(line.strip())
    return {name: " ".join(filter(None, words)).strip("\"'") for name, words in parts.items()}


class SkillTool:
    """The tool with which a model reads a skill."""

    name = "use_skill"

    def __init__(self, skills: Mapping[str, Skill], session: Session) -> None:
        self._skills = skills
        self._session = session
        listed = "\n".join(f"- {skill.name}: {skill.description}" for skill in skills.values())
        purpose = "Read the instructions of a skill before you begin a task that it is for."
        self.description = f"{purpose} There are:\n{listed}"
        self.parameters: dict[str, object] = {
            "type": "object",
            "properties": {"name": {"type": "string", "enum": list(skills), "description": "The skill."}},
            "required": ["name"],
        }

    async def call(self, **arguments: object) -> str:
        """Return the instructions of a skill, and record that it is used."""
        return await invoke_skill(self._session, self._skills, str(arguments.get("name", "")))


async def invoke_skill(session: Session, skills: Mapping[str, Skill], name: str) -> str:
    """Return the instructions of a skill, and record that it is used."""
    skill = skills.get(name)
    if skill is None:
        return ToolRefusal(f"there is no skill {name!r:.60}; there are: {', '.join(skills) or 'none'}")
    try:
        instructions = skill.read()
    except OSError as error:
        return ToolRefusal(f"the skill {name} cannot be read: {error}")
    await session.record_state(SkillInvoked(name=name, instructions=instructions))
    return instructions or ToolRefusal(f"the skill {name} holds no instructions")
