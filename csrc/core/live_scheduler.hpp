#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/scheduler.hpp"

namespace lamina {

// The scheduler for requests that nobody knew of before they came: it keeps the columns that the simulator
// reads from a trace, and gives the rows of requests that are gone to new ones. An engine has one.
class LiveScheduler {
public:
  using Index = Scheduler::Index;

  explicit LiveScheduler(SchedulerLimits limits);
  LiveScheduler(const LiveScheduler&) = delete;
  LiveScheduler& operator=(const LiveScheduler&) = delete;

  // A request of `width` sequences that share its prompt. Smaller keys are served first; of equal ones, the
  // smaller row. Returns its row, or nothing when it could never fit.
  std::optional<Index> add(std::int32_t prompt, std::int32_t output, std::int32_t width, std::int64_t key);

  // From here on the row may be another request's.
  void remove(Index row);
  void ready(Index row);
  void unjoin(Index row);
  const std::vector<Index>& finish(int batch);
  const Scheduler::Change& advance(int batch) { return scheduler_.advance(batch); }
  const Scheduler::Change& join(int batch) { return scheduler_.join(batch); }

  const Scheduler& scheduler() const { return scheduler_; }

private:
  RequestTable table() const;

  std::vector<std::int32_t> prompt_;
  std::vector<std::int32_t> output_;
  std::vector<std::int32_t> width_;
  std::vector<std::int64_t> key_;
  std::vector<Index> spare_;
  Scheduler scheduler_;
};

}  // namespace lamina
