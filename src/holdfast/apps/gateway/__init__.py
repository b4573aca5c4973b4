"""The gateway: an HTTP server between any client and its provider, which records conversations byte for byte."""

from importlib import import_module

from holdfast.errors import imports_of_extra

with imports_of_extra("gateway", "the gateway"):
    # The modules of this package import them; here a missing one gets a sentence that says what to install.
    for package in ("aiohttp", "msgspec", "orjson", "starlette"):
        import_module(package)
