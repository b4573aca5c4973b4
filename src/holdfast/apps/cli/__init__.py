"""The command line: one command per line of `holdfast --help`."""
