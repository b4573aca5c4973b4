"""Replays recorded sessions under policies and baselines: the same as `holdfast lab run`.

    python -m benchmarks.replay FILE.jsonl … --policy default,copilot+summary,my.toml --budget 16000,100000 [--concat]
        [--json]

A policy is a preset or a TOML file; with `+summary` after it, a simulated model writes summaries, whose
cost counts. Costs are in plain input tokens; `×THRESHOLD` is the ratio to threshold compaction in the same run.
"""

import sys

from holdfast.apps.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["lab", "run", *sys.argv[1:]]))
