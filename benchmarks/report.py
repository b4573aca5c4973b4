"""Writes a lab report with plots, on recorded sessions or on generated ones.

    python -m benchmarks.report [FILE.jsonl …] [-o lab-report.html]

Without files it replays two generated sessions of 200 messages, which show the report and prove nothing.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from holdfast.apps.cli.main import main as holdfast
from holdfast.testing.sessions import generate_session

SESSIONS, MESSAGES, BUDGET = 2, 200, 12_000


def write_generated_sessions(folder: Path) -> str:
    """Return a file with generated sessions."""
    path = folder / "generated.jsonl"
    lines = [{"id": f"generated-{seed}", "messages": generate_session(MESSAGES, seed=seed)} for seed in range(SESSIONS)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="sessions in OpenAI chat format, one per line")
    parser.add_argument("-o", "--output", default="lab-report.html", metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        played = options.files or [write_generated_sessions(Path(folder)), "--budget", str(BUDGET)]
        return holdfast(
            ["lab", "run", *played, "--policy", "default,default+summary,copilot", "--html", options.output]
        )


if __name__ == "__main__":
    sys.exit(main())
