"""Quality of what an engine says: what is asked, and how answers are judged."""
