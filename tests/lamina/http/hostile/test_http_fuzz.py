"""The API is fuzzed from its own description: whatever is sent is answered as described, and nothing kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

LIMIT_S = 20
POSTED = ("/v1/completions", "/v1/chat/completions")
EXAMPLES = dict.fromkeys(POSTED, 60)
GETS = ("/v1/models", "/v1/models/{name}", "/health", "/metrics", "/version")


@pytest.fixture(scope="module")
def target(serve: Any, tokenizer: Any) -> Iterator[Any]:
    """One server for all; answers are short, so that there can be many."""
    with serve(tokenizer, engine={"max_sequences": 32}, max_model_len=48) as server:
        yield server
        assert server.settled(), "somebody is still served, or KV belongs to nobody"


@pytest.fixture(scope="module")
def schema(target: Any) -> Any:
    import schemathesis

    return schemathesis.openapi.from_url(f"{target.url}/openapi.json")


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    import requests

    with requests.Session() as result:
        yield result


def test_everything_that_is_served_is_described(schema: Any) -> None:
    described = {operation.ok().path for operation in schema.get_all_operations()}
    assert described == {*POSTED, *GETS}


@pytest.mark.long(but=["POST-/v1/completions-*", "GET-*"])
@pytest.mark.parametrize(
    ("method", "path", "sense"),
    [
        *(("POST", path, sense) for path in POSTED for sense in ("positive", "negative")),
        # There is nothing to be wrong about.
        *(("GET", path, "positive") for path in GETS),
    ],
)
def test_any_request_is_answered_as_documented(
    schema: Any, session: Any, target: Any, method: str, path: str, sense: str
) -> None:
    from schemathesis import GenerationMode
    from schemathesis.checks import CHECKS, load_all_checks

    load_all_checks()
    # What is well formed may still ask for more than there is.
    unwanted = CHECKS.get_by_names(["positive_data_acceptance"])
    operation = schema[path][method]
    reported: set[int] = set()

    @settings(
        max_examples=EXAMPLES.get(path, 8),
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=GenerationMode(sense)))
    def fuzz(case: Any) -> None:
        answer = case.call_and_validate(
            base_url=target.url, session=session, timeout=LIMIT_S, excluded_checks=unwanted
        )
        reported.add(answer.status_code)

    fuzz()
    if sense == "positive":
        # No name that is made up is the model's.
        assert (404 if "{" in path else 200) in reported
