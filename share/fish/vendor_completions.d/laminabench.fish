# fish reads this at the first TAB after `laminabench`. The command knows its own completion.
command -q laminabench; and laminabench completion fish | source
