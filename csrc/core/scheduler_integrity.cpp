#include <cstddef>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/scheduler.hpp"

namespace lamina {

void Scheduler::check_integrity() const {
  const auto expect = [](bool holds, const char* what) {
    if (!holds) throw std::logic_error(std::string("scheduler: ") + what);
  };
  std::vector<std::int64_t> used(static_cast<std::size_t>(limits_.pools));
  std::vector<std::int64_t> size(batches_.size());
  std::vector<std::int64_t> arriving(batches_.size());
  std::vector<std::vector<std::int64_t>> kv(batches_.size(), std::vector<std::int64_t>(used.size()));
  auto arriving_kv = kv;
  std::vector<std::unordered_map<std::int64_t, std::int64_t>> prefixes(used.size());
  std::int64_t running = 0;
  for (std::size_t row = 0; row < states_.size(); ++row) {
    const auto request = static_cast<Index>(row);
    const RequestState state = states_[row];
    if (state != RequestState::kRunning && state != RequestState::kAdmitted) continue;
    const std::size_t pool = pool_[row];
    const DecodingBatch& batch = batches_[batch_[row]];
    const std::int64_t width = requests_.width_of(row);
    running += width;
    const std::int64_t made = state == RequestState::kRunning ? batch.iteration - joined_[row] : 0;
    expect(produced_[request] + made < requests_.output[row], "a request runs beyond its last token");
    // In an iteration a growing request holds room for the tokens being made.
    const std::int64_t ahead = state == RequestState::kAdmitted || batch.midway ? 1 : 0;
    const std::int64_t grown = own_tokens(request) + width * (made + ahead);
    used[pool] += grows() ? pools_.rounded(grown) + request_tokens_ : charge(request);
    for (const std::int64_t id : requests_.prefix(row)) ++prefixes[pool][id];
    if (state == RequestState::kRunning) {
      size[batch_[row]] += width;
      kv[batch_[row]][pool] += requests_.prompt[row] + width * (produced_[request] + made);
    } else {
      arriving[batch_[row]] += width;
      arriving_kv[batch_[row]][pool] += tokens_at_join(request);
    }
  }
  expect(running == running_, "the number of running requests is wrong");
  for (std::size_t j = 0; j < batches_.size(); ++j) {
    expect(size[j] == batches_[j].members, "a batch's size is wrong");
    expect(arriving[j] == batches_[j].arriving, "the number of arriving requests is wrong");
    for (const Index request : batches_[j].joining) {
      expect(states_[request] == RequestState::kAdmitted && batch_[request] == j,
             "a request is to join that was not admitted");
      arriving[j] -= requests_.width_of(request);
    }
    expect(limits_.staged ? arriving[j] >= 0 : arriving[j] == 0, "the number of joining requests is wrong");
    expect(kv[j] == batches_[j].kv, "a batch's KV tokens are wrong");
    expect(arriving_kv[j] == batches_[j].arriving_kv, "the KV tokens of arriving requests are wrong");
  }
  for (std::size_t pool = 0; pool < used.size(); ++pool) {
    const std::int64_t taken = pools_.capacity() - pools_.free(static_cast<int>(pool));
    expect(pools_.free(static_cast<int>(pool)) >= 0, "a KV pool is overfull");
    expect(taken == used[pool] + pools_.prefix_tokens(static_cast<int>(pool)), "a KV pool's books are wrong");
    expect(pools_.holds(static_cast<int>(pool), prefixes[pool]), "a shared prefix is counted wrong");
  }
}

}  // namespace lamina
