#pragma once

#include "sim/h2m2/load.hpp"

namespace lamina::h2m2 {

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
