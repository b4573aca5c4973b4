"""The status line: how full the context is."""

import pytest

from holdfast.apps.chat.chat import ChatStatus
from holdfast.apps.chat.terminal_screen import render_status_line

STATUS = ChatStatus(model="gpt-5", budget=100_000, tokens=12_345, provenance="calibrated", cost=0.0421, compactions=2)


def test_the_meter_says_tokens_share_model_folds_provenance_and_cost() -> None:
    assert (
        render_status_line(STATUS, width=100)
        == "≈12,345/100,000 tokens (12%) · gpt-5 · 2 compactions · calibrated · $0.0421"
    )


@pytest.mark.seed("C-51")
def test_the_meter_says_that_history_is_being_compacted() -> None:
    status = ChatStatus(model="gpt-5", budget=1_000, is_compacting=True)

    assert render_status_line(status, width=100).startswith("Compacting conversation history · 0/1,000 tokens (0%)")


@pytest.mark.parametrize(
    ("width", "shown"),
    [(30, "≈12,345/100,000 tokens (12%)"), (21, "≈12,345/100,000 (12%)"), (20, "12% full · gpt-5"), (4, "12%")],
)
def test_a_narrow_meter_still_says_how_full_it_is(width: int, shown: str) -> None:
    assert render_status_line(STATUS, width=width) == shown


@pytest.mark.parametrize("width", range(80))
def test_the_meter_fits_any_width(width: int) -> None:
    assert len(render_status_line(STATUS, busy="starting the embedded model", queued=3, width=width)) <= width
