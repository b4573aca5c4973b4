"""The parts of `benchmarks.log`: each measures one property of a stored conversation and renders it as lines."""
