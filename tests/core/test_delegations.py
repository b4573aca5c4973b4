"""Nothing of one delegation reaches another, whatever tree they form and whatever becomes of the context."""

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.conversation.spans import Span
from holdfast.core.conversation.tokens import Counter
from holdfast.core.history import events as log
from holdfast.core.history.codec import from_record, to_record
from holdfast.core.history.history import History
from holdfast.core.history.scopes import FUTURE_DELEGATE, delegation_records
from holdfast.core.history.visibility import Visibility, choose_visible
from holdfast.core.ledger.render import render_ledger
from holdfast.counters.vocabularies import counter_for
from holdfast.errors import MalformedInputError
from holdfast.testing.chat import assistant_message, tool_call_message, tool_result_message, user_message
from holdfast.wire.formats import format_named
from tests.support import RecordedHistory, appended

COUNTER: Counter = counter_for(None)
CHOSEN = st.builds(
    Visibility,
    everything=st.booleans(),
    pins=st.booleans(),
    ledger=st.booleans(),
    files=st.booleans(),
    turns=st.integers(0, 3),
    max_tokens=st.one_of(st.none(), st.integers(0, 400)),
)
KINDS = (*["begin", "work", "compact"] * 3, "ask", "tell", "end", "clear", "pin", "undo", "rewind")
SEES = st.one_of(st.just(Visibility(everything=True)), CHOSEN)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.sampled_from([0, 0, 0, 1, 1, 2, 3, 4, 7, 12]),
        SEES,
        st.sampled_from(["everything", "answers", "nothing"]),
    ),
    min_size=4,
    max_size=40,
)


@dataclass
class Tree:
    """A conversation with delegations, told one step at a time; every message says whose it is."""

    history: RecordedHistory = field(default_factory=lambda: RecordedHistory(format_named))
    scopes: list[str] = field(default_factory=lambda: [log.MAIN])
    numbers: "count[int]" = field(default_factory=count)

    def take(self, step: str, number: int, sees: Visibility, main_sees: str) -> None:
        scope = self.scopes[number % len(self.scopes)]
        match step:
            case "begin":
                self._begin(scope, sees, main_sees)
            case "ask":
                self._say(scope, user_message(f"Never touch src/{self._mark(scope)}.py again."))
            case "work":
                mark = self._mark(scope)
                self._say(scope, tool_call_message(mark, arguments={"path": f"src/{mark}.py"}))
                self._say(scope, tool_result_message(mark, f"content of {mark}"))
            case "tell":
                self._say(scope, assistant_message(f"Found in {self._mark(scope)}"))
            case "compact":
                self._compact(scope)
            case _:
                self._change(step, scope, number)

    def _change(self, step: str, scope: str, number: int) -> None:
        if step == "end" and scope != log.MAIN:
            self.history.append(log.DelegationFinished(scope=scope, answer=self._mark(scope)))
        elif step == "clear":
            self.history.append(log.ContextCleared(scope=scope))
        elif step == "undo":
            self.history.append(log.ChangeUndone())
        elif step == "pin" and len(self.history):
            self.history.append(log.Pinned(position=number % len(self.history)))
        elif step == "rewind" and len(self.history):
            self.history.append(log.Rewound(to=number % len(self.history)))

    def _mark(self, scope: str) -> str:
        return f"mark_{self.scopes.index(scope)}_{next(self.numbers)}_"

    def _say(self, scope: str, native: dict[str, object]) -> None:
        self.history.append(log.MessageAppended(format="openai-chat", native=native, scope=scope))

    def _begin(self, parent: str, sees: Visibility, main_sees: str) -> None:
        shown = choose_visible(self.history, parent, sees, COUNTER)
        scope = f"d{len(self.scopes)}"
        self.scopes.append(scope)
        event = log.DelegationStarted(
            scope=scope,
            agent=scope,
            parent=parent,
            visibility=sees.to_json(),
            visible_spans=shown.spans,
            briefing=shown.briefing,
            main_visibility=main_sees,
        )
        self.history.append(event)
        self._say(scope, user_message(f"{shown.briefing} {self._mark(scope)}"))

    def _compact(self, scope: str) -> None:
        """Compact all that an agent sees into a text that repeats all of it."""
        shown = self.history.context(scope).visible_entries()
        text = " ".join(str(entry.message) for entry in shown) + render_ledger(
            self.history.ledger(scope, len(self.history)), 2_000, COUNTER
        )
        stop = len(self.history)
        self.history.append(
            log.CompactionCompleted(success=True, span=Span(stop=stop), replacement=(text,), scope=scope)
        )


def told(steps: Any) -> Tree:
    tree = Tree()
    for step in steps:
        tree.take(*step)
    return tree


def foreign_marks(tree: Tree, scope: str) -> list[str]:
    """Return how everything begins that an agent must not see."""
    line = tree.history.scopes.lineage(scope)
    return [f"mark_{number}_" for number, other in enumerate(tree.scopes) if other not in line]


@pytest.mark.seed("B-19", "B-20", "B-21")
@given(STEPS)
def test_nothing_of_an_unrelated_delegation_is_in_any_view(steps: Any) -> None:
    tree = told(steps)

    for scope in tree.scopes[1:]:
        context = tree.history.context(scope)
        view = " ".join(str(entry.message) for entry in context.visible_entries())
        view += render_ledger(tree.history.ledger(scope, len(tree.history)), 4_000, COUNTER)
        # What may be recalled or found is what stands for an agent.
        view += " ".join(str(entry.message) for entry in context.entries_between(0, context.length))
        assert [mark for mark in foreign_marks(tree, scope) if mark in view] == []


@given(STEPS, SEES)
def test_whoever_is_sent_out_next_is_shown_nothing_of_those_beside(steps: Any, sees: Visibility) -> None:
    tree = told(steps)

    for parent in tree.scopes:
        shown = choose_visible(tree.history, parent, sees, COUNTER)
        line = tree.history.scopes.lineage(parent)
        told_of = [f"mark_{number}_" for number, other in enumerate(tree.scopes) if other not in line]
        positions = [position for start, stop in shown.spans for position in range(start, stop)]
        assert {tree.history.message_scopes[position] for position in positions} <= line
        assert [mark for mark in told_of if mark in shown.briefing] == []
        if sees.max_tokens is not None:
            assert shown.tokens <= sees.max_tokens


@given(STEPS)
def test_what_everybody_sees_is_the_same_after_a_replay_and_after_a_snapshot(steps: Any) -> None:
    tree = told(steps)

    replayed = History.replay([from_record(to_record(event)) for event in tree.history.events], format_named)
    resumed = History.from_snapshot(tree.history.snapshot(), format_named)
    for event, position in zip(_said(tree), range(len(tree.history)), strict=True):
        resumed.load_message(position, event)

    for scope in tree.scopes:
        expected = tree.history.context(scope).visible_entries()
        assert replayed.context(scope).visible_entries() == expected
        assert resumed.context(scope).visible_entries() == expected


def _said(tree: Tree) -> list[log.MessageAppended]:
    return [event for event in tree.history.events if isinstance(event, log.MessageAppended)]


def test_a_compaction_that_holds_the_work_of_one_delegate_is_not_shown_to_another() -> None:
    tree = told(
        [
            ("ask", 0, Visibility(), ""),
            ("begin", 0, Visibility(everything=True), "everything"),
            ("work", 1, Visibility(), ""),
        ]
    )

    tree.take("compact", 0, Visibility(), "")
    tree.take("begin", 0, Visibility(everything=True), "everything")

    assert [entry.position for entry in tree.history.context("d2").visible_entries()] == [0, 4]
    assert len(tree.history.context().visible_entries()) == 2


@pytest.mark.parametrize(("scope", "parent"), [("main", "main"), ("a", "a"), (FUTURE_DELEGATE, "main"), ("a", "b")])
def test_a_delegation_in_a_circle_is_refused_and_leaves_no_trace(scope: str, parent: str) -> None:
    history = RecordedHistory(format_named)
    history.append(log.DelegationStarted(scope="b", agent="b", parent="a"))

    with pytest.raises(MalformedInputError):
        history.append(log.DelegationStarted(scope=scope, agent="x", parent=parent))

    assert history.scopes.parents == {"b": "a"}


def test_what_was_kept_for_a_delegate_goes_when_it_ends() -> None:
    history = RecordedHistory(format_named)
    history.append(appended(user_message("go")))
    history.append(log.DelegationStarted(scope="a", agent="x"))
    own, main = history.projection(COUNTER, "a"), history.projection(COUNTER)

    assert history.projection(COUNTER, "a") is own
    history.append(log.DelegationFinished(scope="a", answer="so"))
    assert (history.projection(COUNTER, "a") is own, history.projection(COUNTER) is main) == (False, True)


def test_what_a_delegate_saw_is_told_in_words() -> None:
    begun = log.DelegationStarted(scope="a", agent="x", visible_spans=((0, 3), (7, 8)), briefing="Files: …")
    nothing = log.DelegationStarted(scope="b", agent="y")

    found = delegation_records([(1, begun), (2, nothing), (3, log.DelegationFinished(scope="a", answer="so"))])

    assert [one.description for one in found] == ["4 messages (#0–#2, #7) and a briefing about the rest", "nothing"]
    assert [(one.state, one.started_ms, one.ended_ms) for one in found] == [("answered", 1, 3), ("running", 2, None)]
