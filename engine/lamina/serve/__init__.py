"""The front end: requests in, tokens out."""

from typing import TypeAlias

from lamina.pipeline import CoreOptions, EngineError
from lamina.serve.engine import Engine
from lamina.serve.fleet import Fleet
from lamina.serve.instance import State
from lamina.serve.requests import Completion, Fault, Piece, Result, Step, TokenLogprobs
from lamina.serve.sampling import RequestError, Sampling

Engines: TypeAlias = Engine | Fleet

__all__ = [
    "Completion",
    "CoreOptions",
    "Engine",
    "EngineError",
    "Engines",
    "Fault",
    "Fleet",
    "Piece",
    "RequestError",
    "Result",
    "Sampling",
    "State",
    "Step",
    "TokenLogprobs",
]
