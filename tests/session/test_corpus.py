"""Logs of every schema so far come in whole, go out to the letter, and prove what was sent."""

import json
from pathlib import Path

import pytest

from holdfast import Session
from holdfast.apps.cli.main import main
from holdfast.core.history.codec import EVENT_TYPES
from holdfast.testing.chat import user_message

CORPUS = Path(__file__).parent.parent / "corpus"
LOGS = sorted(CORPUS.glob("schema-*/*.jsonl"))


def kinds_of(file: Path) -> set[str]:
    return {json.loads(line)["type"] for line in file.read_text().split("\n")[1:] if line}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/chats.db"


@pytest.mark.parametrize("file", LOGS, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_log_comes_in_whole_and_goes_out_to_the_letter_with_every_request_proved(
    file: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", str(file), "--json", "--store", url]) == 0
    arrived = json.loads(capsys.readouterr().out)
    session = arrived["sessions"][0]["session"]

    assert (arrived["losses"], arrived["notes"], arrived["sessions"][0]["refused"]) == ([], [], [])
    assert main(["export", session, "--store", url]) == 0
    assert capsys.readouterr() == (file.read_text(), "")
    assert main(["replay", session, "--verify", "--json", "--store", url]) == 0
    proof = json.loads(capsys.readouterr().out)
    states = [request["state"] for request in proof["requests"]]
    sent = file.read_text().count('"type":"request.prepared"')
    assert (proof["damage"], len(states)) == ([], sent)
    assert set(states) <= {"same", "scrubbed"}
    assert states.count("scrubbed") == file.read_text().count('"type":"session.scrubbed"')


def test_the_logs_have_every_kind_of_event() -> None:
    assert set.union(*map(kinds_of, LOGS)) == set(EVENT_TYPES)


@pytest.fixture
def every_kind(url: str) -> str:
    """Bring in the log with every kind of event, and return where it is."""
    assert main(["import", str(CORPUS / "schema-1/every_kind.jsonl"), "--store", url]) == 0
    return url


async def test_a_log_with_every_kind_of_event_stands_as_it_stood(every_kind: str) -> None:
    async with Session.open("every-kind", store=every_kind) as session:
        history = session.history
        facts = history.session_state
        assert (len(session), history.can_undo, history.can_redo, session.damage) == (30, True, False, [])
        assert (facts.plan, facts.todos, facts.skills) == ("1. read 2. mend", "[ ] tests", {"review": "Read twice."})
        assert (facts.system, facts.tools, facts.model, facts.pins) == ("", (), "gpt-5", {1})
        assert facts.forked_from is not None
        assert (facts.forked_from.parent, facts.forked_from.at) == ("parent", 19)
        assert [entry.position for entry in history.context().visible_entries()] == [29]


async def test_a_log_with_every_kind_of_event_goes_on_from_before_its_last_change(every_kind: str) -> None:
    async with Session.open("every-kind", store=every_kind) as session:
        await session.undo()
        shown = session.history.context().visible_entries()

        assert [entry.message.text for entry in shown][-3:-1] == ["They pass.", "Use [scrubbed]."]
        assert shown[-1].message.text.startswith("Something else: a large message is kept apart.")
        assert await session.record([user_message("Go on.")]) == range(30, 31)
