#pragma once

#include <cstdint>

#include "attention/cuda/device.cuh"
#include "attention/cuda/softmax.hpp"

namespace lamina::attention::cuda {

constexpr int kCombineThreads = 128;

struct CombineArgs {
  const float* first_out;  // [rows][head_dim]
  const float* first_lse;  // [rows]
  const float* second_out;
  const float* second_lse;
  float* out;  // may be one of the two, as may lse
  float* lse;
  std::int64_t rows;
  std::int32_t head_dim;
};

// [A, S] of the union of two disjoint sets of tokens. A warp does one row.
LAMINA_KERNEL(kCombineThreads) combine(const CombineArgs args) {
  const int lane = thread_index() % 32;
  const std::int64_t row =
      static_cast<std::int64_t>(block_x()) * (kCombineThreads / 32) + thread_index() / 32;
  if (row >= args.rows) return;
  const Merge merged = merge(args.first_lse[row], args.second_lse[row]);
  sync_warp();  // every lane has read what lane 0 may now overwrite
  if (lane == 0) args.lse[row] = merged.lse;
  for (int dim = lane; dim < args.head_dim; dim += 32) {
    const std::int64_t at = row * args.head_dim + dim;
    args.out[at] = merged.first * args.first_out[at] + merged.second * args.second_out[at];
  }
}

}  // namespace lamina::attention::cuda
