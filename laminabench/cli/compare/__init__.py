"""`laminabench compare`: Runs, systems and live replays side by side."""
