"""What a fold would lose sight of: facts that must not be forgotten and that nothing in view shows after it.

For who looks at a fold before it is made. Nothing is lost for good: each fact names the message that it was read off.
"""

from collections.abc import Callable

from holdfast.core.history.events import CompactionCompleted
from holdfast.core.planning.effect import seen_after
from holdfast.core.planning.reference import texts_of
from holdfast.core.planning.steps import Outlook
from holdfast.core.planning.summary.survival import Sight, facts_of, facts_without, lines_of


def losses(fold: CompactionCompleted, outlook: Outlook, hide: Callable[[str], str] = str) -> tuple[str, ...]:
    """Return the facts that would not be in view after a fold, a line each; `hide` takes out what nobody may see."""
    facts = facts_without(facts_of(outlook.history.ledger(outlook.situation.scope, fold.stop)), hide)
    sight = Sight(map(hide, texts_of(seen_after(fold, outlook).entries)))
    return lines_of(fact for fact in facts if not sight.shows(fact))
