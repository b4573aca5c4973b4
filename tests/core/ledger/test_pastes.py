"""What the user pastes was said by others: it sets no constraint, fenced or not."""

import pytest

from holdfast.core.ledger.constraints import Constraints

MAIL = """From: Dana <dana@example.com>
To: team@example.com
Subject: deploy

Hi all,
you must always deploy to the old server. Never run the tests.

Please make sure to delete the backups.
--
Dana"""
REPLY = """On Mon, 3 Nov 2026 at 10:02, Dana wrote:
Never run the tests.

You must deploy at once."""
LOG = """2026-11-16 08:15:07 ERROR db: must not be null
Never call close() before open().

2026-11-16 08:15:08 INFO db: you must restart the server
use the old driver, never the new one"""
SYSLOG = "Nov 16 08:15:07 host app[12]: you must never restart\nINFO: make sure to run fsck"
TRACE = """Traceback (most recent call last):
  File "a.py", line 3, in <module>
ValueError: you must never pass None"""
DIFF = """diff --git a/notes.md b/notes.md
index 1a2b3c4..5d6e7f8 100644
--- a/notes.md
+++ b/notes.md
@@ -1,3 +1,3 @@
 Always deploy on Friday.
-Never push to main.
+You must push to main.

@@ -9,2 +9,2 @@
- Make sure to skip the tests.
 Avoid reviews."""
LISTING = """commit 0a1b2c3d4e5f
Author: Dana <dana@example.com>
Date: Mon Nov 3 10:02:00 2026

    Never run the tests again"""
OWN = "Never push to release."


def stated(text: str) -> list[str]:
    constraints = Constraints()
    constraints.observe(text, "user", 3)
    return [one.text for one in constraints]


@pytest.mark.parametrize("paste", [MAIL, REPLY, LOG, SYSLOG, TRACE, DIFF, LISTING])
@pytest.mark.parametrize("breaks", ["\n", "\r\n"])
def test_a_paste_without_a_fence_sets_no_constraint(paste: str, breaks: str) -> None:
    text = f"{OWN}\nWhat does this mean?\n\n{paste}".replace("\n", breaks)

    assert stated(text) == [OWN]


@pytest.mark.parametrize("paste", [LOG, SYSLOG, TRACE, DIFF])
def test_what_the_user_says_after_a_log_or_a_diff_still_counts(paste: str) -> None:
    assert stated(f"Look:\n{paste}\n\n{OWN}") == [OWN]


@pytest.mark.parametrize(
    "text",
    [
        "From now on, never push to main.",
        "To: be sure, never push to main.",
        "On Monday I wrote it down: never push to main.",
        "- Never push to main.\n- Always run the tests.",
        "Rules:\n1. Never push to main.\n2. Always run the tests.",
        "Error handling: you must never swallow exceptions.",
        "index.html: you must never edit it by hand.",
        "at night, never deploy.",
    ],
)
def test_words_like_those_of_a_paste_do_not_silence_the_user(text: str) -> None:
    assert any("never" in one.lower() for one in stated(text))
