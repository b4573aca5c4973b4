"""`holdfast import --from` and `holdfast lab run --from` show people their own sessions."""

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.cli.conftest import run
from tests.importers.reading import copy_of

MEMORY_FILES = Path("/dev/shm")  # noqa: S108 - a test makes a folder of its own in it
SESSION = "pi-01a00000-0000-7000-8000-0000000000aa"


def test_sessions_are_imported_listed_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, store = copy_of("pi", tmp_path), f"sqlite:///{tmp_path}/store.db"

    code, first, told = run(capsys, "import", "--from", "pi", str(root), "--store", store)
    again = run(capsys, "import", "--from", "pi", str(root), "--store", store)
    _, shown, _ = run(capsys, "show", "pi-01a", "--store", store)

    assert (code, told, again[0], again[2]) == (0, "", 0, "")
    titles, row, total = first.splitlines()
    assert titles.split() == ["NEW", "MESSAGES", "DATE", "SIZE", "MODEL", "FOLDER", "TITLE", "ID"]
    assert row.split()[:2] + row.split()[-4:] == ["13", "13", "m", "/home/ada/boat", "Sails", SESSION]
    assert total == "pi: 1 new session, 0 with new messages, 0 unchanged; 13 messages imported"
    assert again[1].splitlines()[2] == "pi: 0 new sessions, 0 with new messages, 1 unchanged; 0 messages imported"
    assert "Two holes were mended." in shown
    assert "Check the sails" not in shown


def test_sessions_are_listed_without_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = copy_of("opencode", tmp_path)

    options = ["--list", "--json", "--store", f"sqlite:///{tmp_path}/s.db"]
    _, output, _ = run(capsys, "import", "--from", "opencode", str(root), *options)

    (listed,) = json.loads(output)["sessions"]
    assert listed | {"modified_ms": 0, "size": 0, "path": ""} == {
        "session": "opencode-ses_1",
        "title": "Fish in the lake",
        "folder": "/home/ada/lake",
        "model": "m",
        "modified_ms": 0,
        "size": 0,
        "path": "",
    }
    assert not (tmp_path / "s.db").exists()


@pytest.mark.skipif(not MEMORY_FILES.is_dir(), reason="there is no file system that keeps any time")
def test_a_file_from_beyond_the_year_9999_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with TemporaryDirectory(dir=MEMORY_FILES) as folder:
        root = copy_of("pi", Path(folder))
        (path,) = root.glob("sessions/*/*.jsonl")
        os.utime(path, (10**12, 10**12))

        code, listed, told = run(capsys, "import", "--from", "pi", str(root), "--list")

    titles, row = listed.splitlines()
    assert (code, titles.split()[0], row.split()[0], row.split()[-1], told) == (0, "DATE", "9999-12-31", SESSION, "")


def test_lines_that_were_not_read_are_told_and_give_another_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy_of("pi", tmp_path)
    (path,) = root.glob("sessions/*/*.jsonl")
    with path.open("a") as file:
        file.write('{"type": "teapot", "parentId": "p19", "id": "p20"}\nnot JSON\n{"type": "mess')

    code, _, told = run(capsys, "import", "--from", "pi", str(root), "--store", f"sqlite:///{tmp_path}/store.db")

    assert code == 1
    assert told.splitlines() == [
        f"holdfast: {SESSION}: 1 line not read: not JSON",
        f"holdfast: {SESSION}: 1 line of a kind not known (pi 3): teapot (1)",
        f"holdfast: {SESSION}: the last line is not complete; the next import reads it",
    ]


def test_no_sessions_are_said_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    store = f"sqlite:///{tmp_path}/store.db"
    sentence = (
        f"there are no sessions of Codex in {tmp_path}/.codex/sessions or {tmp_path}/.codex/archived_sessions; "
        "if they are elsewhere, give that folder as PATH"
    )

    assert run(capsys, "import", "--from", "codex", "--store", store) == (0, "", f"holdfast: {sentence}\n")
    assert run(capsys, "lab", "run", "--from", "codex") == (
        2,
        "",
        f"holdfast: --from: {sentence}; there is nothing to replay\n",
    )


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["import"], "PATH: is missing; name a file, or a program with --from"),
        (["import", "x.jsonl", "--list"], "--list: needs a program whose sessions to list; name one with --from"),
        (["import", "x.jsonl", "--as", ""], "--as: is empty; give the id of the new session, or leave it out"),
        (["import", "--from", "pi", "/nowhere"], "PATH: there is no file or folder '/nowhere'"),
        (
            ["import", "--from", "pi", "--as", "x"],
            "--as: names the session of a file; with --from, each session keeps its own id",
        ),
        (
            ["lab", "run", "--from", "emacs"],
            "--from: 'emacs' is not known; choose one of: claude-code, codex, copilot, gemini, opencode, pi",
        ),
    ],
)
def test_wrong_arguments_are_explained(
    arguments: list[str],
    problem: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", f"sqlite:///{tmp_path}/store.db")
    (tmp_path / "store.db").touch()

    done = run(capsys, *arguments)

    assert done == (2, "", f"holdfast: {problem}\n")


def test_the_lab_says_what_each_policy_would_have_cost_broken_and_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = copy_of("pi", tmp_path)
    options = ["--budget", "3100,50000", "--baselines", "full,threshold", "--jobs", "1"]

    _, output, _ = run(capsys, "lab", "run", "--from", "pi", str(root), *options)

    lines = output.splitlines()
    assert lines[0] == "At 3,100 tokens, 5 requests of 1 session would have:"
    assert [line.split(",")[0].split()[:2] for line in lines[1:4]] == [
        ["full", "cost"],
        ["threshold", "cost"],
        ["default", "cost"],
    ]
    assert all("broken" in line for line in lines[1:4])
    assert "  Every request fits whole, so no policy had to leave anything out; try a smaller --budget." in lines


def test_a_list_for_people_names_what_was_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, elsewhere = copy_of("pi", tmp_path), tmp_path / "elsewhere.jsonl"
    elsewhere.write_text('{"type": "session", "id": "secret"}\n')
    (root / "link.jsonl").symlink_to(elsewhere)

    code, out, told = run(
        capsys, "import", "--from", "pi", str(root), "--list", "--store", f"sqlite:///{tmp_path}/s.db"
    )

    titles, row = out.splitlines()
    assert (code, titles.split()) == (0, ["DATE", "SIZE", "MODEL", "FOLDER", "TITLE", "ID"])
    assert row.split()[-4:] == ["m", "/home/ada/boat", "Sails", SESSION]
    assert told == f"holdfast: not read: {root}/link.jsonl is a link that leads elsewhere\n"


def test_an_unfinished_answer_and_a_changed_log_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, store = copy_of("gemini", tmp_path), f"sqlite:///{tmp_path}/store.db"
    session = "gemini-9e319100-0000-4000-8000-000000000001"
    (path,) = root.glob("tmp/sky/chats/*12-00*.jsonl")
    thinking = {"id": "z", "type": "gemini", "thoughts": [{"subject": "Stars"}], "content": ""}
    with path.open("a") as file:
        file.write(json.dumps(thinking) + "\n")

    first = run(capsys, "import", "--from", "gemini", str(root), "--store", store)
    path.write_text(path.read_text().replace("Good night", "Sleep well"))
    second = run(capsys, "import", "--from", "gemini", str(root), "--store", store)

    waiting = f"holdfast: {session}: an answer that may still be written was left for the next import\n"
    changed = f"holdfast: {session}: its log was changed from message 13 on; the session was rewound there\n"
    assert (first[0], first[2]) == (0, waiting)
    assert (second[0], second[2]) == (0, waiting + changed)


def test_a_scrub_names_the_program_s_own_log_that_still_has_the_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, store = copy_of("pi", tmp_path), f"sqlite:///{tmp_path}/store.db"
    run(capsys, "import", "--from", "pi", str(root), "--store", store)

    code, _, told = run(capsys, "scrub", "pi-", "Sails", "--store", store)

    (source,) = root.rglob("*.jsonl")
    assert (code, told.splitlines()[-1]) == (
        0,
        f"holdfast: the session was imported from {source}; remove the secret there too",
    )
