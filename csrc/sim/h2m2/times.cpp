#include "sim/h2m2/times.hpp"

#include <algorithm>
#include <array>
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
