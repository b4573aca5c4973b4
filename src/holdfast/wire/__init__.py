"""The formats of providers: decoding and encoding messages, validating requests, and classifying errors."""
