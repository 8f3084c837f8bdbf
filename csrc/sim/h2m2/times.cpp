#include "sim/h2m2/times.hpp"

#include <algorithm>
#include <stdexcept>

#include "sim/h2m2/footprint.hpp"

namespace lamina::h2m2 {

namespace {

// Both sides at once; a barrier waits for the slower one.
double together(const SideTime& hbm, const SideTime& lpddr) { return std::max(hbm.busy_ns, lpddr.busy_ns); }

void add_busy(Plan& plan, const SideTime& hbm, const SideTime& lpddr, double times) {
  plan.hbm_busy_ns += times * hbm.busy_ns;
  plan.lpddr_busy_ns += times * lpddr.busy_ns;
  plan.lpddr_dram_ns += times * lpddr.dram_ns;
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
  Plan plan = mapping.whole_layers ? in_turn(mapping, moment, hbm_misses, lpddr_misses)
                                   : split(mapping, moment, hbm_misses, lpddr_misses);
  plan.mapping = mapping;
  plan.launch_ns = launches(board_);
  add_exchange(plan, moment);
  return plan;
}

double Times::qkv_ns(int heads, const Moment& moment) const {
  return together(hbm_.qkv(heads, moment), lpddr_.qkv(shape_.heads - heads, moment));
}

double Times::attention_ns(int groups, const Moment& moment) const {
  return together(hbm_.attention(groups, moment), lpddr_.attention(shape_.kv_heads - groups, moment));
}

double Times::fc_ns(int heads, const Moment& moment) const {
  return together(hbm_.fc(heads, moment), lpddr_.fc(shape_.heads - heads, moment));
}

double Times::lm_head_ns(int heads, const Moment& moment) const {
  return together(hbm_.lm_head(heads, moment), lpddr_.lm_head(shape_.heads - heads, moment));
}

Plan Times::split(const Mapping& mapping, const Moment& moment, bool hbm_misses, bool lpddr_misses) const {
  Plan plan;
  const auto add = [&](const SideTime& hbm, const SideTime& lpddr, double times) {
    add_busy(plan, hbm, lpddr, times);
    return together(hbm, lpddr);
  };
  const int heads = shape_.heads;
  plan.qkv_ns = add(hbm_.qkv(mapping.qkv, moment, hbm_misses),
                    lpddr_.qkv(heads - mapping.qkv, moment, lpddr_misses), shape_.layers);
  plan.attention_ns =
      add(hbm_.attention(mapping.attention, moment, hbm_misses),
          lpddr_.attention(shape_.kv_heads - mapping.attention, moment, lpddr_misses), shape_.layers);
  plan.fc_ns = add(hbm_.fc(mapping.fc, moment, hbm_misses),
                   lpddr_.fc(heads - mapping.fc, moment, lpddr_misses), shape_.layers);
  if (shape_.vocab > 0) {
    plan.lm_head_ns = add(hbm_.lm_head(mapping.fc, moment, hbm_misses),
                          lpddr_.lm_head(heads - mapping.fc, moment, lpddr_misses), 1);
  }
  return plan;
}

// Each layer's sublayer on one side altogether, and only that side at work. The LM head is split over the
// sides as fc's layers are, so that its bytes go with theirs.
Plan Times::in_turn(const Mapping& mapping, const Moment& moment, bool hbm_misses, bool lpddr_misses) const {
  Plan plan;
  const auto add = [&](const SideTime& hbm, const SideTime& lpddr, double layers, double of) {
    plan.hbm_busy_ns += layers * hbm.busy_ns;
    plan.lpddr_busy_ns += (of - layers) * lpddr.busy_ns;
    plan.lpddr_dram_ns += (of - layers) * lpddr.dram_ns;
    return (layers * hbm.busy_ns + (of - layers) * lpddr.busy_ns) / of;
  };
  const double layers = shape_.layers;
  plan.qkv_ns = add(hbm_.qkv(shape_.heads, moment, hbm_misses),
                    lpddr_.qkv(shape_.heads, moment, lpddr_misses), mapping.qkv, layers);
  plan.attention_ns = add(hbm_.attention(shape_.kv_heads, moment, hbm_misses),
                          lpddr_.attention(shape_.kv_heads, moment, lpddr_misses), mapping.attention, layers);
  plan.fc_ns = add(hbm_.fc(shape_.heads, moment, hbm_misses), lpddr_.fc(shape_.heads, moment, lpddr_misses),
                   mapping.fc, layers);
  if (shape_.vocab > 0) {
    plan.lm_head_ns = add(hbm_.lm_head(shape_.heads, moment, hbm_misses),
                          lpddr_.lm_head(shape_.heads, moment, lpddr_misses), mapping.fc / layers, 1);
  }
  return plan;
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
  const auto add = [&](const SideTime& time, double times) {
    const SideTime nothing;
    add_busy(plan, at_hbm ? time : nothing, at_hbm ? nothing : time, times);
    return time.busy_ns;
  };
  plan.qkv_ns = add(side.qkv(shape.heads, moment), shape.layers);
  plan.attention_ns = add(side.attention(shape.kv_heads, moment), shape.layers);
  plan.fc_ns = add(side.fc(shape.heads, moment), shape.layers);
  if (shape.vocab > 0) plan.lm_head_ns = add(side.lm_head(shape.heads, moment), 1) + board.launch_ns;
  plan.launch_ns = launches(board);
  if (at_hbm) plan.mapping = {shape.heads, shape.kv_heads, shape.heads};
  return plan;
}

}  // namespace lamina::h2m2
