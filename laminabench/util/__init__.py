"""Helpers that know nothing of replays: errors, atomic files, bounded parsing, progress, processes."""
