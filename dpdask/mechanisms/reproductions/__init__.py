"""Published mechanisms that are superseded, kept for comparison and to reproduce the papers."""
