#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "python/arrays.hpp"
#include "python/bindings.hpp"
#include "python/names.hpp"
#include "python/sim_inputs.hpp"
#include "sim/simulator.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace lamina::sim {

namespace {

using Facts = nb::typed<nb::dict, nb::str, nb::any>;
// Or None, which a callable would refuse.
template <typename T>
using Callback = nb::typed<nb::object, nb::typed<nb::callable, T(std::int64_t)>>;

template <typename T>
nb::object array_of(std::vector<T>&& values) {
  T* const data = values.data();
  const std::size_t size = values.size();
  return nb::cast(array_over(data, size, std::move(values)));
}

template <typename T>
nb::object array_of(Column<T>&& column, std::size_t rows) {
  typename Column<T>::Owned retained = column.take();
  T* const data = retained.get();
  return nb::cast(array_over(data, rows, std::move(retained)));
}

// Converts in place. Of ticks in [0, 2^52) the bits are those of 2^52 + ticks as a double without its
// exponent, which compilers vectorise where there is no instruction for the conversion; the result is the
// same.
void to_seconds(std::span<Ticks> ticks) {
  constexpr Ticks kMost = Ticks{1} << 52;
  constexpr double kOffset = 0x1p52;
  const auto store = [](Ticks& to, double seconds) { std::memcpy(&to, &seconds, sizeof seconds); };
  constexpr std::size_t kBlock = 1024;
  for (; !ticks.empty(); ticks = ticks.subspan(std::min(kBlock, ticks.size()))) {
    const std::span<Ticks> block = ticks.first(std::min(kBlock, ticks.size()));
    Ticks bits = 0;
    for (const Ticks each : block) bits |= each;
    if (bits >= 0 && bits < kMost) {
      for (Ticks& each : block) {
        store(each,
              (std::bit_cast<double>(each | std::bit_cast<Ticks>(kOffset)) - kOffset) / kTicksPerSecond);
      }
    } else {
      for (Ticks& each : block) store(each, static_cast<double>(each) / kTicksPerSecond);
    }
  }
}

// In the column's own memory, because fresh memory costs more than the conversion.
nb::object seconds_of(Column<Ticks>&& column, std::size_t rows) {
  static_assert(sizeof(Ticks) == sizeof(double));
  Column<Ticks>::Owned retained = column.take();
  to_seconds({retained.get(), rows});
  void* const data = retained.get();
  return nb::cast(array_over(static_cast<double*>(data), rows, std::move(retained)));
}

// Seconds, with NaN for what never came to pass.
nb::object seconds_of(std::vector<Ticks>&& ticks) {
  std::vector<double> seconds(ticks.size());
  for (std::size_t i = 0; i < ticks.size(); ++i) {
    seconds[i] = ticks[i] < 0 ? std::numeric_limits<double>::quiet_NaN()
                              : static_cast<double>(ticks[i]) / kTicksPerSecond;
  }
  ticks = {};
  return array_of(std::move(seconds));
}

// One field of every row.
template <typename T, typename Row, typename Field>
std::vector<T> column_of(const std::vector<Row>& rows, Field Row::* field) {
  std::vector<T> column;
  column.reserve(rows.size());
  for (const Row& row : rows) column.push_back(row.*field);
  return column;
}

nb::dict dict_of(MemoryRows&& rows) {
  nb::dict memory;
  memory["qkv_heads"] = array_of(std::move(rows.qkv_heads));
  memory["attention_groups"] = array_of(std::move(rows.attention_groups));
  memory["fc_heads"] = array_of(std::move(rows.fc_heads));
  memory["hbm_qkv_bytes"] = array_of(std::move(rows.hbm_qkv_bytes));
  memory["hbm_kv_bytes"] = array_of(std::move(rows.hbm_kv_bytes));
  memory["hbm_fc_bytes"] = array_of(std::move(rows.hbm_fc_bytes));
  memory["hbm_free_bytes"] = array_of(std::move(rows.hbm_free_bytes));
  memory["lpddr_bytes"] = array_of(std::move(rows.lpddr_bytes));
  memory["wasted_bytes"] = array_of(std::move(rows.wasted_bytes));
  memory["moved_bytes"] = array_of(std::move(rows.moved_bytes));
  memory["compacted_bytes"] = array_of(std::move(rows.compacted_bytes));
  memory["moving_s"] = seconds_of(std::move(rows.moving));
  memory["hidden_s"] = seconds_of(std::move(rows.hidden));
  memory["hbm_busy_s"] = seconds_of(std::move(rows.hbm_busy));
  memory["lpddr_busy_s"] = seconds_of(std::move(rows.lpddr_busy));
  return memory;
}

Facts dict_of(Result&& result) {
  nb::dict requests;
  RequestRows& r = result.requests;
  requests["arrival_s"] = seconds_of(std::move(r.arrival));
  requests["admitted_s"] = seconds_of(std::move(r.admitted));
  requests["first_token_s"] = seconds_of(std::move(r.first_token));
  requests["finished_s"] = seconds_of(std::move(r.finished));
  requests["first_iteration"] = array_of(std::move(r.first_iteration));
  requests["last_iteration"] = array_of(std::move(r.last_iteration));
  requests["batch"] = array_of(std::move(r.batch));
  requests["preemptions"] = array_of(std::move(r.preemptions));

  nb::dict iterations;
  IterationRows& i = result.iterations;
  iterations["batch"] = array_of(std::move(i.batch), i.rows);
  iterations["iteration"] = array_of(std::move(i.iteration), i.rows);
  iterations["start_s"] = seconds_of(std::move(i.start), i.rows);
  iterations["duration_s"] = seconds_of(std::move(i.duration), i.rows);
  iterations["size"] = array_of(std::move(i.size), i.rows);
  iterations["joined"] = array_of(std::move(i.joined), i.rows);
  iterations["kv_tokens"] = array_of(std::move(i.kv_tokens), i.rows);
  iterations["model_s"] = seconds_of(std::move(i.model), i.rows);
  iterations["attention_s"] = seconds_of(std::move(i.attention), i.rows);
  iterations["network_s"] = seconds_of(std::move(i.network), i.rows);
  iterations["host_s"] = seconds_of(std::move(i.host), i.rows);

  nb::dict stints;
  stints["request"] = array_of(column_of<std::int64_t>(result.stints, &Stint::request));
  stints["batch"] = array_of(column_of<std::int32_t>(result.stints, &Stint::batch));
  stints["first_iteration"] = array_of(column_of<std::int64_t>(result.stints, &Stint::first));
  stints["last_iteration"] = array_of(column_of<std::int64_t>(result.stints, &Stint::last));

  nb::dict timeline;
  timeline["batch"] = array_of(column_of<std::int32_t>(result.timeline, &Stretch::batch));
  timeline["worker"] = array_of(column_of<std::int32_t>(result.timeline, &Stretch::worker));
  timeline["iteration"] = array_of(column_of<std::int64_t>(result.timeline, &Stretch::iteration));
  timeline["cycle"] = array_of(column_of<std::int64_t>(result.timeline, &Stretch::cycle));
  timeline["slice"] = array_of(column_of<std::int64_t>(result.timeline, &Stretch::slice));
  timeline["start_s"] = seconds_of(column_of<Ticks>(result.timeline, &Stretch::start));
  timeline["end_s"] = seconds_of(column_of<Ticks>(result.timeline, &Stretch::end));

  nb::dict all;
  all["requests"] = requests;
  all["iterations"] = iterations;
  all["stints"] = stints;
  all["timeline"] = timeline;
  if (result.memory) all["memory"] = dict_of(std::move(*result.memory));
  if (result.prompt_tokens) {
    nb::dict prompts;
    prompts["prompt_tokens"] = array_of(std::move(*result.prompt_tokens));
    all["prompts"] = prompts;
  }
  if (result.pool) {
    nb::dict pool;
    pool["engine"] = array_of(std::move(result.pool->engine));
    pool["start_s"] = seconds_of(std::move(result.pool->start));
    pool["duration_s"] = seconds_of(std::move(result.pool->duration));
    pool["busy_s"] = seconds_of(std::move(result.pool->busy));
    pool["prompts"] = array_of(std::move(result.pool->prompts));
    pool["made"] = array_of(std::move(result.pool->made));
    pool["prompt_tokens"] = array_of(std::move(result.pool->prompt_tokens));
    all["pool"] = pool;
    all["pool_engines"] = result.pool->engines;
    nb::dict gaps;
    gaps["request"] = array_of(column_of<std::int64_t>(result.gaps, &Gap::request));
    gaps["at_s"] = seconds_of(column_of<Ticks>(result.gaps, &Gap::at));
    gaps["gap_s"] = seconds_of(column_of<Ticks>(result.gaps, &Gap::gap));
    all["gaps"] = gaps;
  }
  if (result.tally) {
    const Tally& tally = *result.tally;
    std::vector<Ticks> gap;
    std::vector<std::int64_t> tokens;
    for (std::size_t of = 0; of < tally.gaps.size(); ++of) {
      if (tally.gaps[of] == 0) continue;
      gap.push_back(Tally::middle(of));
      tokens.push_back(tally.gaps[of]);
    }
    const auto seconds = [](Tally::Sum ticks) { return static_cast<double>(ticks) / kTicksPerSecond; };
    nb::dict sums;
    sums["gap_s"] = seconds_of(std::move(gap));
    sums["gap_tokens"] = array_of(std::move(tokens));
    sums["iterations"] = tally.iterations;
    sums["tokens"] = tally.tokens;
    sums["prompt_tokens"] = tally.prompt_tokens;
    sums["duration_s"] = seconds(tally.duration);
    sums["model_s"] = seconds(tally.model);
    sums["attention_s"] = seconds(tally.attention);
    sums["network_s"] = seconds(tally.network);
    sums["host_s"] = seconds(tally.host);
    sums["waiting_s"] = seconds(tally.waiting);
    sums["overlapped_s"] = seconds(tally.overlapped);
    all["tally"] = sums;
  }
  all["replica_busy_s"] = seconds_of(std::move(result.replica_busy));
  all["attention_busy_s"] = static_cast<double>(result.attention_busy) / kTicksPerSecond;
  all["end_s"] = static_cast<double>(result.end) / kTicksPerSecond;
  all["queue_empty_s"] = static_cast<double>(result.queue_empty_at) / kTicksPerSecond;
  all["peak_kv_tokens"] = result.peak_kv_tokens;
  all["kv_capacity_tokens"] = result.kv_capacity_tokens;
  return all;
}

// KV tokens a board has room for, and how many of them are allocated at once.
std::pair<std::int64_t, std::int64_t> board_kv(const BoardCosts& costs) {
  const KvRoom room = kv_room(costs);
  return {room.tokens, room.column_tokens};
}

Facts run(const Input<Ticks>& arrival, const Input<std::int32_t>& prompt, const Input<std::int32_t>& output,
          const Input<std::int64_t>& prefix_offsets, const Input<std::int64_t>& prefix_ids,
          int prefix_block_tokens, const std::string& mode, std::int64_t concurrency,
          const std::vector<Deployment>& deployments, const nb::object& router, bool global_queue,
          int threads, bool keep_iterations, const Callback<std::int64_t>& priority, Ticks record_from,
          Ticks record_to, const Callback<void>& progress, bool check) {
  Workload workload;
  workload.arrival = span_of(arrival);
  workload.requests = {span_of(prompt),     span_of(output),     span_of(prefix_offsets),
                       span_of(prefix_ids), prefix_block_tokens, {}};
  workload.mode = named<Mode>(
      "mode", mode, {{"saturate", Mode::kSaturate}, {"open", Mode::kOpen}, {"closed", Mode::kClosed}});
  workload.concurrency = concurrency;
  if (workload.mode == Mode::kClosed && concurrency < 1)
    throw std::invalid_argument("closed needs concurrency");
  Fleet fleet;
  std::vector<PromptPool> pools;
  pools.reserve(deployments.size());  // instances point into it
  for (const Deployment& each : deployments)
    fleet.instances.insert(fleet.instances.end(), each.copies, deployed(each, pools));
  fleet.global = global_queue;
  fleet.threads = threads;
  fleet.keep_iterations = keep_iterations;
  if (nb::isinstance<nb::str>(router)) {
    fleet.routing = routing_named(nb::cast<std::string>(router));
  } else {
    fleet.own = [&](const Wanted& wanted, std::span<const std::int64_t> requests,
                    std::span<const std::int64_t> kv_tokens) {
      nb::gil_scoped_acquire stored;
      return nb::cast<int>(router(wanted.prompt, wanted.output, lamina::array_of(wanted.prefix),
                                  lamina::array_of(requests), lamina::array_of(kv_tokens)));
    };
  }
  Scheduler::Priority call;
  if (!priority.is_none()) {
    call = [&](Scheduler::Index request) {
      nb::gil_scoped_acquire stored;
      return nb::cast<std::int64_t>(priority(request));
    };
  }
  const Progress look = [&](std::int64_t done) {
    nb::gil_scoped_acquire stored;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!progress.is_none()) progress(done);
  };
  Result result;
  {
    nb::gil_scoped_release released;
    result = simulate(workload, fleet, call, {record_from, record_to}, look, check);
  }
  return dict_of(std::move(result));
}

}  // namespace

NB_MODULE(_sim, m) {
  m.doc() = "The virtual cluster's event loop; laminabench.sim is its Python face.";
  bind_sim_inputs(m);
  m.def("board_kv", &board_kv, "costs"_a,
        "KV tokens a board has room for, and how many it allocates at once.");
  m.def("run", &run, nb::kw_only(), "arrival"_a, "prompt"_a, "output"_a, "prefix_offsets"_a, "prefix_ids"_a,
        "prefix_block_tokens"_a, "mode"_a, "concurrency"_a, "deployments"_a, "router"_a, "global_queue"_a,
        "threads"_a, "keep_iterations"_a, "priority"_a.none(), "record_from"_a, "record_to"_a,
        "progress"_a.none(), "check"_a,
        "Replay a workload on modelled deployments behind a router; columns in, columns out.");
  bind_h2m2(m);
  bind_h2m2_memory(m);
  bind_h2m2_replay(m);
}

}  // namespace lamina::sim
