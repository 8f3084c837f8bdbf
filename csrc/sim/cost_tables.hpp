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
    const std::int64_t size = scheduler.size(batch);
    return load_of(costs_, {size, size, 0, scheduler.largest_kv(batch), scheduler.fullest_pool(), 0});
  }
  // With prompts: model and network by tokens, attention by what decodes and what chunks there are.
  Load load(const PromptScheduler& scheduler, int batch, const PromptScheduler::Change&) {
    const PromptScheduler::Step& step = scheduler.step(batch);
    in_pool_.assign(static_cast<std::size_t>(scheduler.pools()), 0);
    for (const PromptScheduler::Chunk& chunk : step.chunks)
      in_pool_[static_cast<std::size_t>(scheduler.pool(chunk.request))] +=
          chunk_ticks(costs_.prompts, chunk.tokens, chunk.before);
    return load_of(costs_, {step.rows, step.decoding, scheduler.size(batch), scheduler.largest_kv(batch),
                            scheduler.fullest_pool(),
                            std::ranges::max(in_pool_) + (step.chunks.empty() ? 0 : costs_.prompts.fixed)});
  }
  // Costs with which a batch that goes on as it is takes longer by its attention alone; else nothing.
  const Costs* steady() const {
    return costs_.stream_chunks == 1 && costs_.device_tokens == Costs{}.device_tokens ? &costs_ : nullptr;
  }
  void take(Result&) {}
  void check_integrity() const {}

private:
  const Costs& costs_;
  std::vector<Ticks> in_pool_;
};

}  // namespace lamina::sim
