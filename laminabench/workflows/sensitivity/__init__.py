"""How far the answer of a comparison hangs on each of its inputs, and where it flips."""
