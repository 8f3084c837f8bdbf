#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "sim/simulator.hpp"

// What a replay is of, as classes that Python fills in: an unknown name is an AttributeError there.
namespace lamina::sim {

struct DeploymentPool;

// One deployment of a fleet, and how many there are of it. Its times are tables, or a board's.
struct Deployment {
  SchedulerLimits limits;
  Pipelining pipelining = Pipelining::kSerial;
  bool own_attention = false;
  int layers = 0;
  std::int64_t prompt_budget = 0;
  bool prefix_sharing = false;
  int copies = 1;
  std::shared_ptr<Costs> costs;
  std::shared_ptr<BoardCosts> board;
  std::shared_ptr<DeploymentPool> pool;
};

// Engines that compute prompts for a deployment, and the link over which KV comes from there.
struct DeploymentPool {
  Deployment engine;
  KvLink link;
  bool pulled = false;
};

// As the simulator takes it, which points into the deployment; its pool is added to `pools`.
Deployed deployed(const Deployment& from, std::vector<PromptPool>& pools);

void bind_sim_inputs(nanobind::module_& m);

}  // namespace lamina::sim
