#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/scheduler.hpp"
#include "sim/costs.hpp"
#include "sim/h2m2/lengths.hpp"
#include "sim/h2m2/memory.hpp"
#include "sim/h2m2/policy.hpp"
#include "sim/simulator.hpp"

namespace lamina::sim {

// A board as hardware: at every boundary its memory follows the requests that came, grew and left, its policy
// decides anew where heads and layers are, what is elsewhere moves there, and the iteration's times come of
// that.
class BoardHardware {
public:
  // `kv_tokens`: what the scheduler hands out at most.
  BoardHardware(const BoardCosts& costs, const RequestTable& requests, std::int64_t kv_tokens);

  const ServingCosts& serving() const { return costs_.serving; }
  void leave(const std::vector<Scheduler::Index>& requests);
  Load load(const Scheduler& scheduler, int batch, const Scheduler::Change& change);
  void check_integrity() const;

  const Costs* steady() const { return nullptr; }
  // One row an iteration; nothing of policies that do not map.
  void take(Result& result);

private:
  void leave(Scheduler::Index request);
  void join(Scheduler::Index request, std::int64_t tokens);
  Ticks settle(const h2m2::Plan& plan, std::int64_t compacted);
  double compacting_ns(const h2m2::Mapping& mapping, std::int64_t bytes) const;
  h2m2::Room room() const;

  const BoardCosts& costs_;
  const RequestTable& requests_;
  std::unique_ptr<h2m2::Policy> policy_;
  h2m2::Lengths lengths_;
  std::optional<h2m2::Memory> memory_;  // of policies that map
  std::int64_t hbm_pages_;
  double lpddr_idle_ns_ = 0;  // in the last iteration
  MemoryRows rows_;
};

}  // namespace lamina::sim
