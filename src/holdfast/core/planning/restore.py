"""What a session goes on with when it is opened again, where that is less than all of it."""

from holdfast.core.conversation.groups import turn_ranges
from holdfast.core.conversation.words import turns_as_text
from holdfast.core.history import events as log
from holdfast.core.history.context import Context
from holdfast.core.planning.policy import Policy
from holdfast.core.planning.rules.turns import CowAgentCompaction, restored_turn_count


def restore_events(context: Context, policy: Policy) -> list[log.Event]:
    """Return what is to happen to what stands: of the newest turns the words stay, where the policy wants that."""
    if policy.restore != "recent_text" or not isinstance(policy.fold, CowAgentCompaction):
        return []
    events: list[log.Event] = []
    shown, folded = context.visible_entries(), max((fold.stop for fold in context.state.compactions), default=0)
    spans = turn_ranges(shown)
    newest = spans[-restored_turn_count(policy.fold.max_turns) :]
    line = (shown[newest[0].start].position or 0) if newest else 0
    # What a fold kept for a pin stands behind it with an older position: there is nothing more to fold before it.
    if len(newest) < len(spans) and line > folded:
        events.append(log.CompactionCompleted(success=True, trigger="restore", stop=line))
    recent = [shown[index] for span in newest for index in span]
    if turns_as_text(recent, keep_last=0) != recent:
        events.append(log.TurnsReducedToText(line=context.length))
    return events
