"""Utility(r): what making a resource twice as good is worth."""
