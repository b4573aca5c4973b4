"""The async engine: where decisions meet stores and models."""
