#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/scheduler.hpp"

namespace lamina {

// The scheduler for requests that are not known before they come: it keeps the columns that the simulator
// reads from a trace, and gives the rows of requests that have left to new ones. An engine has one.
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
  // Of a batch: std::out_of_range if there is none of this number.
  const std::vector<Index>& finish(int batch);
  const Scheduler::Change& advance(int batch) { return scheduler_.advance(known(batch)); }
  const Scheduler::Change& join(int batch) { return scheduler_.join(known(batch)); }
  std::int64_t size(int batch) const { return scheduler_.size(known(batch)); }
  std::int64_t kv(int batch) const { return scheduler_.kv(known(batch)); }

  // Of a row, once it was admitted.
  int pool(Index row) const { return scheduler_.pool(known_row(row)); }
  int batch(Index row) const { return scheduler_.batch(known_row(row)); }

  std::size_t waiting() const { return scheduler_.waiting(); }
  std::int64_t running() const { return scheduler_.running(); }
  std::int64_t free_tokens() const { return scheduler_.capacity() - scheduler_.used(); }
  const std::vector<Index>& admitted() const { return scheduler_.change().admitted; }
  void check_integrity() const { scheduler_.check_integrity(); }

private:
  RequestTable table() const;
  int known(int batch) const;
  Index known_row(Index row) const;

  std::vector<std::int32_t> prompt_;
  std::vector<std::int32_t> output_;
  std::vector<std::int32_t> width_;
  std::vector<std::int64_t> key_;
  std::vector<Index> spare_;
  Scheduler scheduler_;
};

}  // namespace lamina
