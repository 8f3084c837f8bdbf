#pragma once

#include <cstdint>

namespace lamina::h2m2 {

// Bytes, nanoseconds and operations per nanosecond throughout. What each number is from, and which of them
// are fitted or assumed, is in laminabench/catalog/data/boards.toml.

// One memory and the accelerator chips at it.
struct Side {
  double capacity_bytes = 0;
  double bytes_per_ns = 0;  // peak
  double latency_ns = 0;
  int chips = 1;
};

// How a systolic array gets a tile's weights: before the tile's rows stream through, or behind the tile
// before.
enum class WeightLoad : std::uint8_t { kBefore, kBehind };

struct Board {
  Side hbm, lpddr;
  double link_bytes_per_ns = 0;  // between the two sides

  // A chip.
  int cores = 0;
  double cycle_ns = 1;
  int mm_size = 0;       // rows and columns of a core's systolic array
  int mv_rows = 0;       // KV rows that a core's matrix-vector unit takes at once
  int mv_width = 0;      // elements of each
  int vector_width = 0;  // elements a cycle of the vector and special function units
  double spm_bytes = 0;  // one of a core's two scratchpads
  double launch_ns = 0;  // of a kernel, with the barrier after it
  int kernels = 0;       // of a layer

  // Address translation.
  double page_bytes = 0;
  int tlb_entries = 0;
  double tlb_miss_ns = 0;
  int tlb_misses_at_once = 1;

  // What the paper leaves open.
  double dram_efficiency = 1;
  WeightLoad weight_load = WeightLoad::kBefore;
  bool reread_kv = true;            // each query head of a group reads the group's KV again
  double hierarchical_overlap = 0;  // share of migration that hides behind computing, or the other way round
  int hbm_devices = 8;              // of the board without LPDDR
  double hbm_barrier_ns = 0;        // between those, four times a layer
};

}  // namespace lamina::h2m2
