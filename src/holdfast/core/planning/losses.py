"""What a fold would lose sight of: facts that must not be forgotten and that nothing in view shows after it.

For who looks at a fold before it is made. Nothing is lost for good: each fact names the message that it was read off.
"""

from collections.abc import Callable

from holdfast.core.history.events import CompactionCompleted
from holdfast.core.planning.effect import projection_after
from holdfast.core.planning.reference import message_texts
from holdfast.core.planning.steps import PlanInput
from holdfast.core.planning.summary.survival import FactReader, must_keep_lines, must_keep_of, must_keep_redacted


def lost_facts(
    compaction: CompactionCompleted, plan_input: PlanInput, hide: Callable[[str], str] = str
) -> tuple[str, ...]:
    """Return the facts that would not be in view after a fold, a line each; `hide` takes out what nobody may see."""
    facts = must_keep_redacted(
        must_keep_of(plan_input.history.ledger(plan_input.situation.scope, compaction.stop)), hide
    )
    sight = FactReader(map(hide, message_texts(projection_after(compaction, plan_input).entries)))
    return must_keep_lines(fact for fact in facts if not sight.contains(fact))
