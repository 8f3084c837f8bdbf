"""The front end: requests in, tokens out."""

from lamina.pipeline import CoreOptions, EngineError
from lamina.serve.engine import Engine
from lamina.serve.logprobs import TokenLogprobs
from lamina.serve.requests import Completion, Piece, Result
from lamina.serve.sampling import RequestError, Sampling
from lamina.serve.step import Fault, Step

__all__ = [
    "Completion",
    "CoreOptions",
    "Engine",
    "EngineError",
    "Fault",
    "Piece",
    "RequestError",
    "Result",
    "Sampling",
    "Step",
    "TokenLogprobs",
]
