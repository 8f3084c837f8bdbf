"""The public traces themselves, where they are at hand."""

from __future__ import annotations

import pytest

from laminabench.traces.formats import detect, load_file


@pytest.mark.parametrize(
    ("file", "format_", "requests", "means", "sha256"),
    [
        ("AzureLLMInferenceTrace_conv.csv", "azure", 19366, (1154.697, 211.126), "2f1e5b666d4e"),
        ("AzureLLMInferenceTrace_code.csv", "azure", 8819, (2047.848, 27.883), "54e9a6d2a4bd"),
        ("conversation_trace.jsonl", "mooncake", 12031, (12035.061, 342.619), "b8cbb061a852"),
        (
            "sharegpt_8k_filtered_stats_llama2_tokenizer.csv",
            "sharegpt-lengths",
            30731,
            (2340.034, 438.710),
            "6d6c296302a8",
        ),
    ],
)
def test_counts_and_means(file, format_, requests, means, sha256, real_traces):
    path = real_traces / file
    if not path.exists():
        pytest.skip(f"{file} is not in $LAMINABENCH_TRACES")
    trace = load_file(path)
    assert detect(path) == format_
    assert len(trace) == requests
    assert round(float(trace.prompt_tokens.mean()), 3) == means[0]
    assert round(float(trace.output_tokens.mean()), 3) == means[1]
    assert trace.meta.sha256.startswith(sha256)
    assert trace.meta.notes == ()
    assert (trace.prefix_blocks is not None) == (format_ == "mooncake")
    assert (trace.duration_s > 3400) == trace.meta.has_arrivals
