"""Several engines behind one server: a client does not notice that one of them is lost."""

from __future__ import annotations

import json
from typing import Any

from lamina.serve import Sampling

REQUEST = {
    "prompt": [3, 4, 5],
    "max_tokens": 20,
    "temperature": 1.0,
    "ignore_eos": True,
    "return_token_ids": True,
}


def test_an_engine_that_is_lost_ends_no_stream(serve: Any, make_engine: Any) -> None:
    with serve(engines=2) as server:
        assert json.loads(server.call("GET", "/health").body) == {
            "status": "ok",
            "instances": ["open", "open"],
        }
        engine, steps = server.engine.instances[0].engine, iter(range(1000))
        step = engine.step

        def stepping() -> Any:
            if next(steps) == 7:
                raise RuntimeError("it is broken")
            return step()

        engine.step = stepping
        plain = make_engine()
        for seed in range(4):
            reported = server.call("POST", "/v1/completions", REQUEST | {"stream": True, "seed": seed})
            lines = [line for line in reported.body.split(b"\n") if line.startswith(b"data: {")]
            tokens = [token for line in lines for token in json.loads(line[6:])["choices"][0]["token_ids"]]
            sampling = Sampling(max_tokens=20, temperature=1.0, ignore_eos=True, seed=seed)
            assert tuple(tokens) == plain.generate([[3, 4, 5]], sampling)[0].completions[0].tokens
        assert json.loads(server.call("GET", "/health").body)["instances"] == ["lost", "open"]
        metrics = server.call("GET", "/metrics").body.decode()
        assert 'lamina_instances{state="open"} 1.0' in metrics
        assert 'lamina_instances{state="lost"} 1.0' in metrics
        assert "lamina_faults_total 1.0" in metrics
        server.require_sound()
