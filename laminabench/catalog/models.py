"""Models: the shape of a decoder-only transformer and what follows from it: bytes and GEMM shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple

from laminabench.catalog.entries import Table
from laminabench.catalog.layout import Layout, Split, layout_of
from laminabench.catalog.model_parts import Experts, Latent, Window
from laminabench.util.errors import UserError

DTYPE_BYTES: Mapping[str, float] = {
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "int8": 1,
    "fp32": 4,
    # With a scale for each block of weights: of 128 x 128 (which is nothing), of 32, 32 and 16.
    "fp8_block": 1,
    "fp8_fused": 1,  # by blocks, of activations that the kernel before has quantised
    "mxfp4": 0.53125,
    "int4": 0.53125,
    "nvfp4": 0.5625,
}
# Of these models all but the matrices stays in 16 bits.
BLOCKS = ("fp8_block", "mxfp4", "int4", "nvfp4")
# Weights that are split into blocks of so many are not split finer.
BLOCK_SIZE: Mapping[str, int] = {"fp8_block": 128, "mxfp4": 32, "int4": 32, "nvfp4": 16}

# v2 Table 3 counts one vocabulary table of this many rows for every model, LLaMA3 included.
TABLE3_VOCAB = 32000


class Gemm(NamedTuple):
    """A weight matrix on one worker: m rows of activations times [k, n]."""

    name: str
    n: int
    k: int


Place = Literal["before", "after", "feed"]
Side = Literal["attention", "feed"]  # attention with the products around it, and the rest of a layer


class Product(NamedTuple):
    """A matrix product on one worker, once in each of so many layers."""

    gemm: Gemm
    layers: int
    place: Place  # before attention, after it, or in the feed-forward part
    dtype: str
    heads: int = 0  # of a batched one: a product of its own for each of so many heads
    computed_in: str = ""  # another type than the weights'

    @property
    def elements(self) -> int:
        """Elements of its weights, in all layers."""
        return self.layers * self.gemm.n * self.gemm.k * max(1, self.heads)


class WeightCount(NamedTuple):
    """Weights by place, in elements."""

    matrices: int  # the GEMM weights of all layers, but for experts
    experts: int
    biases_and_norms: int
    embedding: int  # token table, and what positions need where they are learned
    lm_head: int  # 0 where it is the embedding, used twice


# Of every model.
SIZES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab")
# What only some families have, and the others' goldens do without.
FEW = (
    *("qk_norm_over_heads", "relative_positions", "output_bias", "sinks", "router_dtype"),
    *("experts", "latent", "window"),
)


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
    qk_norm_over_heads: bool = False  # of all heads together, which workers that share them have to sum up
    rotary: bool = True
    positions: int = 0  # rows of a learned position table (OPT)
    relative_positions: bool = False  # Transformer-XL's (Chinchilla): a matrix a layer turns them into keys
    tied_embeddings: bool = False
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    source: str = ""
    output_bias: bool = False  # of attention's output, too (gpt-oss, whose experts have biases as well)
    sinks: bool = False  # a learned logit a head, which costs nothing
    router_dtype: str = ""  # that experts' routers compute in, fp32 or tf32, whatever their weights are in
    experts: Experts | None = None
    latent: Latent | None = None
    window: Window | None = None

    def __post_init__(self) -> None:
        if min(getattr(self, name) for name in SIZES) < 1 or self.positions < 0:
            raise UserError("model-bad-size", f"model {self.name}: every size must be at least 1")
        if self.heads % self.kv_heads:
            raise UserError(
                "model-heads-uneven",
                f"model {self.name}: {self.heads} heads do not divide over {self.kv_heads} KV heads",
            )
        for dtype in (self.dtype, self.kv_dtype, self.expert_dtype):
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
    def expert_dtype(self) -> str:
        return (self.experts and self.experts.dtype) or self.dtype

    @property
    def rest_dtype(self) -> str:
        """Type of everything but the layers' matrices: embedding, LM head, norms, router."""
        return "bf16" if self.dtype in BLOCKS else self.dtype

    @property
    def query_size(self) -> int:
        """Elements of a token's queries for attention; absorbed ones of MLA are as wide as KV."""
        return self.heads * self.head_dim

    @property
    def output_size(self) -> int:
        """Elements that attention returns for a token."""
        return self.heads * (self.latent.kv_rank if self.latent else self.head_dim)

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def stored_size(self) -> int:
        """Elements of KV of a token in a layer: keys and values, or the one vector both are made of."""
        return self.kv_size if self.latent else 2 * self.kv_size

    @property
    def expert_layers(self) -> int:
        return self.experts.layers(self.layers) if self.experts else 0

    @property
    def dense_layers(self) -> int:
        return self.layers - self.expert_layers

    def heads_of_worker(self, workers: int) -> tuple[int, int]:
        """Return the most query heads and KV heads that one of so many attention workers has."""
        if workers < 1:
            raise UserError(
                "costs-no-attention-workers", f"{workers} attention workers: at least 1 is needed"
            )
        kv_heads = -(-self.kv_heads // workers)
        # More workers than KV heads (tensor parallelism): each holds a copy of one and fewer query heads.
        shared = workers > self.kv_heads
        return -(-self.heads // workers) if shared else kv_heads * self.group, kv_heads

    def layer_kinds(self) -> list[tuple[int, int]]:
        """Return the number of layers by the most tokens they attend to; 0 is all."""
        if self.window is None:
            return [(self.layers, 0)]
        unwindowed = self.layers - self.window.layers
        return [(unwindowed, 0)] * bool(unwindowed) + [(self.window.layers, self.window.tokens)]

    def require_plain(self, system: str) -> None:
        """Raise a UserError unless this is a dense model with usual attention."""
        parts = {"experts": self.experts, "latent attention": self.latent, "windows": self.window}
        if has := [name for name, part in parts.items() if part]:
            raise UserError(
                "model-not-plain", f"{system} does not know models with {' and '.join(has)}: {self.name}"
            )

    # Memory

    def weights(self) -> WeightCount:
        """Return the weights' elements by place. Learned positions are counted with the embedding.

        So are the matrices for relative ones, which no step multiplies by: what they make of the positions
        can be cached, as it depends on no token.
        """
        products = self.products()
        matrices = sum(product.elements for product in products)
        query_key = self.query_size + self.kv_size if self.qk_norm_over_heads else 2 * self.head_dim
        norms_a_layer = 2 * self.hidden + (query_key if self.qk_norm else 0)
        if self.latent:
            norms_a_layer += self.latent.q_rank + self.latent.kv_rank
        small = self.layers * norms_a_layer + self.hidden
        if self.all_biases:
            small *= 2  # a norm has a bias as long as its scale
            small += sum(product.layers * product.gemm.n for product in products)
        elif self.qkv_bias:
            small += self.layers * (self.query_size + 2 * self.kv_size)
        small += self.layers * (self.output_bias * self.hidden + self.sinks * self.heads)
        routed = 0
        if mixture := self.experts:
            routed = self.expert_layers * mixture.count * 3 * self.hidden * mixture.intermediate
            if self.output_bias:  # and the experts and their router have biases
                widths = 1 + 2 * mixture.intermediate + self.hidden
                small += self.expert_layers * mixture.count * widths
        head = 0 if self.tied_embeddings else self.vocab * self.hidden
        relative = self.layers * self.query_size if self.relative_positions else 0
        embedding = (self.vocab + self.positions + relative) * self.hidden
        return WeightCount(matrices, routed, small, embedding, head)

    @property
    def parameters(self) -> int:
        return sum(self.weights())

    @property
    def active_parameters(self) -> int:
        """Parameters that a token goes through, embedding included."""
        count = self.weights()
        idle = count.experts * (1 - self.experts.top_k / self.experts.count) if self.experts else 0
        return round(sum(count) - idle)

    @property
    def weight_bytes(self) -> float:
        """All weights: matrices, experts, biases, norms, embeddings, and the LM head unless it is tied."""
        return self.weight_bytes_per_worker(1)

    @property
    def table3_bytes(self) -> float:
        """Bytes as v2 Table 3 counts them: the layers and ONE vocabulary table of 32,000 rows."""
        count = self.weights()
        return (count.matrices + count.biases_and_norms + TABLE3_VOCAB * self.hidden) * self.dtype_bytes

    def weight_bytes_per_worker(self, split: Split) -> float:
        """Return the largest share of one stage's worker; small weights and too few KV heads are copied."""
        layout = layout_of(split)
        count, rest = self.weights(), DTYPE_BYTES[self.rest_dtype]
        matrices = sum(product.elements * DTYPE_BYTES[product.dtype] for product in self.products(layout))
        experts = 0.0
        if mixture := self.experts:
            share = -(-mixture.count // layout.ep) / mixture.count / layout.expert_tp
            experts = count.experts * share * DTYPE_BYTES[self.expert_dtype]
        shared = (count.embedding + count.lm_head) / layout.tp + count.biases_and_norms
        total = matrices + experts + shared * rest
        return total / layout.pp

    def attention_weight_bytes(self, tp: int = 1) -> float:
        """Return the bytes of the matrices around attention, where `tp` workers share them."""
        return sum(each.elements * DTYPE_BYTES[each.dtype] for each in self.attention_products(tp))

    @property
    def kv_bytes_per_token(self) -> float:
        """KV of one token over all layers that keep it."""
        freed = self.window.layers if self.window and self.window.frees else 0
        return (self.layers - freed) * self.stored_size * DTYPE_BYTES[self.kv_dtype]

    @property
    def kv_tokens_per_request(self) -> int:
        """Return the tokens that windows retain of a request, in units of `kv_bytes_per_token`."""
        if not (self.window and self.window.frees):
            return 0
        return -(-self.window.tokens * self.window.layers // (self.layers - self.window.layers))

    @property
    def kv_bytes_per_request(self) -> float:
        """Largest number of bytes that windows retain of a request, where they free the rest."""
        if not (self.window and self.window.frees):
            return 0
        return self.window.tokens * self.window.layers * self.stored_size * DTYPE_BYTES[self.kv_dtype]

    def kv_share(self, tp: int) -> float:
        """Return the share of a token's KV on one of `tp` workers that share its heads; MLA's is copied."""
        return max(1, self.kv_heads // tp) / self.kv_heads

    # Shapes

    def products(self, split: Split = 1) -> tuple[Product, ...]:
        """Return all layers' products on one worker, split as in Megatron and vLLM; without experts."""
        layout = layout_of(split)
        self.check_split(layout)
        products = [*self.attention_products(layout.tp)]
        dense, tp = self.dense_layers, layout.tp

        def feed(width: int, layers: int, *names: str) -> list[Product]:
            up = Gemm(names[0], (2 if self.gated_mlp else 1) * width // tp, self.hidden)
            down = Gemm(names[1], self.hidden, width // tp)
            return [Product(gemm, layers, "feed", self.dtype) for gemm in (up, down)]

        if dense:
            names = ("gate_up", "down") if self.gated_mlp else ("fc1", "fc2")
            products += feed(self.intermediate, dense, *names)
        if self.experts:
            router = Gemm("router", self.experts.count, self.hidden)
            kind = self.rest_dtype
            products.append(Product(router, self.expert_layers, "feed", kind, computed_in=self.router_dtype))
            if shared := self.experts.shared:
                products += feed(shared, self.expert_layers, "shared_gate_up", "shared_down")
        return tuple(products)

    def attention_products(self, tp: int = 1) -> list[Product]:
        """Return the products around attention alone, on one of `tp` workers."""
        if why := self._heads_problem(tp):
            raise UserError(
                "model-cannot-split", f"attention of {self.name} cannot be split as tp{tp}: {why}"
            )
        heads, of = self.heads // tp, self.latent
        if of is None:
            query, kv = self.query_size // tp, max(self.kv_size // tp, self.head_dim)
            pieces: list[tuple[Place, Gemm, int]] = [
                ("before", Gemm("qkv", query + 2 * kv, self.hidden), 0),
                ("after", Gemm("o", self.hidden, query), 0),
            ]
        else:
            pieces = [
                ("before", Gemm("qkv_a", of.q_rank + of.width, self.hidden), 0),  # copied to every worker
                ("before", Gemm("q_b", heads * of.query, of.q_rank or self.hidden), 0),
                ("before", Gemm("absorb", of.kv_rank, of.nope), heads),
                ("after", Gemm("expand", of.value, of.kv_rank), heads),
                ("after", Gemm("o", self.hidden, heads * of.value), 0),
            ]
        # Absorption is computed in 16 bits whatever the weights are in.
        return [
            Product(gemm, self.layers, place, self.rest_dtype if batched else self.dtype, batched)
            for place, gemm, batched in pieces
        ]

    def layer_gemms(self, tp: int = 1) -> tuple[Gemm, ...]:
        """Return the GEMMs of a layer on one of `tp` workers, of a model whose layers are identical."""
        return tuple(product.gemm for product in self.products(tp))

    def lm_head_gemm(self, tp: int = 1) -> Gemm:
        """Return the sampling matrix; its rows are padded up where they do not divide."""
        return Gemm("lm_head", -(-self.vocab // tp), self.hidden)

    def elementwise(self, split: Split = 1, side: Side | None = None) -> tuple[int, float]:
        """Return (kernels, elements per token) of a layer outside GEMMs, attention and network.

        Two norms (read and write d each), the residual add (3d), the activation (2 or 3 times f/t) and,
        where the model has them, rotation and query-key norm (read and write q and k). Experts activate
        within their own kernel. Where layers differ it is their mean. The add counts with the feed side.
        """
        tp = layout_of(split).tp
        width: float = self.intermediate // tp
        if self.experts:
            inner = self.dense_layers * self.intermediate + self.expert_layers * self.experts.shared
            width = inner / tp / self.layers
        feed = 3, 5 * self.hidden + (3 if self.gated_mlp else 2) * width
        if side == "feed":
            return feed
        if of := self.latent:
            # Norms of both low ranks, and rotation of the part that is rotated.
            kernels = 3 + bool(of.q_rank)
            turned = 2 * (self.heads // tp + 1) * of.rotary + 2 * (of.q_rank + of.kv_rank)
        else:
            kernels = 1 + self.rotary + self.qk_norm
            query_key = 2 * (self.query_size // tp + max(self.kv_size // tp, self.head_dim))
            turned = (self.rotary + self.qk_norm) * query_key
        attention = kernels, 2 * self.hidden + turned
        return attention if side else (feed[0] + attention[0], feed[1] + attention[1])

    def operators(self, tp: int = 1, side: Side | None = None) -> tuple[tuple[str, int, int], ...]:
        """Return (name, width, how often in a step) of what `elementwise` counts, and of the last norm."""
        heads = self.query_size // tp + max(self.kv_size // tp, self.head_dim)
        norms = {None: 2 * self.layers + 1, "attention": self.layers, "feed": self.layers + 1}
        operators = [("norm", self.hidden, norms[side])]
        if side != "attention":
            operators.append(("activation", self.intermediate // tp, self.layers))
        if self.rotary and side != "feed":
            operators.append(("rotary", heads, self.layers))
        if self.qk_norm and side != "feed":
            operators.append(("qk_norm", heads, self.layers))
        return tuple(operators)

    # Ways to split

    def tp_degrees(self, limit: int = 64) -> tuple[int, ...]:
        """Return the legal tensor-parallel degrees of the model workers."""
        return tuple(tp for tp in range(1, limit + 1) if not self._problem(Layout(tp)))

    def attention_degrees(self, limit: int) -> tuple[int, ...]:
        """Return over how many workers attention can be split, with the products around it."""
        return tuple(tp for tp in range(1, limit + 1) if not self._heads_problem(tp))

    def layouts(self, devices: int, node: int = 8) -> tuple[Layout, ...]:
        """Return the legal ways in which so many devices share the model, tensor parallelism within a node.

        Data parallelism of dense models is instances; experts are split, or distributed over the whole stage.
        """
        layouts = []
        for pp in (each for each in range(1, devices + 1) if devices % each == 0):
            stage = devices // pp
            for tp in (each for each in range(1, min(node, stage) + 1) if stage % each == 0):
                dp = stage // tp
                degrees = {1, stage} if self.experts else {1}
                layouts += [Layout(tp, dp, ep, pp) for ep in sorted(degrees) if self.experts or dp == 1]
        return tuple(each for each in layouts if not self._problem(each))

    def head_splits(self) -> tuple[int, ...]:
        """Return the numbers of attention workers that get equal shares when KV heads are distributed."""
        return tuple(b for b in range(1, self.kv_heads + 1) if self.kv_heads % b == 0)

    def check_split(self, split: Split) -> None:
        layout = layout_of(split)
        if why := self._problem(layout):
            legal = ", ".join(map(str, self.tp_degrees()))
            raise UserError(
                "model-cannot-split",
                f"{self.name} cannot be split as {layout}: {why}; possible by tensor parallelism: {legal}",
            )

    def _problem(self, layout: Layout) -> str:
        """Return why the model cannot be split so; nothing if it can."""
        tp = layout.tp
        if why := self._heads_problem(tp):
            return why
        widths = {"feed-forward width": self.intermediate * bool(self.dense_layers)}
        if self.experts:
            widths["shared experts' width"] = self.experts.shared
        for what, size in widths.items():
            if size % tp:
                return f"{what} {size} is not divisible by {tp}"
        if layout.pp > self.layers:
            return f"{self.layers} layers are fewer than {layout.pp} stages"
        if self.experts is None:
            return "it has no experts" if layout.ep > 1 else ""
        width, block = self.experts.intermediate, BLOCK_SIZE.get(self.expert_dtype, 1)
        if layout.ep > self.experts.count:
            return f"{self.experts.count} experts are fewer than {layout.ep} devices"
        if self.experts.count % layout.ep:
            return f"{self.experts.count} experts do not divide over {layout.ep} devices"
        if layout.expert_tp > 1 and self.expert_dtype == "fp8_block" and width // layout.expert_tp % block:
            return f"experts of width {width} in blocks of {block} do not divide over {layout.expert_tp}"
        if width % layout.expert_tp:
            return f"experts of width {width} do not divide over {layout.expert_tp}"
        return ""

    def _heads_problem(self, tp: int) -> str:
        if tp < 1 or self.heads % tp:
            return f"heads {self.heads} is not divisible by {tp}"
        if not self.latent and self.kv_heads % tp and tp % self.kv_heads:
            return f"{self.kv_heads} KV heads do not divide"
        return ""

    def describe(self) -> Table:
        facts = {name: value for name, value in asdict(self).items() if value or name not in FEW}
        return {
            **facts,
            "parameters": self.parameters,
            **({"active_parameters": self.active_parameters} if self.experts else {}),
            "weight_gb": self.weight_bytes / 1e9,
            "weight_gb_as_v2_table3": self.table3_bytes / 1e9,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            **({"kv_bytes_per_request": retained} if (retained := self.kv_bytes_per_request) else {}),
            "tp_degrees": list(self.tp_degrees()),
            "head_splits": list(self.head_splits()),
        }
