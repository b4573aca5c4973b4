"""The async engine: connects the pure decisions of `holdfast.core` with stores and models."""
