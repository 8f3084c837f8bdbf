#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "core/scheduler.hpp"
#include "core/ticks.hpp"

namespace lamina::sim {

// Later than anything.
inline constexpr Ticks kNever = std::numeric_limits<Ticks>::max();

enum class Mode { kSaturate, kOpen, kClosed };

struct Workload {
  std::span<const Ticks> arrival;
  RequestTable requests;
  Mode mode = Mode::kSaturate;
  std::int64_t concurrency = 0;  // closed: this many in the system
};

// The requests of one deployment in rows of its own: all of a workload's, or those that were sent there.
class Arrivals {
public:
  using Index = Scheduler::Index;

  // None yet. `shares`: prompts may have leading blocks in common.
  Arrivals(const Workload& of, bool shares) : of_(of), own_(true), shares_(shares) {
    shares_ &= !of.requests.prefix_offsets.empty();
    table_.prefix_block_tokens = of.requests.prefix_block_tokens;
  }
  // All of them, where they are.
  static Arrivals all(const Workload& of, bool shares) {
    Arrivals arrivals(of, shares);
    arrivals.own_ = false;
    arrivals.table_ = of.requests;
    if (!shares) arrivals.table_.prefix_offsets = arrivals.table_.prefix_ids = {};
    return arrivals;
  }
  Arrivals(const Arrivals&) = delete;
  Arrivals(Arrivals&&) = default;

  // A request of the workload comes; it makes `output` tokens here. Whether table() is another from now on.
  bool add(Index row, Ticks at, std::int32_t output) {
    const bool moves = count_ == rows_.size() || shares_;
    if (count_ == rows_.size()) {
      const auto grow = [&](auto&... columns) { (columns.resize(std::max(kFirst, 2 * count_)), ...); };
      grow(rows_, at_, prompt_, output_);
    }
    rows_[count_] = row;
    at_[count_] = at;
    prompt_[count_] = of_.requests.prompt[row];
    output_[count_] = output;
    ++count_;
    if (shares_) {
      const auto ids = of_.requests.prefix(row);
      if (offsets_.empty()) offsets_.push_back(0);
      ids_.insert(ids_.end(), ids.begin(), ids.end());
      offsets_.push_back(static_cast<std::int64_t>(ids_.size()));
    }
    if (moves) table_ = {prompt_, output_, offsets_, ids_, table_.prefix_block_tokens, {}};
    return moves;
  }

  std::size_t size() const { return own_ ? count_ : of_.arrival.size(); }
  // With rows for those to come.
  const RequestTable& table() const { return table_; }
  // The workload's row of one of these.
  Index row(Index request) const { return own_ ? rows_[request] : request; }
  Ticks at(std::size_t request) const {
    if (own_) return at_[request];
    return of_.mode == Mode::kOpen ? of_.arrival[request] : 0;
  }

private:
  const Workload& of_;
  bool own_;
  bool shares_;
  static constexpr std::size_t kFirst = 64;
  std::size_t count_ = 0;
  std::vector<Index> rows_;
  std::vector<Ticks> at_;
  std::vector<std::int32_t> prompt_, output_;
  std::vector<std::int64_t> offsets_, ids_;
  RequestTable table_;
};

}  // namespace lamina::sim
