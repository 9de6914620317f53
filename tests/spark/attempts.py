"""How often a task is tried in tests of queries that fail."""

ATTEMPTS = 2
"""What the fixture `few_attempts` sets."""
