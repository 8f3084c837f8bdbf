"""Models: the shape of a decoder-only transformer and what follows from it: bytes and GEMM shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import NamedTuple, TypedDict

from laminabench.catalog.entries import Table, packaged
from laminabench.errors import UserError

# Formats of 4 bits have a scale of 8 bits, for 32 elements or (nvfp4) for 16.
DTYPE_BYTES: Mapping[str, float] = {
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "fp8_block": 1,
    "int8": 1,
    "fp32": 4,
    "mxfp4": 0.53125,
    "int4": 0.53125,
    "nvfp4": 0.5625,
}

# v2 Table 3 counts one vocabulary table of this many rows for every model, LLaMA3 included.
TABLE3_VOCAB = 32000


class Gemm(NamedTuple):
    """A weight matrix on one worker: m rows of activations times [k, n]."""

    name: str
    n: int
    k: int


class WeightCount(NamedTuple):
    """Where the weights are, in elements."""

    matrices: int  # the GEMM weights of all layers
    biases_and_norms: int
    embedding: int  # token table, and what positions need where they are learned
    lm_head: int  # 0 where it is the embedding, used twice


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Everything about a model that costs time or memory; no weights."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    gated_mlp: bool = True
    qkv_bias: bool = False
    all_biases: bool = False  # OPT: on every matrix and norm
    qk_norm: bool = False
    rotary: bool = True
    positions: int = 0  # rows of a learned position table (OPT)
    relative_positions: bool = False  # Transformer-XL's (Chinchilla): a matrix a layer turns them into keys
    tied_embeddings: bool = False
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    source: str = ""

    def __post_init__(self) -> None:
        sizes = (
            self.layers,
            self.hidden,
            self.heads,
            self.kv_heads,
            self.head_dim,
            self.intermediate,
            self.vocab,
        )
        if min(sizes) < 1 or self.positions < 0:
            raise UserError("model-bad-size", f"model {self.name}: every size must be at least 1")
        if self.heads % self.kv_heads:
            raise UserError(
                "model-heads-uneven",
                f"model {self.name}: {self.heads} heads do not divide over {self.kv_heads} KV heads",
            )
        for dtype in (self.dtype, self.kv_dtype):
            if dtype not in DTYPE_BYTES:
                raise UserError(
                    "model-unknown-dtype",
                    f"model {self.name}: dtype {dtype!r}; known: {', '.join(DTYPE_BYTES)}",
                )

    @property
    def group(self) -> int:
        """G: query heads that share a KV head."""
        return self.heads // self.kv_heads

    @property
    def dtype_bytes(self) -> float:
        return DTYPE_BYTES[self.dtype]

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    # Memory

    def weights(self) -> WeightCount:
        """Elements by place. Learned positions are counted with the embedding.

        So are the matrices for relative ones, which no step multiplies by: what they make of the positions
        can be kept, as it depends on no token.
        """
        shards = self.layer_gemms(1)
        matrices = self.layers * sum(gemm.n * gemm.k for gemm in shards)
        norms_a_layer = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        small = self.layers * norms_a_layer + self.hidden
        if self.all_biases:
            small *= 2  # a norm has a bias as long as its scale
            small += self.layers * sum(gemm.n for gemm in shards)
        elif self.qkv_bias:
            small += self.layers * (self.query_size + 2 * self.kv_size)
        head = 0 if self.tied_embeddings else self.vocab * self.hidden
        relative = self.layers * self.query_size if self.relative_positions else 0
        return WeightCount(matrices, small, (self.vocab + self.positions + relative) * self.hidden, head)

    @property
    def parameters(self) -> int:
        return sum(self.weights())

    @property
    def weight_bytes(self) -> float:
        """All weights in `dtype`: matrices, biases, norms, embeddings, and the LM head unless it is tied."""
        return self.parameters * self.dtype_bytes

    @property
    def table3_bytes(self) -> float:
        """What v2 Table 3 counts: the layers and ONE vocabulary table of 32,000 rows."""
        count = self.weights()
        return (count.matrices + count.biases_and_norms + TABLE3_VOCAB * self.hidden) * self.dtype_bytes

    def weight_bytes_per_worker(self, tp: int) -> float:
        """The largest share when the weights are split over `tp` workers; small ones are copied."""
        self.check_tp(tp)
        count = self.weights()
        # Where there are fewer KV heads than workers, several hold the same K and V rows.
        matrices = self.layers * sum(gemm.n * gemm.k for gemm in self.layer_gemms(tp))
        split = (count.embedding + count.lm_head) / tp
        return (matrices + split + count.biases_and_norms) * self.dtype_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """K and V of one token over all layers."""
        return int(2 * self.layers * self.kv_size * DTYPE_BYTES[self.kv_dtype])

    # Shapes

    def layer_gemms(self, tp: int = 1) -> tuple[Gemm, ...]:
        """The four GEMMs of a layer on one of `tp` workers, split as Megatron and vLLM do."""
        self.check_tp(tp)
        query, kv = self.query_size // tp, max(self.kv_size // tp, self.head_dim)
        ffn = self.intermediate // tp
        return (
            Gemm("qkv", query + 2 * kv, self.hidden),
            Gemm("o", self.hidden, query),
            Gemm("gate_up" if self.gated_mlp else "fc1", (2 if self.gated_mlp else 1) * ffn, self.hidden),
            Gemm("down" if self.gated_mlp else "fc2", self.hidden, ffn),
        )

    def lm_head_gemm(self, tp: int = 1) -> Gemm:
        """The sampling matrix; its rows are padded up where they do not divide."""
        return Gemm("lm_head", -(-self.vocab // tp), self.hidden)

    def elementwise(self, tp: int = 1) -> tuple[int, int]:
        """(kernels, elements read or written per token) of a layer outside GEMMs, attention and network.

        Two norms (read and write d each), the residual add (3d), the activation (2 or 3 times f/t) and,
        where the model has them, rotation and query-key norm (read and write q and k).
        """
        query_key = 2 * (self.query_size // tp + max(self.kv_size // tp, self.head_dim))
        kernels = 4 + self.rotary + self.qk_norm
        elements = 7 * self.hidden + (3 if self.gated_mlp else 2) * self.intermediate // tp
        return kernels, elements + (self.rotary + self.qk_norm) * query_key

    def operators(self, tp: int = 1) -> tuple[tuple[str, int, int], ...]:
        """(name, width, how often in a step) of what `elementwise` counts, and of the last norm."""
        heads = self.query_size // tp + max(self.kv_size // tp, self.head_dim)
        found = [
            ("norm", self.hidden, 2 * self.layers + 1),
            ("activation", self.intermediate // tp, self.layers),
        ]
        if self.rotary:
            found.append(("rotary", heads, self.layers))
        if self.qk_norm:
            found.append(("qk_norm", heads, self.layers))
        return tuple(found)

    # Ways to split

    def tp_degrees(self, limit: int = 64) -> tuple[int, ...]:
        """Legal tensor-parallel degrees of the model workers."""
        return tuple(tp for tp in range(1, limit + 1) if self._tp_is_legal(tp))

    def head_splits(self) -> tuple[int, ...]:
        """Numbers of attention workers that get equal shares when KV heads are dealt out."""
        return tuple(b for b in range(1, self.kv_heads + 1) if self.kv_heads % b == 0)

    def check_tp(self, tp: int) -> None:
        if not self._tp_is_legal(tp):
            legal = ", ".join(map(str, self.tp_degrees()))
            raise UserError(
                "model-cannot-split",
                f"{self.name} cannot be split over {tp} model workers; possible: {legal}",
            )

    def _tp_is_legal(self, tp: int) -> bool:
        even = tp >= 1 and self.heads % tp == 0 and self.intermediate % tp == 0
        return even and (self.kv_heads % tp == 0 or tp % self.kv_heads == 0)

    def describe(self) -> Table:
        facts = asdict(self)
        if not self.relative_positions:
            del facts["relative_positions"]  # one family's: goldens of all the others do without
        return {
            **facts,
            "parameters": self.parameters,
            "weight_gb": self.weight_bytes / 1e9,
            "weight_gb_as_v2_table3": self.table3_bytes / 1e9,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "tp_degrees": list(self.tp_degrees()),
            "head_splits": list(self.head_splits()),
        }


class Traits(TypedDict, total=False):
    """What the families differ in, next to sizes."""

    gated_mlp: bool
    qkv_bias: bool
    all_biases: bool
    qk_norm: bool
    rotary: bool
    relative_positions: bool
    tied_embeddings: bool


# By transformers' names: these can be read from a config.json and written as one.
FAMILIES: Mapping[str, Traits] = {
    "llama": {},
    "mistral": {},
    "opt": {"gated_mlp": False, "all_biases": True, "rotary": False, "tied_embeddings": True},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
}

# Known from papers alone: nobody released a model of them.
UNRELEASED: Mapping[str, Traits] = {
    "gpt3": {"gated_mlp": False, "all_biases": True, "rotary": False, "tied_embeddings": True},
    "chinchilla": {
        "gated_mlp": False,
        "rotary": False,
        "relative_positions": True,
        "tied_embeddings": True,
    },
}


@cache
def load_models() -> Mapping[str, ModelShape]:
    models: dict[str, ModelShape] = {}
    families = {**FAMILIES, **UNRELEASED}
    for name, row in packaged("models.toml").items():
        fields = {key: value for key, value in row.items() if key != "family"}
        fields.setdefault("kv_heads", fields["heads"])
        fields.setdefault("head_dim", fields["hidden"] // fields["heads"])
        models[name] = ModelShape(name=name, **{**families[row["family"]], **fields})
    return models


def released_models() -> Mapping[str, ModelShape]:
    """Those of the catalogue's models that somebody could have run."""
    rows = packaged("models.toml")
    return {name: shape for name, shape in load_models().items() if rows[name]["family"] not in UNRELEASED}
