"""What a session goes on with when it is opened again, where that is less than all of it."""

from collections.abc import Sequence

from holdfast.core.conversation.groups import turns
from holdfast.core.conversation.view import Entry
from holdfast.core.conversation.words import turns_in_words
from holdfast.core.history import events as log
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.rules.turns import HalveTurns, restored_turns


def restoration(shown: Sequence[Entry], length: int, policy: Policy) -> list[log.Event]:
    """Return what is to happen to what stands: of the newest turns the words stay, where the policy wants that."""
    if policy.restore != "recent_text" or not isinstance(policy.fold, HalveTurns):
        return []
    events: list[log.Event] = []
    spans = turns(shown)
    newest = spans[-restored_turns(policy.fold.max_turns) :]
    if len(newest) < len(spans):
        line = shown[newest[0].start].position or 0
        events.append(log.CompactionCompleted(success=True, trigger="restore", stop=line))
    recent = [shown[index] for span in newest for index in span]
    if turns_in_words(recent, keep_last=0) != recent:
        events.append(log.TurnsReducedToText(line=length))
    return events
