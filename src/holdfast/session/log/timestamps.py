"""Moments of a log as people read and write them.

What a model is told of is in UTC; notes and boards have the days of whoever sits there. A clock that cannot be right
counts as the nearest that can.
"""

from datetime import UTC, datetime

from holdfast.errors import MalformedInputError

MAX_TIME_MS = 253_402_300_799_000
"""The last moment of the year 9999: no calendar here goes further."""


def format_time_utc(time_ms: int) -> str:
    """Return a time as people read it, in UTC."""
    return f"{_clamped_datetime(time_ms):%Y-%m-%d %H:%M}"


def parse_time(where: str, text: str, *, is_end: bool = False) -> int:
    """Return the moment that an ISO date or time means; the end of it, where a date is one."""
    given = text.strip()
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise MalformedInputError(
            where, f"{text!r:.60} is no time; give one such as 2026-01-31 or 2026-01-31T10:00"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    is_day = "T" not in given and ":" not in given and " " not in given
    return int(moment.timestamp() * 1000) + (86_400_000 if is_end and is_day else int(is_end))


def local_time(time_ms: int) -> datetime:
    """Return a moment in the time zone of this machine."""
    return _clamped_datetime(time_ms).astimezone()


def local_day(time_ms: int) -> str:
    """Return the day that a moment is on, where this machine is."""
    return f"{local_time(time_ms):%Y-%m-%d}"


def _clamped_datetime(time_ms: int) -> datetime:
    return datetime.fromtimestamp(min(max(0, time_ms), MAX_TIME_MS) / 1000, UTC)
