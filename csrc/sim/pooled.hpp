#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/router.hpp"
#include "sim/cost_tables.hpp"
#include "sim/earliest.hpp"
#include "sim/simulation.hpp"

namespace lamina::sim {

// A deployment whose prompts are computed by devices of their own.
class Pooled final : public Site {
public:
  using Engine = Simulation<PromptScheduler, CostTables>;
  using Decoding = Simulation<Scheduler, CostTables>;

  Pooled(std::vector<std::unique_ptr<Engine>> engines, std::unique_ptr<Decoding> decoding,
         const Workload& workload, RequestRows& requests, bool pulled);

  void deliver(Index row, Ticks at) override;
  Ticks next() const override { return std::min(prompts_.at(), decoding_->next()); }
  bool advance(Ticks before, std::int64_t most) override;
  Result take() override;
  void check_integrity() const override;

private:
  // Where a request's prompt is, and as which of the engine's.
  struct Place {
    int engine;
    Index request;
  };

  void step(int engine);
  void decoded();

  std::vector<std::unique_ptr<Engine>> engines_;
  std::unique_ptr<Decoding> decoding_;
  const Workload& workload_;
  RequestRows& requests_;
  bool pulled_;
  Router router_;
  Earliest prompts_;           // when each engine goes on
  std::vector<Place> places_;  // of each request that decodes
};

}  // namespace lamina::sim
