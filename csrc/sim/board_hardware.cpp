#include "sim/board_hardware.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "sim/h2m2/footprint.hpp"

namespace lamina::sim {

namespace {

constexpr double kTicksPerNs = kTicksPerSecond / 1e9;
constexpr double kLongestNs = 3600e9;  // an iteration

Ticks ticks_of(double ns) { return to_ticks(ns * kTicksPerNs); }

// As in laminabench/sim/spec.py for cost tables: what takes longer has a wrong parameter, and ticks would
// overflow.
void require_possible(double ns) {
  if (ns >= 0 && ns <= kLongestNs) return;
  throw std::overflow_error("an iteration takes " + std::to_string(ns / 1e9) + " s");
}

// A layer's launches are counted before its projection; the exchange goes half before attention, half after.
Load load_of(const h2m2::Plan& plan) {
  Load load;
  load.active = true;
  const Ticks exchange = ticks_of(plan.exchange_ns);
  load.first_slice = ticks_of(plan.qkv_ns + plan.launch_ns);
  load.mid_slice = ticks_of(plan.fc_ns + plan.qkv_ns + plan.launch_ns);
  load.last_slice = ticks_of(plan.fc_ns + plan.lm_head_ns);
  load.attention = ticks_of(plan.attention_ns);
  load.q_transfer = exchange / 2;
  load.out_transfer = exchange - load.q_transfer;
  return load;
}

}  // namespace

BoardHardware::BoardHardware(const BoardCosts& costs, const RequestTable& requests, std::int64_t kv_tokens)
    : costs_(costs),
      requests_(requests),
      policy_(h2m2::make_policy(costs.policy, costs.board, costs.shape, costs.translated, costs.shares)),
      lengths_(costs.board.mv_rows),
      hbm_pages_(static_cast<std::int64_t>(costs.board.hbm.capacity_bytes / costs.board.page_bytes)) {
  if (!policy_->maps()) return;
  const std::int64_t slots = h2m2::Memory::slots_of_column(costs.board, costs.shape);
  memory_.emplace(costs.board, costs.shape, (kv_tokens + slots - 1) / slots);
}

void BoardHardware::leave(const std::vector<Scheduler::Index>& requests) {
  for (const Scheduler::Index request : requests) leave(request);
}

void BoardHardware::leave(Scheduler::Index request) {
  lengths_.leave(request);
  if (memory_) memory_->leave(request);
}

void BoardHardware::join(Scheduler::Index request, std::int64_t tokens) {
  lengths_.join(request, tokens);
  if (memory_) memory_->join(request, tokens);
}

Load BoardHardware::load(const Scheduler& scheduler, int, const Scheduler::Change& change) {
  for (const Scheduler::Index request : change.preempted) leave(request);
  for (const Scheduler::Index request : change.joined)
    join(request, requests_.prompt[request] + scheduler.produced(request));
  if (lengths_.moment().batch == 0) return {};
  // The token that is being made: attention reads it too.
  lengths_.grow();
  if (memory_) memory_->grow();
  const std::int64_t compacted = memory_ ? memory_->compact() : 0;
  const std::optional<h2m2::Plan> plan = policy_->plan(lengths_.moment(), room());
  if (!plan) throw std::logic_error("a board's policy found no way to fit what the scheduler let in");
  require_possible(plan->iteration_ns(costs_.shape.layers));
  Load load = load_of(*plan);
  load.first_slice += ticks_of(plan->on_demand_ns);
  if (memory_) load.first_slice += settle(*plan, compacted);
  lpddr_idle_ns_ = std::max(0.0, plan->iteration_ns(costs_.shape.layers) - plan->lpddr_dram_ns);
  return load;
}

// Brings memory to where the plan has it, and writes it down; how long the iteration has to wait for that.
Ticks BoardHardware::settle(const h2m2::Plan& plan, std::int64_t compacted) {
  const h2m2::Board& board = costs_.board;
  const auto bytes = [&](std::int64_t pages) {
    return static_cast<std::int64_t>(static_cast<double>(pages) * board.page_bytes);
  };
  const std::int64_t moved = bytes(memory_->apply(plan.mapping).moved());
  const double rate = std::min(board.link_bytes_per_ns, board.lpddr.bytes_per_ns * board.dram_efficiency);
  const std::int64_t copied = compacted * memory_->layout().slot_bytes();
  const double moving_ns = static_cast<double>(moved) / rate + compacting_ns(plan.mapping, copied);
  require_possible(moving_ns);
  const double hidden_ns = std::min(moving_ns, lpddr_idle_ns_);

  const h2m2::Memory::Occupancy stored = memory_->occupancy();
  rows_.qkv_heads.push_back(plan.mapping.qkv);
  rows_.attention_groups.push_back(plan.mapping.attention);
  rows_.fc_heads.push_back(plan.mapping.fc);
  rows_.hbm_qkv_bytes.push_back(bytes(stored.hbm_qkv));
  rows_.hbm_kv_bytes.push_back(bytes(stored.hbm_kv));
  rows_.hbm_fc_bytes.push_back(bytes(stored.hbm_fc));
  rows_.hbm_free_bytes.push_back(bytes(hbm_pages_ - stored.hbm_qkv - stored.hbm_kv - stored.hbm_fc));
  rows_.lpddr_bytes.push_back(bytes(stored.lpddr));
  rows_.wasted_bytes.push_back(stored.wasted_bytes);
  rows_.moved_bytes.push_back(moved);
  rows_.compacted_bytes.push_back(copied);
  rows_.moving.push_back(ticks_of(moving_ns));
  rows_.hidden.push_back(ticks_of(hidden_ns));
  rows_.hbm_busy.push_back(ticks_of(plan.hbm_busy_ns));
  rows_.lpddr_busy.push_back(ticks_of(plan.lpddr_busy_ns));
  return ticks_of(costs_.overlap_moves ? moving_ns - hidden_ns : moving_ns);
}

// Both sides read and write their part of it at once; KV heads are identical.
double BoardHardware::compacting_ns(const h2m2::Mapping& mapping, std::int64_t bytes) const {
  const int parts = mapping.whole_layers ? costs_.shape.layers : costs_.shape.kv_heads;
  const double in_hbm = static_cast<double>(bytes) * mapping.attention / parts;
  const auto copying_ns = [&](const h2m2::Side& side, double part) {
    return 2 * part / (side.bytes_per_ns * costs_.board.dram_efficiency);
  };
  return std::max(copying_ns(costs_.board.hbm, in_hbm),
                  copying_ns(costs_.board.lpddr, static_cast<double>(bytes) - in_hbm));
}

h2m2::Room BoardHardware::room() const {
  return memory_ ? memory_->room() : h2m2::exact_room(costs_.board, costs_.shape, lengths_.moment());
}

void BoardHardware::check_integrity() const {
  if (!memory_) return;
  memory_->check_integrity();
  const h2m2::Moment& moment = lengths_.moment();
  if (memory_->tokens() != moment.kv_tokens || memory_->rows() != moment.kv_rows)
    throw std::logic_error("a board's memory holds other tokens than its requests have");
}

void BoardHardware::take(Result& result) {
  if (memory_) result.memory = std::move(rows_);
}

KvRoom kv_room(const BoardCosts& costs) {
  const auto policy =
      h2m2::make_policy(costs.policy, costs.board, costs.shape, costs.translated, costs.shares);
  if (policy->maps()) {
    const std::int64_t slots = h2m2::Memory::slots_of_column(costs.board, costs.shape);
    return {slots * h2m2::Memory::most_columns(costs.board, costs.shape), slots};
  }
  const double weights = h2m2::total_bytes(costs.shape, h2m2::footprint(costs.shape, 0));
  const double of_token = h2m2::total_bytes(costs.shape, h2m2::footprint(costs.shape, 1)) - weights;
  const double left = policy->capacity_bytes() - weights;
  return {left > 0 ? static_cast<std::int64_t>(left / of_token) : 0, 1};
}

}  // namespace lamina::sim
