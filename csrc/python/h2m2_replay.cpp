#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "python/bindings.hpp"
#include "python/h2m2_inputs.hpp"
#include "python/names.hpp"
#include "sim/h2m2/layer_replay.hpp"
#include "sim/h2m2/tlb.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace lamina {

namespace {

using Facts = nb::typed<nb::dict, nb::str, nb::any>;

h2m2::DramTiming timing_of(const nb::dict& from) {
  h2m2::DramTiming timing;
  read(from, "channels", timing.channels);
  read(from, "groups", timing.groups);
  read(from, "banks_per_group", timing.banks_per_group);
  read(from, "row_bytes", timing.row_bytes);
  read(from, "burst_bytes", timing.burst_bytes);
  read(from, "queue", timing.queue);
  read(from, "burst_ns", timing.burst_ns);
  read(from, "same_group_ns", timing.same_group_ns);
  read(from, "activate_ns", timing.activate_ns);
  read(from, "precharge_ns", timing.precharge_ns);
  read(from, "open_ns", timing.open_ns);
  read(from, "read_to_precharge_ns", timing.read_to_precharge_ns);
  read(from, "between_rows_ns", timing.between_rows_ns);
  read(from, "four_rows_ns", timing.four_rows_ns);
  read(from, "refresh_every_ns", timing.refresh_every_ns);
  read(from, "refresh_ns", timing.refresh_ns);
  return timing;
}

void add(nb::dict& out, const h2m2::Dram::Counts& counts) {
  out["bytes"] = counts.bytes;
  out["bursts"] = counts.bursts;
  out["hits"] = counts.hits;
  out["opened"] = counts.opened;
  out["conflicts"] = counts.conflicts;
  out["refreshes"] = counts.refreshes;
}

std::vector<Facts> replay_layer(const nb::dict& board, const nb::dict& shape,
                                const std::tuple<int, int, int, bool>& mapping,
                                const std::vector<std::int64_t>& lengths, const std::string& side, int chips,
                                const nb::dict& dram, bool packed, bool in_turn, bool translated,
                                bool computed) {
  static constexpr std::array kNames{"qkv", "attention", "projection", "up", "down"};
  const auto [qkv, attention, fc, whole_layers] = mapping;
  const auto where =
      named<h2m2::Where>("side", side, {{"hbm", h2m2::Where::kHbm}, {"lpddr", h2m2::Where::kLpddr}});
  std::vector<Facts> out;
  for (const h2m2::KernelReplay& each :
       h2m2::replay_layer(board_of(board), shape_of(shape), {qkv, attention, fc, whole_layers}, lengths,
                          where, chips, timing_of(dram), {packed, in_turn, translated, computed})) {
    nb::dict kernel;
    kernel["kernel"] = kNames[static_cast<std::size_t>(each.kernel)];
    kernel["ns"] = each.ns;
    kernel["closed_ns"] = each.closed_ns;
    kernel["closed_bytes"] = each.closed_bytes;
    kernel["misses"] = each.misses;
    add(kernel, each.dram);
    out.emplace_back(kernel);
  }
  return out;
}

// Blocks requested one after the other, all at once but for what a channel's queue holds.
Facts read_dram(const nb::dict& timing, const std::vector<std::pair<std::int64_t, std::int64_t>>& reads) {
  h2m2::Dram dram(timing_of(timing));
  double at = 0;
  double end = 0;
  for (const auto& [address, bytes] : reads) {
    at = std::max(at, dram.room_at(address));
    end = std::max(end, dram.serve(address, bytes, at));
  }
  nb::dict out;
  out["ns"] = end;
  add(out, dram.counts());
  return out;
}

std::vector<double> translate(int entries, double miss_ns, int walks_at_once,
                              const std::vector<std::pair<std::int64_t, double>>& requests) {
  h2m2::Tlb tlb(entries, miss_ns, walks_at_once);
  std::vector<double> known;
  for (const auto& [page, at] : requests) known.push_back(tlb.translate(page, at));
  return known;
}

}  // namespace

void bind_h2m2_replay(nb::module_& m) {
  m.def("h2m2_replay_layer", &replay_layer, nb::kw_only(), "board"_a, "shape"_a, "mapping"_a, "lengths"_a,
        "side"_a, "chips"_a, "dram"_a, "packed"_a, "in_turn"_a, "translated"_a, "computed"_a,
        "The kernels of one layer at one side, read block by block, and the closed formulas.");
  m.def("h2m2_read_dram", &read_dram, nb::kw_only(), "dram"_a, "reads"_a,
        "When the last of these reads of (address, bytes) is done, each within a block, and what they met.");
  m.def("h2m2_translate", &translate, nb::kw_only(), "entries"_a, "miss_ns"_a, "walks_at_once"_a,
        "requested"_a, "When the translation of each of these (page, time requested) is known.");
}

}  // namespace lamina
