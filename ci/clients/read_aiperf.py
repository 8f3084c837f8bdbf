"""aiperf's own models and the loader of its plots read a folder of artifacts; prints the contents as JSON.

Run by the Python of the clients' environment.
"""

import json
import sys
from pathlib import Path

from aiperf.common.models.export_models import JsonExportData
from aiperf.common.models.record_models import MetricRecordInfo
from aiperf.plot.core.data_loader import DataLoader

folder = Path(sys.argv[1])
summary = JsonExportData.model_validate_json((folder / "profile_export_aiperf.json").read_text())
with (folder / "profile_export.jsonl").open() as lines:
    records = [MetricRecordInfo.model_validate_json(line) for line in lines]
run = DataLoader().load_run(folder)
done = [record for record in records if record.error is None]
assert len(run.requests) == len(records)
assert summary.request_count.avg == len(done)
assert abs(summary.inter_token_latency.avg - run.aggregated["inter_token_latency"]["avg"]) < 1e-9
print(json.dumps({"requests": len(done), "tokens": int(summary.total_osl.avg)}))
