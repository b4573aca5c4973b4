"""The receipts of changes of context: in words, in order, and whether each change is still in force."""

import pytest

from holdfast import MalformedInputError
from holdfast.core.conversation.spans import Span
from holdfast.core.history import events as log
from holdfast.core.planning.change_receipt import change_receipts, with_messages_restored
from holdfast.testing.chat import assistant_message, user_message
from holdfast.wire.formats import format_named
from tests.support import RecordedHistory

TALK = [
    log.MessageAppended(format="openai-chat", native=native)
    for native in (user_message("a"), assistant_message("b"), user_message("c"))
]
FOLD = log.CompactionCompleted(success=True, span=Span(stop=2), replacement=("So far.",))


def test_what_was_taken_back_and_stands_again_can_be_taken_back_again() -> None:
    before = change_receipts([*TALK, FOLD, log.ContextCleared(), log.ChangeUndone()])
    after = change_receipts([*TALK, FOLD, log.ContextCleared(), log.ChangeUndone(), log.ChangeRedone()])

    assert [(one.undo_steps, one.is_undone) for one in before] == [(1, False), (0, True)]
    assert [(one.undo_steps, one.is_undone) for one in after] == [(2, False), (1, False)]


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (log.OutputsOffloaded(line=2, max_chars=1_000), "tool outputs before #2 replaced by previews of 1,000 char"),
        (log.TurnsReducedToText(line=2), "turns before #2 reduced to their text"),
        (log.ContextCleared(), "context cleared"),
        (log.Rewound(to=1), "rewound to before #1"),
    ],
)
def test_each_kind_of_change_is_told_in_a_line(event: log.Event, told: str) -> None:
    (receipt,) = change_receipts([*TALK, event])

    assert told in str(receipt).splitlines()[0]


@pytest.mark.parametrize("positions", [(), "0", (2,), (True,), (0, -1)])
def test_only_what_the_last_compaction_holds_can_be_brought_back(positions: tuple[int, ...]) -> None:
    context = RecordedHistory.replay([*TALK, FOLD], format_named).context()

    with pytest.raises(MalformedInputError, match="positions: give positions between 0 and 1"):
        with_messages_restored(context, positions)
