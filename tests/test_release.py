"""`python -m scripts.release` says how it is called, and what keeps a release from being made."""

import pytest

from holdfast import __version__
from scripts import release


def test_help_shows_how_the_checklist_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        release.main(["--help"])

    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: python -m scripts.release [-h] VERSION\n")


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("next", "'next' is not a version such as 0.2.0"),
        ("999.0.0", f"src/holdfast/__init__.py says {__version__}; set it to 999.0.0"),
    ],
)
def test_the_first_step_that_fails_says_what_to_do(
    version: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert release.main([version]) == 1
    assert capsys.readouterr() == ("", f"not ready: version: {problem}\n")
