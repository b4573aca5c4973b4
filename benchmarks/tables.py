"""Tables in Markdown: figures as ratios, a dash for what does not apply, and a reason for what failed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

DASH = "–"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column is text and whose others are figures."""
    rule = ["---", *["--:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def failed_cells(row: Mapping[str, Any], columns: int) -> list[str]:
    """Return the cells of a failed row: the reason, then empty cells."""
    reason = str(row["failed"]).replace("|", "\\|")
    return [str(row["name"]), f"**failed:** {reason}", *[""] * (columns - 2)]


def table_with_failures(
    head: Sequence[str], rows: Sequence[Mapping[str, Any]], cells: Callable[[Mapping[str, Any]], list[str]]
) -> str:
    """Return a table with the cells of each row, or the reason of its failure."""
    return markdown_table(head, [failed_cells(row, len(head)) if "failed" in row else cells(row) for row in rows])


def render_ratio(value: float, baseline: float | None) -> str:
    """Return the ratio of a value to the baseline."""
    if not baseline:
        return DASH
    ratio = value / baseline
    return f"×{ratio:,.0f}" if ratio >= 100 else f"×{ratio:.1f}" if ratio >= 0.95 else f"×{ratio:.2g}"


def render_share(part: int, whole: int) -> str:
    """Return a share in percent."""
    return f"{part / whole:.0%}" if whole else DASH


def render_claim(is_so: bool) -> str:  # noqa: FBT001 - a word for a claim
    """Return yes, or a no that stands out."""
    return "yes" if is_so else "**no**"


def render_milliseconds(seconds: float) -> str:
    """Return a time with its significant digits."""
    value = seconds * 1000
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
