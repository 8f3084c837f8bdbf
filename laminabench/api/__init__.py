"""What `import laminabench as lb` gives: replays, comparisons and plans as objects that show themselves."""
