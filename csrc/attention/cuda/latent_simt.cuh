#pragma once

#include <cstdint>

#include "attention/cuda/device.cuh"
#include "attention/cuda/latent.cuh"

namespace lamina::attention::cuda {

// In fp32, which the tensor cores do not have: a thread makes the score of one head and token, and sums two
// dimensions of all heads. Same interface as LatentMma. Exactness is its purpose, not speed.
class LatentSimt {
public:
  static constexpr int kHeads = 16;
  static constexpr int kTokens = 16;
  static constexpr int kStages = 3;
  static constexpr int kRetainedBytes = kHeads * kLatentDim * 4;  // queries
  using Storage = float;
  using Tile = Swizzled<kTokens, kLatentDim * 4>;
  static constexpr int kScorePitch = kTokens + 4;        // floats
  static constexpr int kWeightPitch = kTokens * 4 + 16;  // bytes

  LAMINA_DEVICE LatentSimt(int warp, int lane, int retained)
      : thread_(warp * 32 + lane), query_(reinterpret_cast<float*>(shared_memory() + retained)) {}

  static LAMINA_DEVICE float store(float weight) { return weight; }

  LAMINA_DEVICE void open(const float* query, int heads, int head_dim) {
    for (int i = thread_; i < kHeads * kLatentDim; i += kLatentWarps * 32) {
      const int head = i / kLatentDim;
      const int dim = i % kLatentDim;
      query_[i] = head < heads && dim < head_dim ? query[head * head_dim + dim] : 0;
    }
    LAMINA_UNROLL
    for (int head = 0; head < kHeads; ++head) out_[head][0] = out_[head][1] = 0;
  }

  LAMINA_DEVICE void score(int tile, float* scores) {
    const int head = thread_ / kTokens;
    const int token = thread_ % kTokens;
    float dots[4] = {};
    LAMINA_UNROLL_4
    for (int chunk = 0; chunk < Tile::kChunks; ++chunk) {
      const auto* const key = reinterpret_cast<const float*>(shared_memory() + tile + Tile::at(token, chunk));
      LAMINA_UNROLL
      for (int i = 0; i < 4; ++i) dots[i] += query_[head * kLatentDim + chunk * 4 + i] * key[i];
    }
    scores[head * kScorePitch + token] = (dots[0] + dots[1]) + (dots[2] + dots[3]);
  }

  LAMINA_DEVICE void gather(int tile, int weights, const float* factor) {
    LAMINA_UNROLL
    for (int head = 0; head < kHeads; ++head) {
      out_[head][0] *= factor[head];
      out_[head][1] *= factor[head];
    }
    const auto* const by = reinterpret_cast<const float*>(shared_memory() + weights);
    LAMINA_UNROLL_1
    for (int token = 0; token < kTokens; ++token) {
      const auto* const value = reinterpret_cast<const float*>(
          shared_memory() + tile + Tile::at(token, thread_ / 2) + thread_ % 2 * 8);
      LAMINA_UNROLL
      for (int head = 0; head < kHeads; ++head) {
        const float weight = by[head * (kWeightPitch / 4) + token];
        out_[head][0] += weight * value[0];
        out_[head][1] += weight * value[1];
      }
    }
  }

  LAMINA_DEVICE void write(float* rows, int stride, const float* factor) const {
    LAMINA_UNROLL
    for (int head = 0; head < kHeads; ++head) {
      rows[head * stride + thread_ * 2] = out_[head][0] * factor[head];
      rows[head * stride + thread_ * 2 + 1] = out_[head][1] * factor[head];
    }
  }

private:
  static_assert(kLatentWarps * 32 == kHeads * kTokens && kLatentWarps * 32 * 2 == kLatentValues);

  int thread_;
  float* query_;  // [head][dim]
  float out_[kHeads][2];
};

}  // namespace lamina::attention::cuda
