"""The gateway: an HTTP server between any client and its provider, which records conversations byte for byte."""
