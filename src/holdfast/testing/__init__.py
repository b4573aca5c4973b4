"""The test kit: what our own tests are made of, for yours."""
