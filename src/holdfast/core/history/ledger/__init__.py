"""What a conversation must not forget: names, files, work and wishes, extracted by rule, with their sources."""

from holdfast.core.history.ledger.ledger import Ledger
from holdfast.core.history.ledger.names import IDENTIFIERS_HEADING, RankedName, pack_names
from holdfast.core.history.ledger.rendering import render_ledger

__all__ = ["IDENTIFIERS_HEADING", "Ledger", "RankedName", "pack_names", "render_ledger"]
