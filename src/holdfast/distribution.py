"""The name under which Holdfast is installed, and how to install more of it.

Another project owns the name `holdfast` on the package index, so the distribution has a name of its own. No other
module knows it; `pyproject.toml` declares it.
"""

DISTRIBUTION_NAME = "holdfast-context"


def install_command(extra: str = "") -> str:
    """Return the command line that installs an extra, or what the library alone needs."""
    return f"pip install '{DISTRIBUTION_NAME}[{extra}]'" if extra else f"pip install {DISTRIBUTION_NAME}"
