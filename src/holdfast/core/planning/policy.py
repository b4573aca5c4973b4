"""What we want of a request, as data."""

from dataclasses import dataclass

from holdfast.errors import SettingsError

MIN_SHARE = 0.001
MOST = {"clip_min_tokens": 10**6, "clip_zone_steps": 1_000, "digest_max_tokens": 10**6, "max_media": 10**4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a conversation that is too long is made to fit.

    Shares are of the room that system text and tools leave to the messages.
    """

    name: str = "default"
    step_share: float = 1 / 4
    """Lines move by this much at a time: between two moves a growing list keeps its prefix."""
    clip_share: float = 1 / 16
    """Old tool output is clipped to this size."""
    clip_min_tokens: int = 100
    clip_zone_steps: int = 4
    """Tool output is clipped this many steps before its message is folded."""
    digest_share: float = 1 / 10
    """The most that a digest of folded messages may take."""
    digest_max_tokens: int = 2_000
    max_media: int = 20
    """Images beyond this are elided, oldest first; more than 20 have to be small for some providers."""

    def __post_init__(self) -> None:
        for name in ("step_share", "clip_share", "digest_share"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not MIN_SHARE <= value < 1:
                raise SettingsError(f"policy.{name}", f"must lie between {MIN_SHARE} and 1, not {value!r}")
        for name, most in MOST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise SettingsError(f"policy.{name}", f"must be a whole number from 1 to {most:,}, not {value!r}")


DEFAULT = Policy()
POLICIES = {DEFAULT.name: DEFAULT}


def policy_of(wanted: str | Policy) -> Policy:
    """Return a policy by its name, or the policy itself."""
    if isinstance(wanted, Policy):
        return wanted
    name = wanted
    if not isinstance(name, str) or name not in POLICIES:
        known = ", ".join(sorted(POLICIES))
        raise SettingsError("policy", f"{name!r} is not known; choose one of: {known}, or pass a Policy")
    return POLICIES[name]
