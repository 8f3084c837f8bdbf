#include "core/live_scheduler.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

namespace lamina {

LiveScheduler::LiveScheduler(SchedulerLimits limits)
    : scheduler_({}, limits, [this](Index row) { return key_[row]; }) {
  if (limits.block_tokens != 1) throw std::invalid_argument("requests of several sequences need blocks of 1");
}

std::optional<LiveScheduler::Index> LiveScheduler::add(std::int32_t prompt, std::int32_t output,
                                                       std::int32_t width, std::int64_t key) {
  if (prompt < 1 || output < 1 || width < 1)
    throw std::invalid_argument("a request has at least one token of prompt, one of output and one sequence");
  if (spare_.empty()) {
    const std::size_t taken = prompt_.size();
    // Twice as many rows at a time, so that growing costs each request little.
    const std::size_t rows = std::max<std::size_t>(64, 2 * taken);
    for (auto* column : {&prompt_, &output_, &width_}) column->resize(rows, 1);
    key_.resize(rows);
    for (std::size_t spare = rows; spare > taken; --spare) spare_.push_back(static_cast<Index>(spare - 1));
  }
  const Index row = spare_.back();
  spare_.pop_back();
  prompt_[row] = prompt;
  output_[row] = output;
  width_[row] = width;
  key_[row] = key;
  scheduler_.rebind(table());
  if (scheduler_.enqueue(row) == RequestState::kRejected) {
    spare_.push_back(row);
    return std::nullopt;
  }
  return row;
}

void LiveScheduler::remove(Index row) {
  if (row >= prompt_.size() || !scheduler_.is_present(row))
    throw std::out_of_range("no request has this row");
  scheduler_.remove(row);
  spare_.push_back(row);
}

void LiveScheduler::ready(Index row) { scheduler_.ready(known_row(row)); }

void LiveScheduler::unjoin(Index row) { scheduler_.unjoin(known_row(row)); }

const std::vector<LiveScheduler::Index>& LiveScheduler::finish(int batch) {
  const std::vector<Index>& done = scheduler_.finish(known(batch));
  spare_.insert(spare_.end(), done.begin(), done.end());
  return done;
}

int LiveScheduler::known(int batch) const {
  if (batch < 0 || batch >= scheduler_.batches()) throw std::out_of_range("no such batch");
  return batch;
}

LiveScheduler::Index LiveScheduler::known_row(Index row) const {
  if (row >= prompt_.size()) throw std::out_of_range("no request has this row");
  return row;
}

RequestTable LiveScheduler::table() const { return {prompt_, output_, {}, {}, 1, width_}; }

}  // namespace lamina
