#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/scheduler.hpp"
#include "sim/costs.hpp"
#include "sim/pipeline.hpp"

namespace lamina::sim {

enum class Mode { kSaturate, kOpen, kClosed };

struct Workload {
  std::span<const Ticks> arrival;
  RequestTable requests;
  Mode mode = Mode::kSaturate;
  std::int64_t concurrency = 0;  // closed: this many in the system
};

// One row a request, in the order of the trace. Times are ticks; -1 where it did not come to that.
struct RequestRows {
  std::vector<Ticks> arrival, admitted, first_token, finished;
  std::vector<std::int64_t> first_iteration, last_iteration;
  std::vector<std::int32_t> batch;
  std::vector<std::int32_t> preemptions;
};

// An uninterrupted run of iterations of a request that was preempted: [first, last] of `batch`.
struct Stint {
  std::uint32_t request;
  std::int32_t batch;
  std::int64_t first;
  std::int64_t last;
};

// A column that is written by index and never shrinks; it starts uninitialised.
template <typename T>
class Column {
public:
  T& operator[](std::size_t row) { return values_[row]; }
  void grow(std::size_t rows, std::size_t capacity) {
    auto larger = std::make_unique_for_overwrite<T[]>(capacity);
    std::copy_n(values_.get(), rows, larger.get());
    values_ = std::move(larger);
  }
  std::unique_ptr<T[]> take() { return std::move(values_); }

private:
  std::unique_ptr<T[]> values_;
};

// One row an iteration of a batch, in the order of their boundaries. `iteration` counts per batch.
struct IterationRows {
  std::size_t rows = 0;
  Column<std::int32_t> batch;
  Column<std::int64_t> iteration;
  Column<Ticks> start, duration;
  Column<std::int32_t> size, joined;
  Column<std::int64_t> kv_tokens;
  Column<Ticks> model, attention, network, host;

  // The index of a new row; one test for all columns, because this is done for every iteration.
  std::size_t add() {
    if (rows == capacity_) grow();
    return rows++;
  }

private:
  void grow() {
    capacity_ = capacity_ == 0 ? kFirst : capacity_ * 2;
    const auto all = [&](auto&... columns) { (columns.grow(rows, capacity_), ...); };
    all(batch, iteration, start, duration, size, joined, kv_tokens, model, attention, network, host);
  }
  // Memory is only touched where rows are written, so a large start costs a short run nothing.
  static constexpr std::size_t kFirst = 1 << 17;
  std::size_t capacity_ = 0;
};

struct Result {
  RequestRows requests;
  IterationRows iterations;
  std::vector<Stint> stints;
  std::vector<Ticks> replica_busy;
  Ticks attention_busy = 0;
  Ticks end = 0;
  Ticks queue_empty_at = 0;  // when the queue was first found empty after requests had come
  std::int64_t peak_kv_tokens = 0;
  std::int64_t kv_capacity_tokens = 0;
  std::vector<Stretch> timeline;
};

struct Recording {
  Ticks from = 0;
  Ticks to = 0;
};

// Called now and then with the number of finished requests; what it throws ends the run.
using Progress = std::function<void(std::int64_t)>;

// Replays the workload. Cycle by cycle: in each, every batch that has requests runs one iteration; at the
// boundary before it, its finished requests leave and waiting ones join. An idle batch wakes at the boundary
// of any other.
Result simulate(const Workload& workload, const SchedulerLimits& limits, Scheduler::Priority priority,
                Rotation rotation, int layers, const Costs& costs, Recording recording,
                const Progress& progress, bool check);

}  // namespace lamina::sim
