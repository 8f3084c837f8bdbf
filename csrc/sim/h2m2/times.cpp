#include "sim/h2m2/times.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

#include "sim/h2m2/footprint.hpp"

namespace lamina::h2m2 {

namespace {

// One sublayer of a model: how often an iteration runs it, and where a plan has its time.
struct Part {
  Sublayer sublayer;
  int heads;    // KV groups of attention
  double runs;  // of an iteration
  double Plan::* ns;
  int Mapping::* in_hbm;
};

std::array<Part, 4> parts_of(const Shape& shape) {
  const double layers = shape.layers;
  return {{{Sublayer::kQkv, shape.heads, layers, &Plan::qkv_ns, &Mapping::qkv},
           {Sublayer::kAttention, shape.kv_heads, layers, &Plan::attention_ns, &Mapping::attention},
           {Sublayer::kFc, shape.heads, layers, &Plan::fc_ns, &Mapping::fc},
           {Sublayer::kLmHead, shape.heads, shape.vocab > 0 ? 1.0 : 0.0, &Plan::lm_head_ns, &Mapping::fc}}};
}

void add_busy(Plan& plan, const SideTime& hbm, double hbm_runs, const SideTime& lpddr, double lpddr_runs) {
  plan.hbm_busy_ns += hbm_runs * hbm.busy_ns;
  plan.lpddr_busy_ns += lpddr_runs * lpddr.busy_ns;
  plan.lpddr_dram_ns += lpddr_runs * lpddr.dram_ns;
}

double launches(const Board& board) { return board.kernels * board.launch_ns; }

}  // namespace

Chips::Chips(const Board& board, const Side& memory, int chips, int element_bytes)
    : board_(board),
      element_bytes_(element_bytes),
      cores_(static_cast<double>(board.cores) * chips),
      bytes_per_ns_(memory.bytes_per_ns * board.dram_efficiency),
      ns_per_byte_(1 / bytes_per_ns_),
      latency_ns_(2 * memory.latency_ns),  // of the first read and of the last write
      misses_at_once_(static_cast<double>(board.tlb_misses_at_once) * chips),
      reach_bytes_(board.page_bytes * board.tlb_entries * chips),
      mm_per_ns_(cores_ * board.mm_size * board.mm_size / board.cycle_ns),
      mv_per_ns_(cores_ * board.mv_rows * board.mv_width / board.cycle_ns) {}

Gemm Chips::matrix(double rows, double columns) const {
  const double tiles = std::ceil(rows / board_.mm_size) * std::ceil(columns / board_.mm_size);
  return {rows, columns, std::ceil(tiles / cores_), rows * columns * element_bytes_};
}

// Weights that are loaded before their rows stream through cost a tile's height in cycles; loaded behind the
// tile before, they cost nothing as long as there are enough rows to hide them.
double Chips::cycles_a_tile(const Board& board, double batch, double passes) {
  const double load = board.mm_size * passes;
  return board.weight_load == WeightLoad::kBefore ? load + batch : std::max(load, batch);
}

KernelTime Chips::gemm(const Gemm& matrix, double batch, bool translated) const {
  if (matrix.columns == 0 || batch == 0) return {};
  // Activations stay in one half of the scratchpads while the other half takes the next weights. If they do
  // not fit, the weights come once for each part of the batch that does; no model of the paper needs that.
  const double stored = batch * matrix.rows * element_bytes_;
  const double half = board_.spm_bytes * cores_;
  const double passes = stored > half ? std::ceil(stored / half) : 1;
  const double moved = passes * matrix.weight_bytes + batch * (matrix.rows + matrix.columns) * element_bytes_;
  const double fill_and_drain = 3 * board_.mm_size * board_.cycle_ns;
  return {matrix.waves * cycles_a_tile(board_, batch, passes) * board_.cycle_ns, moved * ns_per_byte_,
          latency_ns_ + fill_and_drain + (translated ? misses_ns(matrix.weight_bytes) : 0)};
}

KernelTime Chips::attention(const Shape& shape, int groups, const Moment& moment, bool translated) const {
  if (groups == 0 || moment.batch == 0) return {};
  const double heads = static_cast<double>(groups) * shape.group();
  const double tokens = static_cast<double>(moment.kv_tokens);
  const double kv_bytes = 2.0 * shape.head_dim * groups * tokens * element_bytes_;
  const double read = board_.reread_kv ? kv_bytes * shape.group() : kv_bytes;
  // Scores and weighted sum on the matrix-vector units; the softmax between them, three passes of the special
  // function units, runs concurrently.
  const int width = (shape.head_dim + board_.mv_width - 1) / board_.mv_width;
  const double products = 2 * heads * static_cast<double>(moment.kv_rows) * width / cores_;
  const double softmax = 3 * heads * tokens / board_.vector_width / cores_;
  return {std::max(products, softmax) * board_.cycle_ns, read * ns_per_byte_,
          latency_ns_ + (translated ? misses_ns(kv_bytes) : 0)};
}

// A stream longer than the TLBs' reach misses once at each of its pages, however often it then reads them.
double Chips::misses_ns(double bytes) const {
  return std::ceil(bytes / board_.page_bytes) * board_.tlb_miss_ns / misses_at_once_;
}

Sublayers::Sublayers(const Board& board, const Side& memory, int chips, const Shape& shape)
    : chips_(board, memory, chips, shape.element_bytes), shape_(shape) {
  const double hidden = shape.hidden;
  const double query = static_cast<double>(shape.heads) * shape.head_dim;
  const double key_and_value = 2.0 * shape.kv_heads * shape.head_dim;
  const double up = static_cast<double>(shape.ff_matrices - 1) * shape.intermediate;
  for (int heads = 0; heads <= shape.heads; ++heads) {
    const auto share = [&](double columns) { return columns * heads / shape.heads; };
    matrices_.push_back({.qkv = chips_.matrix(hidden, share(query + key_and_value)),
                         .projection = chips_.matrix(query, share(hidden)),
                         .up = chips_.matrix(hidden, share(up)),
                         .down = chips_.matrix(shape.intermediate, share(hidden)),
                         .lm_head = chips_.matrix(hidden, share(shape.vocab))});
  }
}

SideTime Sublayers::time(Sublayer sublayer, int heads, const Moment& moment, bool translated) const {
  const Matrices& of = matrices_[static_cast<std::size_t>(heads)];
  SideTime time;
  const auto multiply = [&](const Gemm& matrix) {
    time += chips_.gemm(matrix, static_cast<double>(moment.batch), translated);
  };
  switch (sublayer) {
    case Sublayer::kQkv:
      multiply(of.qkv);
      break;
    case Sublayer::kAttention:
      time += chips_.attention(shape_, heads, moment, translated);
      break;
    case Sublayer::kFc:
      multiply(of.projection);
      multiply(of.up);
      multiply(of.down);
      break;
    case Sublayer::kLmHead:
      multiply(of.lm_head);
  }
  return time;
}

Times::Times(const Board& board, const Shape& shape)
    : board_(board),
      shape_(shape),
      hbm_(board, board.hbm, board.hbm.chips, shape),
      lpddr_(board, board.lpddr, board.lpddr.chips, shape) {}

Plan Times::of(const Mapping& mapping, const Moment& moment, bool translated) const {
  const int heads = mapping.whole_layers ? shape_.layers : shape_.heads;
  const int groups = mapping.whole_layers ? shape_.layers : shape_.kv_heads;
  const auto within = [](int value, int limit) { return value >= 0 && value <= limit; };
  if (!within(mapping.qkv, heads) || !within(mapping.fc, heads) || !within(mapping.attention, groups)) {
    throw std::invalid_argument("the mapping has more heads, KV groups or layers than the model");
  }
  // All that a side reads in an iteration it reads again in the next: it hits only if all of it is in reach.
  const Footprint unit = footprint(shape_, moment.kv_tokens);
  const double at_hbm = hbm_bytes(mapping, shape_, unit);
  const bool hbm_misses = translated && at_hbm > hbm_.chips().reach_bytes();
  const bool lpddr_misses = translated && total_bytes(shape_, unit) - at_hbm > lpddr_.chips().reach_bytes();
  Plan plan;
  for (const Part& part : parts_of(shape_)) {
    if (part.runs == 0) continue;
    const int here = mapping.*part.in_hbm;
    const int hbm_heads = mapping.whole_layers ? part.heads : here;
    const int lpddr_heads = mapping.whole_layers ? part.heads : part.heads - here;
    const SideTime hbm = hbm_.time(part.sublayer, hbm_heads, moment, hbm_misses);
    const SideTime lpddr = lpddr_.time(part.sublayer, lpddr_heads, moment, lpddr_misses);
    if (mapping.whole_layers) {
      // Each layer's sublayer on one side altogether, and only that side at work. The LM head is split over
      // the sides as fc's layers are, so that its bytes go with theirs.
      const double runs =
          part.sublayer == Sublayer::kLmHead ? here / static_cast<double>(shape_.layers) : here;
      add_busy(plan, hbm, runs, lpddr, part.runs - runs);
      plan.*part.ns = (runs * hbm.busy_ns + (part.runs - runs) * lpddr.busy_ns) / part.runs;
    } else {
      add_busy(plan, hbm, part.runs, lpddr, part.runs);
      plan.*part.ns = std::max(hbm.busy_ns, lpddr.busy_ns);
    }
  }
  plan.mapping = mapping;
  plan.launch_ns = launches(board_);
  add_exchange(plan, moment);
  return plan;
}

double Times::ns(Sublayer sublayer, int heads, const Moment& moment) const {
  const int all = sublayer == Sublayer::kAttention ? shape_.kv_heads : shape_.heads;
  return std::max(hbm_.time(sublayer, heads, moment).busy_ns,
                  lpddr_.time(sublayer, all - heads, moment).busy_ns);
}

// What passes between the sides in a layer if every activation does: query, key and value, what attention
// makes of them, the projection's output, and the feed-forward layer's two. An upper bound, also for the
// heads whose qkv and attention are on different sides.
void Times::add_exchange(Plan& plan, const Moment& moment) const {
  const double bytes = static_cast<double>(moment.batch) * shape_.element_bytes;
  plan.exchange_ns = bytes * (6.0 * shape_.hidden + shape_.intermediate) / board_.link_bytes_per_ns;
  if (shape_.vocab > 0) {
    plan.lm_head_ns +=
        bytes * (static_cast<double>(shape_.hidden) + shape_.vocab) / board_.link_bytes_per_ns +
        board_.launch_ns;
  }
}

Plan alone(const Board& board, const Sublayers& side, bool at_hbm, const Moment& moment) {
  const Shape& shape = side.shape();
  Plan plan;
  for (const Part& part : parts_of(shape)) {
    if (part.runs == 0) continue;
    const SideTime time = side.time(part.sublayer, part.heads, moment);
    add_busy(plan, time, at_hbm ? part.runs : 0, time, at_hbm ? 0 : part.runs);
    plan.*part.ns = time.busy_ns;
  }
  if (shape.vocab > 0) plan.lm_head_ns += board.launch_ns;
  plan.launch_ns = launches(board);
  if (at_hbm) plan.mapping = {shape.heads, shape.kv_heads, shape.heads};
  return plan;
}

}  // namespace lamina::h2m2
