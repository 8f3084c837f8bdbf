"""From what a replay gave back to answers: pure functions over tables."""
