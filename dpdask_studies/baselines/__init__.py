"""Published methods that the papers compare with: to reproduce, not to release data by."""
