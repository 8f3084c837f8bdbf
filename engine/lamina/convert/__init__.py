"""The model converter: a Hugging Face causal language model cut into slices at its attention operators."""

from lamina.convert.conversion import Conversion, convert
from lamina.convert.describe import describe
from lamina.convert.errors import ConversionError
from lamina.convert.program import Collective
from lamina.convert.sharding import Sharded
from lamina.convert.sliced import EAGER
from lamina.convert.slices import BoundSlice, Slice, SliceClass
from lamina.convert.states import StateMemory
from lamina.operators import AttentionOp

__all__ = [
    "EAGER",
    "AttentionOp",
    "BoundSlice",
    "Collective",
    "Conversion",
    "ConversionError",
    "Sharded",
    "Slice",
    "SliceClass",
    "StateMemory",
    "convert",
    "describe",
]
