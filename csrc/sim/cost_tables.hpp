#pragma once

#include <algorithm>
#include <vector>

#include "core/prompt_scheduler.hpp"
#include "sim/costs.hpp"
#include "sim/simulator.hpp"

namespace lamina::sim {

// Hardware whose times were worked out beforehand: it needs to remember nothing.
class CostTables {
public:
  explicit CostTables(const Costs& costs) : costs_(costs) {}

  const ServingCosts& serving() const { return costs_.serving; }
  void leave(const std::vector<Scheduler::Index>&) {}
  Load load(const Scheduler& scheduler, int batch, const Scheduler::Change&) {
    const std::int64_t size = scheduler.size(batch), kv = scheduler.largest_kv(batch);
    const Ticks attention = costs_.measured ? measured(scheduler, batch, {}) : formula_of(costs_, size, kv);
    return load_of(costs_, {size, 0, kv, scheduler.fullest_pool(), attention});
  }
  // With prompts: model and network by tokens, attention by what decodes and what chunks there are.
  Load load(const PromptScheduler& scheduler, int batch, const PromptScheduler::Change&) {
    const PromptScheduler::Step& step = scheduler.step(batch);
    const std::int64_t kv = scheduler.largest_kv(batch);
    const Ticks attention = costs_.measured
                                ? measured(scheduler, batch, step.chunks)
                                : formula_of(costs_, step.decoding, kv) + chunks_of(scheduler, step.chunks);
    return load_of(costs_, {step.rows, scheduler.size(batch), kv, scheduler.fullest_pool(), attention});
  }
  // Costs with which a batch that goes on as it is takes longer by its attention alone; else nothing.
  const Costs* steady() const {
    return costs_.stream_chunks == 1 && costs_.device_tokens == Costs::kUnlimited ? &costs_ : nullptr;
  }
  void take(Result&) {}
  void check_integrity() const {}

private:
  using Chunks = std::vector<PromptScheduler::Chunk>;

  // Where requests are split over attention workers, the slowest counts.
  template <typename S>
  Ticks measured(const S& scheduler, int batch, const Chunks& chunks) {
    Ticks slowest = 0;
    for (int pool = 0; pool < scheduler.pools_of_kv(); ++pool) {
      there_.clear();
      for (const PromptScheduler::Chunk& chunk : chunks)
        if (scheduler.pool(chunk.request) == pool) there_.push_back(chunk);
      slowest = std::max(slowest, costs_.measured->ticks(scheduler.attended(batch, pool), there_));
    }
    return slowest;
  }

  Ticks chunks_of(const PromptScheduler& scheduler, const Chunks& chunks) {
    if (chunks.empty()) return 0;
    in_pool_.assign(static_cast<std::size_t>(scheduler.pools_of_kv()), 0);
    for (const PromptScheduler::Chunk& chunk : chunks)
      in_pool_[static_cast<std::size_t>(scheduler.pool(chunk.request))] +=
          chunk_ticks(costs_, chunk.tokens, chunk.before);
    return std::ranges::max(in_pool_) + costs_.prompts.fixed;
  }

  const Costs& costs_;
  Chunks there_;
  std::vector<Ticks> in_pool_;
};

}  // namespace lamina::sim
