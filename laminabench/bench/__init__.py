"""laminabench and its engine measured on this machine, beside the targets they are held to."""
