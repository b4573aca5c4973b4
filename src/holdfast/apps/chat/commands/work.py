"""Commands for what a conversation works on: /attach, /plan, /todo, /skills and /skill."""

from holdfast.apps.chat.attachments import AttachedImage, AttachedText, is_pipe, read_attachment
from holdfast.apps.chat.chat import Chat
from holdfast.apps.chat.commands.registry import SlashCommandRegistry, parse_whole_number
from holdfast.apps.chat.events import CommandReply, CommandTable
from holdfast.apps.chat.tools.files import ToolRefusal
from holdfast.apps.chat.tools.plan import MAX_PLAN_CHARS, MAX_TODOS, parse_todos, render_todos
from holdfast.apps.chat.tools.skills import find_skills, invoke_skill, skill_folders
from holdfast.apps.threads import run_in_daemon_thread
from holdfast.core.history.events import PlanChanged, TodosChanged
from holdfast.errors import SettingsError
from holdfast.text import pluralize

WORK_COMMANDS = SlashCommandRegistry()


@WORK_COMMANDS.register("[FILE | clear]")
async def attach(chat: Chat, file: str) -> None:
    """Attach a file to the next prompt, as @FILE in it does.

    A file is text, or an image if the model takes images. Without FILE, list what is attached; `clear` removes what the
    next prompt would hold.
    """
    if file == "clear":
        chat.attached.clear()
        chat.notify("nothing is attached to the next prompt")
        return
    if file:
        name, folder = file.strip("\"'"), chat.file_tools.root
        if is_pipe(folder, name):
            raise SettingsError(name, "is a pipe, which may never end; write what it holds to a file, and attach that")
        attached = await run_in_daemon_thread(lambda: read_attachment(name, folder))
        if attached not in chat.attached:
            chat.attached.append(attached)
    await chat.follow_attachments()
    rows = [(one.name, _describe_size(one), "the next prompt") for one in chat.attached]
    rows += [
        (name, f"{len(text):,} characters", "the conversation") for name, text in chat.file_tools.attachments.items()
    ]
    if rows:
        chat.screen.show(CommandTable(("FILE", "SIZE", "PART OF"), rows))
    else:
        chat.notify("nothing is attached; /attach FILE attaches a file to the next prompt")


def _describe_size(attached: AttachedText | AttachedImage) -> str:
    if isinstance(attached, AttachedImage):
        return f"{len(attached.data):,} bytes, {attached.media_type}"
    return f"{pluralize(len(attached.text.splitlines()), 'line')}, {len(attached.text):,} characters"


@WORK_COMMANDS.register("[TEXT | clear]", completes=lambda _: ("clear",), is_immediate=True)
async def plan(chat: Chat, text: str) -> None:
    """Show or write the plan, which every compaction keeps.

    The model gets it with the next prompt; `clear` empties it.
    """
    if not text:
        chat.screen.show(
            CommandReply(chat.session.history.session_state.plan or "there is no plan; /plan TEXT writes one")
        )
        return
    if len(text) > MAX_PLAN_CHARS:
        raise SettingsError("/plan", f"takes at most {MAX_PLAN_CHARS:,} characters")
    new = "" if text == "clear" else text
    await chat.session.record_state(PlanChanged(text=new))
    chat.tell_model(f"The user changed the plan:\n{new or 'there is none any more'}")
    chat.notify("the plan is empty" if not new else "the plan is written down; the model gets it with the next prompt")


@WORK_COMMANDS.register(
    "[add TASK | done N | open N | clear]",
    aliases=["todos"],
    completes=lambda _: ("add ", "done ", "open ", "clear"),
    is_immediate=True,
)
async def todo(chat: Chat, arguments: str) -> None:
    """Show or change the list of tasks, which compactions keep.

    The model gets it with the next prompt.
    """
    todos = parse_todos(chat.session.history.session_state.todos)
    action, _, rest = arguments.partition(" ")
    rest = rest.strip()
    number = parse_whole_number(rest)
    match action:
        case "":
            _show_todos(chat, todos)
            return
        case "add" if rest:
            if len(todos) >= MAX_TODOS:
                raise SettingsError("/todo", f"the list has {MAX_TODOS} tasks, its limit; /todo clear empties it")
            todos.append((rest, "open"))
        case "done" | "open" if number is not None and 1 <= number <= len(todos):
            todos[number - 1] = (todos[number - 1][0], action)
        case "clear":
            todos = []
        case _:
            raise SettingsError(
                "/todo", "takes nothing, `add TASK`, `done N`, `open N` or `clear`; /todo shows the numbers"
            )
    text = render_todos(todos)
    await chat.session.record_state(TodosChanged(text=text))
    chat.tell_model(f"The user changed the list of tasks:\n{text or 'it is empty'}")
    _show_todos(chat, todos)


def _show_todos(chat: Chat, todos: list[tuple[str, str]]) -> None:
    if not todos:
        chat.notify("there are no tasks; /todo add TASK adds one")
        return
    rows = [(str(number), status.replace("_", " "), task) for number, (task, status) in enumerate(todos, start=1)]
    chat.screen.show(CommandTable(("N", "STATE", "TASK"), rows))


@WORK_COMMANDS.register(is_immediate=True)
async def skills(chat: Chat, _: str) -> None:
    """List the skills: instructions for a kind of task.

    They are in folders of your own, and of projects that you trust.
    """
    folders = skill_folders(chat.settings)
    rows = [(skill.name, skill.description) for skill in find_skills(folders).values()]
    if rows:
        chat.screen.show(CommandTable(("SKILL", "WHAT IT IS FOR"), rows))
    else:
        chat.notify(f"there are no skills; each is a folder with a file SKILL.md, in {folders[-1]}")


@WORK_COMMANDS.register("NAME [TASK]", completes=lambda chat: list(find_skills(skill_folders(chat.settings))))
async def skill(chat: Chat, arguments: str) -> None:
    """Let the model work by the instructions of a skill.

    TASK says on what; /skills lists the names.
    """
    if not arguments:
        raise SettingsError("/skill", "takes the name of a skill; /skills lists them")
    known = find_skills(skill_folders(chat.settings))
    # A name may have several words.
    named = [name for name in known if arguments.startswith(name) and not arguments[len(name) :][:1].strip()]
    name = max(named, key=len, default=arguments.split(maxsplit=1)[0])
    task = arguments[len(name) :].strip()
    found = await invoke_skill(chat.session, known, name)
    if isinstance(found, ToolRefusal):
        raise SettingsError("/skill", str(found))
    await chat.take_turn(f"Work by these instructions of the skill {name}:\n\n{found}\n\n{task}".strip())
