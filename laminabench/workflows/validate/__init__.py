"""What is modelled, held against what was measured."""
