#include "sim/h2m2/sublayers.hpp"

#include <cmath>

namespace lamina::h2m2 {

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
  const double held = batch * matrix.rows * element_bytes_;
  const double half = board_.spm_bytes * cores_;
  const double passes = held > half ? std::ceil(held / half) : 1;
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
  // function units, runs beside.
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

}  // namespace lamina::h2m2
