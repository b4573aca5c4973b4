"""Settings: what a user has chosen in files, variables and flags, and the budget that follows from it."""

from holdfast.apps.settings.build import budget_from
from holdfast.apps.settings.settings import Settings
from holdfast.apps.settings.sources import load_settings

__all__ = ["Settings", "budget_from", "load_settings"]
