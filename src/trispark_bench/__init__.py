"""The load client. It runs in a small pinned image on a node that is not the head, with the standard library alone."""
