#include "python/sim_inputs.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "python/arrays.hpp"
#include "python/h2m2_inputs.hpp"
#include "python/names.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace lamina::sim {

namespace {

// A table by batch size.
template <typename Class, typename T>
void table(nb::class_<Class>& bound, const char* name, std::vector<T> Class::* field) {
  bound.def_prop_rw(
      name, [field](const Class& self) { return array_of(std::span<const T>(self.*field)); },
      [field](Class& self, const Input<T>& values) {
        self.*field = {values.data(), values.data() + values.size()};
      });
}

// One field of every entry of `loads`.
void column(nb::class_<Costs>& bound, const char* name, Ticks Load::* field) {
  bound.def_prop_rw(
      name,
      [field](const Costs& self) {
        std::vector<Ticks> values;
        for (const Load& load : self.loads) values.push_back(load.*field);
        return array_of(std::span<const Ticks>(values));
      },
      [field, name](Costs& self, const Input<Ticks>& values) {
        if (values.size() != self.loads.size())
          throw std::invalid_argument("cost table " + std::string(name) + " has " +
                                      std::to_string(values.size()) + " entries, not " +
                                      std::to_string(self.loads.size()));
        for (std::size_t b = 0; b < self.loads.size(); ++b) self.loads[b].*field = values.data()[b];
      });
}

void require_length(const char* name, std::size_t entries, std::int64_t most) {
  if (static_cast<std::int64_t>(entries) <= most)
    throw std::invalid_argument("cost table " + std::string(name) + " is shorter than the largest batch");
}

// For batches of as many requests and, of slices and transfers, rows as the deployment may have.
const Costs* checked(const Deployment& of) {
  if (!of.costs) throw std::invalid_argument("a deployment has costs, or a board");
  const Costs& costs = *of.costs;
  const std::int64_t most = of.limits.max_requests;
  require_length("first_slice", costs.loads.size(), std::max(most, of.prompt_budget));
  require_length("attention_fixed", costs.attention_fixed.size(), most);
  require_length("attention_per_token", costs.attention_per_token.size(), most);
  if (costs.windows.tokens > 0) require_length("windows.per_token", costs.windows.per_token.size(), most);
  if (!costs.prompts.head.empty()) require_length("prompts.head", costs.prompts.head.size(), most);
  return &costs;
}

void bind_costs(nb::module_& m) {
  nb::class_<ServingCosts>(m, "ServingCosts", "Costs of serving besides the model, in ticks.")
      .def(nb::init<>())
      .def_rw("host_fixed", &ServingCosts::host_fixed)
      .def_rw("host_per_request", &ServingCosts::host_per_request)
      .def_rw("host_async", &ServingCosts::host_async)
      .def_rw("gap_per_request", &ServingCosts::gap_per_request)
      .def_rw("request_in", &ServingCosts::request_in)
      .def_rw("request_serial", &ServingCosts::request_serial)
      .def_rw("out", &ServingCosts::out)
      .def_rw("graph_rows", &ServingCosts::graph_rows)
      .def_rw("launch", &ServingCosts::launch)
      .def_rw("recompute_per_token", &ServingCosts::recompute_per_token);
  nb::class_<PromptCosts> prompts(m, "PromptCosts", "What prompts add, in ticks.");
  prompts.def_rw("fixed", &PromptCosts::fixed)
      .def_rw("per_row", &PromptCosts::per_row)
      .def_rw("per_pair", &PromptCosts::per_pair)
      .def_rw("per_token", &PromptCosts::per_token);
  table(prompts, "head", &PromptCosts::head);
  nb::class_<Windows> windows(m, "Windows", "What layers with a window add to attention, in ticks.");
  windows.def_rw("tokens", &Windows::tokens).def_rw("per_pair", &Windows::per_pair);
  table(windows, "per_token", &Windows::per_token);
  nb::class_<Grid>(m, "Grid", "Values at the points of a rectangular grid.")
      .def(nb::init<std::vector<std::vector<double>>, std::vector<double>>(), "axes"_a, "values"_a);
  using Beyond = MeasuredAttention::Beyond;
  nb::class_<Beyond>(m, "BeyondGrids", "By what attention grows beyond its grids, in ticks.")
      .def_rw("fixed", &Beyond::fixed)
      .def_rw("per_request", &Beyond::per_request)
      .def_rw("per_kv_token", &Beyond::per_kv_token)
      .def_rw("per_mean_token", &Beyond::per_mean_token)
      .def_rw("prompt_fixed", &Beyond::prompt_fixed)
      .def_rw("per_row", &Beyond::per_row)
      .def_rw("per_pair", &Beyond::per_pair);
  nb::class_<MeasuredAttention>(m, "MeasuredAttention",
                                "Attention of one layer as it was measured, in ticks.")
      .def(nb::init<>())
      .def_rw("decode", &MeasuredAttention::decode)
      .def_rw("prompt", &MeasuredAttention::prompt)
      .def_rw("mixed", &MeasuredAttention::mixed)
      .def_rw("skew", &MeasuredAttention::skew)
      .def_rw("mixed_skew", &MeasuredAttention::mixed_skew)
      .def_rw("beyond", &MeasuredAttention::beyond);
  nb::class_<Costs> costs(m, "Costs",
                          "How long things take on a deployment, in ticks: tables by batch size.");
  costs.def(
      "__init__",
      [](Costs* self, std::int64_t rows) {
        new (self) Costs;
        self->loads.resize(static_cast<std::size_t>(rows) + 1);
        for (Load& load : self->loads) load.active = true;
      },
      "rows"_a, "Tables of slices and transfers are for batches of up to so many rows.");
  column(costs, "first_slice", &Load::first_slice);
  column(costs, "mid_slice", &Load::mid_slice);
  column(costs, "last_slice", &Load::last_slice);
  column(costs, "q_lead", &Load::q_lead);
  column(costs, "q_transfer", &Load::q_transfer);
  column(costs, "kv_transfer", &Load::kv_transfer);
  column(costs, "out_transfer", &Load::out_transfer);
  column(costs, "migration", &Load::migration);
  column(costs, "attention_rows", &Load::attention);
  column(costs, "combine", &Load::combine);
  table(costs, "attention_fixed", &Costs::attention_fixed);
  table(costs, "attention_per_token", &Costs::attention_per_token);
  costs.def_rw("stream_chunks", &Costs::stream_chunks)
      .def_rw("stream_by_request", &Costs::stream_by_request)
      .def_rw("chunk_overhead", &Costs::chunk_overhead)
      .def_rw("transfer_latency", &Costs::transfer_latency)
      .def_rw("device_tokens", &Costs::device_tokens)
      .def_rw("paged_per_token", &Costs::paged_per_token)
      .def_rw("serving", &Costs::serving)
      .def_rw("prompts", &Costs::prompts)
      .def_rw("windows", &Costs::windows)
      .def_rw("measured", &Costs::measured);
}

void bind_board_costs(nb::module_& m) {
  nb::class_<BoardCosts>(m, "BoardCosts",
                         "A board with two memories, and the policy that maps heads to them.")
      .def(
          "__init__",
          [](BoardCosts* self, const nb::dict& board, const nb::dict& shape, const std::string& policy,
             std::pair<double, double> shares) {
            new (self) BoardCosts;
            self->board = board_of(board);
            self->shape = shape_of(shape);
            self->policy = policy;
            self->shares = {shares.first, shares.second};
          },
          "board"_a, "shape"_a, "policy"_a, "shares"_a)
      .def_rw("serving", &BoardCosts::serving)
      .def_rw("translated", &BoardCosts::translated)
      .def_rw("overlap_moves", &BoardCosts::overlap_moves);
}

}  // namespace

Deployed deployed(const Deployment& from, std::vector<PromptPool>& pools) {
  if (from.own_attention && from.pipelining != Pipelining::kFixed)
    throw std::invalid_argument("replicas do attention of their own only with fixed pipelining");
  Deployed made;
  made.limits = from.limits;
  made.rotation = {from.pipelining, from.limits.batches, from.own_attention};
  made.layers = from.layers;
  made.prompt_budget = from.prompt_budget;
  made.prefix_sharing = from.prefix_sharing;
  made.board = from.board.get();
  if (!from.board) made.costs = checked(from);
  if (from.pool) {
    const Deployment& engine = from.pool->engine;
    pools.push_back({engine.copies, engine.limits, engine.prompt_budget, engine.layers, checked(engine),
                     from.pool->link, from.pool->pulled});
    made.pool = &pools.back();
  }
  return made;
}

void bind_sim_inputs(nb::module_& m) {
  bind_costs(m);
  bind_board_costs(m);
  nb::class_<SchedulerLimits>(m, "SchedulerLimits", "What a scheduler may hand out.")
      .def_rw("batches", &SchedulerLimits::batches)
      .def_rw("pools", &SchedulerLimits::pools)
      .def_rw("tokens_per_pool", &SchedulerLimits::tokens_per_pool)
      .def_rw("block_tokens", &SchedulerLimits::block_tokens)
      .def_rw("max_requests", &SchedulerLimits::max_requests)
      .def_rw("request_tokens", &SchedulerLimits::request_tokens)
      .def_rw("min_batch", &SchedulerLimits::min_batch);
  nb::class_<Deployment>(m, "Deployment", "One deployment of a fleet, and how many there are of it.")
      .def(
          "__init__",
          [](Deployment* self, const std::string& pipelining, const std::string& admission) {
            new (self) Deployment;
            self->pipelining = pipelining_named(pipelining);
            self->limits.admission = admission_named(admission);
          },
          "pipelining"_a, "admission"_a)
      .def_rw("limits", &Deployment::limits)
      .def_rw("own_attention", &Deployment::own_attention)
      .def_rw("layers", &Deployment::layers)
      .def_rw("prompt_budget", &Deployment::prompt_budget)
      .def_rw("prefix_sharing", &Deployment::prefix_sharing)
      .def_rw("copies", &Deployment::copies)
      .def_rw("costs", &Deployment::costs)
      .def_rw("board", &Deployment::board)
      .def_rw("pool", &Deployment::pool);
  nb::class_<KvLink>(m, "KvLink", "How KV comes from where prompts are computed, in ticks.")
      .def(nb::init<>())
      .def_rw("latency", &KvLink::latency)
      .def_rw("per_token", &KvLink::per_token)
      .def_rw("window", &KvLink::window)
      .def_rw("windowed_per_token", &KvLink::windowed_per_token);
  nb::class_<DeploymentPool>(m, "DeploymentPool", "Engines that compute prompts, and the link from there.")
      .def(nb::init<>())
      .def_rw("engine", &DeploymentPool::engine)
      .def_rw("link", &DeploymentPool::link)
      .def_rw("pulled", &DeploymentPool::pulled);
}

}  // namespace lamina::sim
