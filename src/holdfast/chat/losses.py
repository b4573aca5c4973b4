"""What a summary does not show of what must not be forgotten, as a person reads it who may still refuse it."""

from collections.abc import Sequence

MAX_LISTED_FACTS = 10
"""How many facts of each sort a person is shown; a program has them all."""


def describe_losses(put_back: Sequence[str], left_out: Sequence[str]) -> str:
    """Return the facts that a summary had lost: those it was given back, and those that are one recall away."""
    return "\n\n".join(
        f"{heading}:\n{_fact_list(facts)}"
        for heading, facts in (
            ("The summary had lost, and was given back", put_back),
            ("Not in view any more, but one /show away", left_out),
        )
        if facts
    )


def _fact_list(facts: Sequence[str]) -> str:
    more = [f"- and {len(facts) - MAX_LISTED_FACTS:,} more"] if len(facts) > MAX_LISTED_FACTS else []
    return "\n".join([*(f"- {fact}" for fact in facts[:MAX_LISTED_FACTS]), *more])
