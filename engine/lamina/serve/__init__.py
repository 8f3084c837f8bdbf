"""The front end: requests in, tokens out."""

from lamina.pipeline import CoreOptions, EngineError
from lamina.serve.engine import Engine
from lamina.serve.fleet import Fleet
from lamina.serve.requests import Completion, Fault, Piece, Result, Step, TokenLogprobs
from lamina.serve.sampling import RequestError, Sampling

__all__ = [
    "Completion",
    "CoreOptions",
    "Engine",
    "EngineError",
    "Fault",
    "Fleet",
    "Piece",
    "RequestError",
    "Result",
    "Sampling",
    "Step",
    "TokenLogprobs",
]
