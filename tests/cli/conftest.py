"""What the tests of the command line share."""

import pytest

from holdfast.apps.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return the exit code, the output and the error output of a command."""
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err
