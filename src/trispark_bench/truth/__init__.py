"""The truth test: a server that knows what it sent and when, and what load clients make of it (docs/measurement.md)."""
