"""The test kit: the builders, scripted models and store tests that our own tests use, for your tests."""
