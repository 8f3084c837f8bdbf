#pragma once

#include <cstdint>

#include "attention/cuda/device.cuh"

namespace lamina::attention::cuda {

// The lane's part of one head's query, as the tensor cores take it for a column: two neighbouring dimensions
// a register. `query` is the first head's row; heads and dimensions that do not exist count as zeros.
template <typename Storage, int kSteps>
LAMINA_DEVICE void load_query(std::uint32_t (&part)[kSteps][2], const Storage* query, int head, int heads,
                              int head_dim, int lane) {
  LAMINA_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    LAMINA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int dim = step * 16 + half * 8 + (lane % 4) * 2;
      const bool exists = head < heads && dim < head_dim;
      part[step][half] = exists ? *reinterpret_cast<const std::uint32_t*>(query + head * head_dim + dim) : 0;
    }
  }
}

}  // namespace lamina::attention::cuda
