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

// A dense decoder as the board sees it.
struct Shape {
  int layers = 0;
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int intermediate = 0;
  int ff_matrices = 2;  // 3 where the feed-forward layer is gated
  int vocab = 0;        // 0 leaves the LM head out, as the paper does
  int element_bytes = 1;

  int group() const { return heads / kv_heads; }
};

// What one iteration has to do: its requests, the KV tokens they read (with the new one), and how often the
// matrix-vector units' rows are filled with these, request by request.
struct Moment {
  std::int64_t batch = 0;
  std::int64_t kv_tokens = 0;
  std::int64_t kv_rows = 0;  // sum of ceil(tokens / mv_rows)
};

// What an iteration is made of: three kernels' worth in each layer, and the LM head once.
enum class Sublayer : std::uint8_t { kQkv, kAttention, kFc, kLmHead };

// Bytes that one head (attention: one KV group) takes over all layers, wherever it is.
struct Footprint {
  double qkv = 0;
  double attention = 0;
  double fc = 0;  // with its share of the LM head
};

// What a mapping has to fit in.
struct Room {
  double hbm_bytes = 0;
  double lpddr_bytes = 0;
  Footprint unit;
};

// Which sublayers' heads are on the HBM side; of attention, whole KV groups. The others are on the LPDDR
// side. With whole_layers these are numbers of layers instead: a layer's sublayer is then on one side
// altogether.
struct Mapping {
  int qkv = 0;
  int attention = 0;
  int fc = 0;
  bool whole_layers = false;

  bool operator==(const Mapping&) const = default;
};

// One iteration as a policy runs it. Times are nanoseconds; those of parts are of one layer.
struct Plan {
  Mapping mapping;
  double qkv_ns = 0;  // the slower side's
  double attention_ns = 0;
  double fc_ns = 0;
  double exchange_ns = 0;   // activations between the sides
  double launch_ns = 0;     // launches and barriers, or communication between devices
  double lm_head_ns = 0;    // once an iteration
  double on_demand_ns = 0;  // once an iteration: data that is fetched to where it is computed on
  double hbm_busy_ns = 0;   // of the whole iteration, each side computing or reading
  double lpddr_busy_ns = 0;
  double lpddr_dram_ns = 0;  // of the whole iteration: what LPDDR's bandwidth is in use for

  double iteration_ns(int layers) const {
    return layers * (qkv_ns + attention_ns + fc_ns + exchange_ns + launch_ns) + lm_head_ns + on_demand_ns;
  }
};

}  // namespace lamina::h2m2
