"""Which bills are believed: those that go up and down with what is sent."""

import pytest

from holdfast.core.history.events import Usage
from holdfast.session.calibration import UsageCalibrator
from holdfast.stores.memory import MemoryStore


async def paid(*bills: tuple[int, int]) -> tuple[float, int | None]:
    """Return the factor (in steps, rounded up) and the window that were learned of what was sent and billed."""
    meter = UsageCalibrator(MemoryStore())
    for sent, billed in bills:
        meter.record_request("m", sent)
        await meter.record_usage(Usage(input_tokens=billed))
    return round((await meter.calibration("m")).factor, 2), await meter.provider_limit("m")


@pytest.mark.parametrize(
    ("bills", "learned"),
    [
        pytest.param([(1_000, 1_100)], (1.15, None), id="a little more than was counted"),
        pytest.param([(1_000, 700)], (1.0, None), id="far less, once"),
        pytest.param([(1_000, 700), (2_000, 1_420)], (0.75, None), id="far less, and more for more"),
        pytest.param([(5_000, 2_048), (6_000, 2_048)], (1.0, 2_048), id="the same for more: a window"),
        pytest.param([(5_000, 2_048), (5_050, 2_050)], (1.0, None), id="the same for as much"),
        pytest.param([(3_800, 100), (4_900, 2_000)], (1.0, None), id="first one thing, then another"),
        pytest.param([(500, 100), (5_000, 100)], (1.0, None), id="the same for anything, and too little for a window"),
    ],
)
async def test_a_bill_is_believed_that_goes_up_and_down_with_what_is_sent(
    bills: list[tuple[int, int]], learned: tuple[float, int | None]
) -> None:
    assert await paid(*bills) == learned
