"""The public names of settings: the values from files, variables and flags, and the budget that follows from them."""

from holdfast.apps.settings.build import budget_from
from holdfast.apps.settings.settings import Settings
from holdfast.apps.settings.sources import load_settings

__all__ = ["Settings", "budget_from", "load_settings"]
