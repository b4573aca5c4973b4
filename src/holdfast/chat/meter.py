"""The line that says how full the context is."""

from holdfast.chat.chat import ChatStatus
from holdfast.session.compactor import COMPACTING_TEXT

PROVENANCE_MARKS = {"reported": "", "counted": "", "calibrated": "≈", "estimated": "~"}
"""How sure a number is: the provider's own or its vocabulary's, corrected by its reports, or a guess."""


def render_status_line(status: ChatStatus, *, busy: str = "", queued: int = 0, width: int = 80) -> str:
    """Return the status on one line, the most important first, as far as it fits."""
    share = status.tokens / max(1, status.budget)
    mark = PROVENANCE_MARKS.get(status.provenance, "~") if status.tokens else ""
    held, full = f"{mark}{status.tokens:,}/{status.budget:,}", f"{share:.0%}"
    ways = (f"{held} tokens ({full})", f"{held} ({full})", f"{full} full", full)
    parts = [next((way for way in ways if len(way) <= width), full)]
    if busy or status.is_compacting:
        parts.insert(0, busy or COMPACTING_TEXT)
    if queued:
        parts.append(f"{queued} queued")
    parts.append(status.model)
    if status.compactions:
        parts.append(f"{status.compactions} {'fold' if status.compactions == 1 else 'folds'}")
    if status.provenance:
        parts.append(status.provenance)
    if status.cost is not None:
        parts.append(f"${status.cost:.4f}")
    line = ""
    for part in parts:
        longer = f"{line} · {part}" if line else part
        if len(longer) > width:
            break
        line = longer
    return line or parts[0][: max(0, width)]
