#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "python/names.hpp"
#include "sim/h2m2/board.hpp"

namespace lamina {

// Boards and models come from Python as dictionaries whose keys are the fields' names.
template <typename Value>
void read(const nanobind::dict& from, const char* name, Value& into) {
  into = nanobind::cast<Value>(from[name]);
}

inline h2m2::Side side_of(const nanobind::dict& from) {
  h2m2::Side side;
  read(from, "capacity_bytes", side.capacity_bytes);
  read(from, "bytes_per_ns", side.bytes_per_ns);
  read(from, "latency_ns", side.latency_ns);
  read(from, "chips", side.chips);
  return side;
}

inline h2m2::Board board_of(const nanobind::dict& from) {
  h2m2::Board board;
  board.hbm = side_of(nanobind::cast<nanobind::dict>(from["hbm"]));
  board.lpddr = side_of(nanobind::cast<nanobind::dict>(from["lpddr"]));
  board.weight_load =
      named<h2m2::WeightLoad>("weight_load", nanobind::cast<std::string>(from["weight_load"]),
                              {{"before", h2m2::WeightLoad::kBefore}, {"behind", h2m2::WeightLoad::kBehind}});
  read(from, "link_bytes_per_ns", board.link_bytes_per_ns);
  read(from, "cores", board.cores);
  read(from, "cycle_ns", board.cycle_ns);
  read(from, "mm_size", board.mm_size);
  read(from, "mv_rows", board.mv_rows);
  read(from, "mv_width", board.mv_width);
  read(from, "vector_width", board.vector_width);
  read(from, "spm_bytes", board.spm_bytes);
  read(from, "launch_ns", board.launch_ns);
  read(from, "kernels", board.kernels);
  read(from, "page_bytes", board.page_bytes);
  read(from, "tlb_entries", board.tlb_entries);
  read(from, "tlb_miss_ns", board.tlb_miss_ns);
  read(from, "tlb_misses_at_once", board.tlb_misses_at_once);
  read(from, "dram_efficiency", board.dram_efficiency);
  read(from, "reread_kv", board.reread_kv);
  read(from, "hierarchical_overlap", board.hierarchical_overlap);
  read(from, "hbm_devices", board.hbm_devices);
  read(from, "hbm_barrier_ns", board.hbm_barrier_ns);
  return board;
}

inline h2m2::Shape shape_of(const nanobind::dict& from) {
  h2m2::Shape shape;
  read(from, "layers", shape.layers);
  read(from, "hidden", shape.hidden);
  read(from, "heads", shape.heads);
  read(from, "kv_heads", shape.kv_heads);
  read(from, "head_dim", shape.head_dim);
  read(from, "intermediate", shape.intermediate);
  read(from, "ff_matrices", shape.ff_matrices);
  read(from, "vocab", shape.vocab);
  read(from, "element_bytes", shape.element_bytes);
  return shape;
}

}  // namespace lamina
