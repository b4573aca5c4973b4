"""The gateway in a program of your own: an ASGI application, and what it can be told. It needs the extra `gateway`."""

from holdfast.apps.gateway.access import Access, KeyEntry, Keys, load_keys
from holdfast.apps.gateway.app import close_gateway, gateway_app, start_jobs
from holdfast.apps.gateway.relay import RelaySettings
from holdfast.apps.gateway.upstream import PhaseTimeouts

__all__ = [
    "Access",
    "KeyEntry",
    "Keys",
    "PhaseTimeouts",
    "RelaySettings",
    "close_gateway",
    "gateway_app",
    "load_keys",
    "start_jobs",
]
