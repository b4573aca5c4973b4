"""The public tests of other libraries, run through our adapters and our gateway."""
