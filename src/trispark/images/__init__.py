"""Images: what they are made of, how they are built the same each time, and what proves which one a rank runs."""
