#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "python/bindings.hpp"
#include "python/h2m2_inputs.hpp"
#include "sim/h2m2/footprint.hpp"
#include "sim/h2m2/policy.hpp"
#include "sim/h2m2/times.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace lamina {

namespace {

using Facts = nb::typed<nb::dict, nb::str, nb::any>;

// Batch, KV tokens, rows of these.
using MomentTuple = std::tuple<std::int64_t, std::int64_t, std::int64_t>;
// qkv heads, attention groups, fc heads, whole layers.
using MappingTuple = std::tuple<int, int, int, bool>;

h2m2::Moment moment_of(const MomentTuple& from) {
  const auto [batch, kv_tokens, kv_rows] = from;
  return {batch, kv_tokens, kv_rows};
}

Facts dict_of(const h2m2::Plan& plan, int layers) {
  nb::dict out;
  const h2m2::Mapping& m = plan.mapping;
  out["mapping"] = nb::make_tuple(m.qkv, m.attention, m.fc, m.whole_layers);
  out["qkv_ns"] = plan.qkv_ns;
  out["attention_ns"] = plan.attention_ns;
  out["fc_ns"] = plan.fc_ns;
  out["exchange_ns"] = plan.exchange_ns;
  out["launch_ns"] = plan.launch_ns;
  out["lm_head_ns"] = plan.lm_head_ns;
  out["on_demand_ns"] = plan.on_demand_ns;
  out["hbm_busy_ns"] = plan.hbm_busy_ns;
  out["lpddr_busy_ns"] = plan.lpddr_busy_ns;
  out["lpddr_dram_ns"] = plan.lpddr_dram_ns;
  out["iteration_ns"] = plan.iteration_ns(layers);
  return out;
}

std::optional<Facts> plan(const nb::dict& board_dict, const nb::dict& shape_dict, const std::string& policy,
                          const MomentTuple& moment_tuple, bool translated, double weights_share,
                          double kv_share) {
  const h2m2::Board board = board_of(board_dict);
  const h2m2::Shape shape = shape_of(shape_dict);
  const h2m2::Moment moment = moment_of(moment_tuple);
  const auto match = h2m2::make_policy(policy, board, shape, translated, {weights_share, kv_share})
                         ->plan(moment, h2m2::exact_room(board, shape, moment));
  return match ? std::optional(dict_of(*match, shape.layers)) : std::nullopt;
}

Facts time_of(const nb::dict& board_dict, const nb::dict& shape_dict, const MappingTuple& mapping,
              const MomentTuple& moment, bool translated) {
  const h2m2::Shape shape = shape_of(shape_dict);
  const auto [qkv, attention, fc, whole_layers] = mapping;
  const h2m2::Times times(board_of(board_dict), shape);
  return dict_of(times.of({qkv, attention, fc, whole_layers}, moment_of(moment), translated), shape.layers);
}

// Bytes of a head (KV group) over all layers.
nb::typed<nb::dict, nb::str, double> footprint(const nb::dict& shape, std::int64_t kv_tokens) {
  const h2m2::Footprint unit = h2m2::footprint(shape_of(shape), kv_tokens);
  nb::dict out;
  out["qkv"] = unit.qkv;
  out["attention"] = unit.attention;
  out["fc"] = unit.fc;
  return out;
}

double capacity(const nb::dict& board, const nb::dict& shape, const std::string& policy) {
  return h2m2::make_policy(policy, board_of(board), shape_of(shape), false)->capacity_bytes();
}

std::vector<double> decide(const nb::dict& board_dict, const nb::dict& shape_dict, const std::string& policy,
                           const std::vector<MomentTuple>& moments, int repeats) {
  using Clock = std::chrono::steady_clock;
  const h2m2::Board board = board_of(board_dict);
  const h2m2::Shape shape = shape_of(shape_dict);
  const auto solver = h2m2::make_policy(policy, board, shape, false);
  std::vector<double> seconds;
  double retained = 0;  // what the compiler must not leave out
  for (const MomentTuple& each : moments) {
    const h2m2::Moment moment = moment_of(each);
    const h2m2::Room room = h2m2::exact_room(board, shape, moment);
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < repeats; ++i) {
      const auto match = solver->plan(moment, room);
      if (!match) throw std::invalid_argument("a moment's footprint does not fit");
      retained += match->qkv_ns;
    }
    const std::chrono::duration<double> taken = Clock::now() - start;
    seconds.push_back(taken.count() / repeats);
  }
  if (retained < 0) throw std::logic_error("time runs backwards");
  return seconds;
}

}  // namespace

void bind_h2m2(nb::module_& m) {
  m.def("h2m2_plan", &plan, nb::kw_only(), "board"_a, "shape"_a, "policy"_a, "moment"_a, "translated"_a,
        "weights_share"_a, "kv_share"_a,
        "One iteration as a policy runs it, times in nanoseconds; None if its "
        "footprint does not fit.");
  m.def("h2m2_time_of", &time_of, nb::kw_only(), "board"_a, "shape"_a, "mapping"_a, "moment"_a,
        "translated"_a, "One iteration with a given mapping, whether it fits or not.");
  m.def("h2m2_footprint", &footprint, nb::kw_only(), "shape"_a, "kv_tokens"_a,
        "Exact bytes of a head, of attention a KV group, over all layers.");
  m.def("h2m2_capacity", &capacity, nb::kw_only(), "board"_a, "shape"_a, "policy"_a,
        "Bytes that a policy has for weights and KV.");
  m.def("h2m2_decide", &decide, nb::kw_only(), "board"_a, "shape"_a, "policy"_a, "moments"_a, "repeats"_a,
        "Seconds that a decision takes, for each moment the mean of so many "
        "repeats.");
}

}  // namespace lamina
