"""What a session goes on with when it is opened again, where that is less than all of it."""

from holdfast.core.conversation.groups import turns
from holdfast.core.conversation.words import turns_in_words
from holdfast.core.history import events as log
from holdfast.core.history.context import Context
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.rules.turns import HalveTurns, restored_turns


def restoration(context: Context, policy: Policy) -> list[log.Event]:
    """Return what is to happen to what stands: of the newest turns the words stay, where the policy wants that."""
    if policy.restore != "recent_text" or not isinstance(policy.fold, HalveTurns):
        return []
    events: list[log.Event] = []
    shown, folded = context.shown(), max((fold.stop for fold in context.standing.folds), default=0)
    spans = turns(shown)
    newest = spans[-restored_turns(policy.fold.max_turns) :]
    line = (shown[newest[0].start].position or 0) if newest else 0
    # What a fold kept for a pin stands behind it with an older position: there is nothing more to fold before it.
    if len(newest) < len(spans) and line > folded:
        events.append(log.CompactionCompleted(success=True, trigger="restore", stop=line))
    recent = [shown[index] for span in newest for index in span]
    if turns_in_words(recent, keep_last=0) != recent:
        events.append(log.TurnsReducedToText(line=context.length))
    return events
