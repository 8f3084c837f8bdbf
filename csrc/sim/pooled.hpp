#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/router.hpp"
#include "sim/cost_tables.hpp"
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
  Ticks next() const override { return due().at; }
  bool advance(Ticks before, std::int64_t most) override;
  Result take() override;
  void check_integrity() const override;

private:
  // Where a request's prompt is, and as which of the engine's.
  struct Place {
    int engine;
    Index request;
  };

  // The next boundary, and whose it is.
  struct Due {
    Ticks at;
    int engine;  // kDecoding: not an engine's
  };
  static constexpr int kDecoding = -1;

  Due due() const;
  void serve(Due due);
  void computed(int engine);
  void decoded();
  void gone(Index row);

  std::vector<std::unique_ptr<Engine>> engines_;
  std::unique_ptr<Decoding> decoding_;
  const Workload& workload_;
  RequestRows& requests_;
  bool pulled_;
  Router router_;
  std::unordered_map<Index, Place> places_;
};

}  // namespace lamina::sim
