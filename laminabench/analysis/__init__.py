"""Analysis of a replay's tables: pure functions that return numbers."""
