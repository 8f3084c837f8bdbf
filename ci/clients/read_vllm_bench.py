"""Read a result of `vllm bench serve` as vLLM's own plots do, and print it as JSON.

Run by the Python of vLLM's environment.
"""

import json
import sys
from pathlib import Path

from vllm.benchmarks.plot import construct_timeline_data
from vllm.benchmarks.sweep.plot_pareto import _prepare_records

result = json.loads(Path(sys.argv[1]).read_text())
# As `vllm bench serve --plot-timeline` makes them of a result.
names = ("start_times", "ttfts", "itls", "latencies", "input_lens", "output_lens")
columns = ("start_time", "ttft", "itl", "latency", "prompt_len", "output_tokens")
rows = zip(*(result[name] for name in names), strict=True)
requests = [dict(zip(columns, row, strict=True)) for row in rows]
drawn = construct_timeline_data(requests, [0.025, 0.05], ["low", "middle", "high"])
assert len([bar for bar in drawn if bar["type"] == "TTFT"]) == len(requests)
prepared, skipped = _prepare_records([result], user_count_var="max_concurrency", gpu_count_var=None)
assert (len(prepared), skipped) == (1, 0)
assert prepared[0]["tokens_per_gpu"] == result["output_throughput"]
done = [row for row in requests if row["output_tokens"]]
print(json.dumps({"requests": len(done), "tokens": sum(row["output_tokens"] for row in done)}))
