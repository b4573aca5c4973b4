"""The viewer: pages that show what was said, what the model was sent, and why."""

from importlib import import_module

from holdfast.errors import imports_of_extra

with imports_of_extra("view", "the viewer"):
    # The modules of this package import them; here a missing one gets a sentence that says what to install.
    for package in ("jinja2", "starlette", "uvicorn"):
        import_module(package)
