"""Makes a request fit its budget: what is protected, where cuts may fall, and the receipt of the changes."""
