#include "sim/merge.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "sim/earliest.hpp"

namespace lamina::sim {

namespace {

// A row of one of the parts.
struct Place {
  std::uint32_t part, row;
};
using Order = std::vector<Place>;

// A part's rows are in the order of their starts already.
Order by_start(std::vector<Result>& parts) {
  std::size_t rows = 0;
  Earliest next(static_cast<int>(parts.size()));
  std::vector<std::uint32_t> taken(parts.size());
  const auto show = [&](std::size_t i) {
    IterationRows& of = parts[i].iterations;
    next.set(static_cast<int>(i), taken[i] < of.rows ? of.start[taken[i]] : kNever);
  };
  for (std::size_t i = 0; i < parts.size(); ++i) {
    rows += parts[i].iterations.rows;
    show(i);
  }
  Order order(rows);
  for (Place& place : order) {
    const auto part = static_cast<std::uint32_t>(next.index());
    place = {part, taken[part]++};
    show(part);
  }
  return order;
}

// A column of all parts in an order; a part's is let go once it was copied.
template <typename T, typename Take>
std::vector<T> joined(std::vector<Result>& parts, const Order& order, Take take) {
  std::vector<std::vector<T>> columns;
  for (Result& part : parts) columns.push_back(take(part));
  std::vector<T> all;
  all.reserve(order.size());
  for (const auto [part, row] : order) all.push_back(columns[part][row]);
  return all;
}

template <typename T>
void join(std::vector<Result>& parts, const Order& order, IterationRows& into,
          Column<T> IterationRows::* field) {
  Column<T>& all = into.*field;
  all.grow(order.size());
  for (std::size_t i = 0; i < order.size(); ++i)
    all[i] = (parts[order[i].part].iterations.*field)[order[i].row];
  for (Result& part : parts) (part.iterations.*field).take();
}

template <typename T>
void join(std::vector<Result>& parts, const Order& order, MemoryRows& into,
          std::vector<T> MemoryRows::* field) {
  into.*field = joined<T>(parts, order, [&](Result& part) { return std::move((*part.memory).*field); });
}

}  // namespace

void Tally::add(const Tally& other) {
  gaps.resize(std::max(gaps.size(), other.gaps.size()));
  for (std::size_t i = 0; i < other.gaps.size(); ++i) gaps[i] += other.gaps[i];
  iterations += other.iterations;
  tokens += other.tokens;
  prompt_tokens += other.prompt_tokens;
  duration += other.duration;
  model += other.model;
  attention += other.attention;
  network += other.network;
  host += other.host;
  waiting += other.waiting;
  overlapped += other.overlapped;
}

Result merged(std::vector<Result> parts) {
  if (parts.size() == 1) return std::move(parts.front());
  Result whole;
  const Order order = by_start(parts);
  IterationRows& rows = whole.iterations;
  const auto columns = [&](auto... fields) { (join(parts, order, rows, fields), ...); };
  columns(&IterationRows::batch, &IterationRows::iteration, &IterationRows::start, &IterationRows::duration,
          &IterationRows::size, &IterationRows::joined, &IterationRows::kv_tokens, &IterationRows::model,
          &IterationRows::attention, &IterationRows::network, &IterationRows::host);
  rows.rows = order.size();
  const auto all_have = [&](auto field) {
    return std::ranges::all_of(parts, [&](const Result& part) { return (part.*field).has_value(); });
  };
  if (all_have(&Result::prompt_tokens)) {
    whole.prompt_tokens =
        joined<std::int32_t>(parts, order, [](Result& part) { return std::move(*part.prompt_tokens); });
  }
  if (all_have(&Result::memory)) {
    MemoryRows& memory = whole.memory.emplace();
    const auto fields = [&](auto... each) { (join(parts, order, memory, each), ...); };
    fields(&MemoryRows::qkv_heads, &MemoryRows::attention_groups, &MemoryRows::fc_heads,
           &MemoryRows::hbm_qkv_bytes, &MemoryRows::hbm_kv_bytes, &MemoryRows::hbm_fc_bytes,
           &MemoryRows::hbm_free_bytes, &MemoryRows::lpddr_bytes, &MemoryRows::wasted_bytes,
           &MemoryRows::moved_bytes, &MemoryRows::compacted_bytes, &MemoryRows::moving, &MemoryRows::hidden,
           &MemoryRows::hbm_busy, &MemoryRows::lpddr_busy);
  }
  for (const Result& part : parts) {
    if (!part.tally) continue;
    if (!whole.tally) whole.tally.emplace();
    whole.tally->add(*part.tally);
  }
  whole.queue_empty_at = kNever;
  std::int32_t worker = 0;
  for (Result& part : parts) {
    whole.stints.insert(whole.stints.end(), part.stints.begin(), part.stints.end());
    whole.gaps.insert(whole.gaps.end(), part.gaps.begin(), part.gaps.end());
    for (Stretch stretch : part.timeline) {
      if (stretch.worker >= 0) stretch.worker += worker;
      whole.timeline.push_back(stretch);
    }
    worker += static_cast<std::int32_t>(part.replica_busy.size());
    whole.replica_busy.insert(whole.replica_busy.end(), part.replica_busy.begin(), part.replica_busy.end());
    whole.attention_busy += part.attention_busy;
    whole.end = std::max(whole.end, part.end);
    whole.queue_empty_at = std::min(whole.queue_empty_at, part.queue_empty_at);
    whole.peak_kv_tokens += part.peak_kv_tokens;
    whole.kv_capacity_tokens += part.kv_capacity_tokens;
    if (!part.pool) continue;
    if (!whole.pool) whole.pool.emplace();
    const auto append = [&](auto field) {
      auto& to = *whole.pool.*field;
      to.insert(to.end(), (*part.pool.*field).begin(), (*part.pool.*field).end());
    };
    for (std::int32_t& each : part.pool->engine) each += whole.pool->engines;
    whole.pool->engines += part.pool->engines;
    append(&PoolRows::engine);
    append(&PoolRows::prompts);
    append(&PoolRows::made);
    append(&PoolRows::prompt_tokens);
    append(&PoolRows::start);
    append(&PoolRows::duration);
    append(&PoolRows::busy);
  }
  return whole;
}

}  // namespace lamina::sim
