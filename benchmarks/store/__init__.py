"""The parts of `benchmarks.log`: each measures one thing about a kept conversation, and says it in lines."""
