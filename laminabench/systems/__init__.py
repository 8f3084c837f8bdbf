"""Systems that traces are replayed against: `modelled/` (simulator) and `live/` (engine, vLLM, endpoint)."""
