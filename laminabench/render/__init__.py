"""Typed results as a person reads them: tables, charts and pages, built once and rendered anywhere."""
