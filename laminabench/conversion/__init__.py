"""What is said of a conversion: the model asked for, a report of it, its matrix products by short names."""
