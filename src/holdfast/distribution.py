"""The name under which Holdfast is installed, its version, and how to install more of it.

Another project owns the name `holdfast` on the package index, so the distribution has a name of its own. This is the
only module that knows it; `pyproject.toml` declares it.
"""

DISTRIBUTION_NAME = "holdfast-context"
UNKNOWN_VERSION = "unknown"
"""The version of a source tree that was never installed."""


def installed_version() -> str:
    """Return the version of the installed distribution."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - slow to import

    try:
        return version(DISTRIBUTION_NAME)
    except PackageNotFoundError:
        return UNKNOWN_VERSION


def install_command(extra: str = "") -> str:
    """Return the command line that installs an extra, or everything that the library needs."""
    return f"pip install '{DISTRIBUTION_NAME}[{extra}]'" if extra else f"pip install {DISTRIBUTION_NAME}"
