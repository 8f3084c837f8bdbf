#include "sim/simulator.hpp"

#include <utility>

#include "sim/simulation.hpp"

namespace lamina::sim {

namespace {

// Hardware whose times were worked out beforehand: it needs to remember nothing.
class CostTables {
public:
  static constexpr std::int64_t kCyclesPerLook = 1 << 14;

  explicit CostTables(const Costs& costs) : costs_(costs) {}

  const ServingCosts& serving() const { return costs_.serving; }
  void leave(const std::vector<Scheduler::Index>&) {}
  Load load(const Scheduler& scheduler, int batch, const Scheduler::Change&) {
    return load_of(costs_, scheduler.size(batch), scheduler.largest_kv(batch), scheduler.fullest_pool());
  }
  void check_integrity() const {}

private:
  const Costs& costs_;
};

}  // namespace

Result simulate(const Workload& workload, const SchedulerLimits& limits, Scheduler::Priority priority,
                Rotation rotation, int layers, const Costs& costs, Recording recording,
                const Progress& progress, bool check) {
  CostTables hardware(costs);
  Simulation simulation(workload, limits, std::move(priority), rotation, layers, hardware);
  return simulation.run(recording, progress, check);
}

}  // namespace lamina::sim
