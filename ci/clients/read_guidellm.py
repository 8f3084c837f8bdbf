"""guidellm's own models read a report, and its console shows it; prints the contents as JSON.

Run by the Python of the clients' environment.
"""

import asyncio
import contextlib
import json
import sys

from guidellm.benchmark.outputs.console import GenerativeBenchmarkerConsole
from guidellm.benchmark.schemas.report import GenerativeBenchmarksReport
from guidellm.utils.console import Console

report = GenerativeBenchmarksReport.load_file(sys.argv[1])
(benchmark,) = report.benchmarks
requests = benchmark.requests.successful
mean = sum(each.time_to_first_token_ms for each in requests) / len(requests)
assert abs(benchmark.metrics.time_to_first_token_ms.successful.mean - mean) < 1e-3
with contextlib.redirect_stdout(sys.stderr):
    asyncio.run(GenerativeBenchmarkerConsole(console=Console()).finalize(report))
tokens = sum(each.output_tokens for each in requests)
assert round(benchmark.metrics.output_token_count.successful.total_sum) == tokens
print(json.dumps({"requests": len(requests), "tokens": tokens}))
