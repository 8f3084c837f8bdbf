"""Results of aiperf, `vllm bench serve` and guidellm as Runs, and Runs as their results."""
