"""Tables, charts and pages of typed results, built once and rendered by every back-end."""
