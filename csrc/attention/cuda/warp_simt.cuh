#pragma once

#include <cstdint>

#include "attention/cuda/device.cuh"
#include "attention/cuda/softmax.hpp"
#include "attention/cuda/tile.hpp"

namespace lamina::attention::cuda {

// One warp's attention over its groups of 8 tokens in fp32, which the tensor cores do not have: dimensions
// lie across the lanes, and a dot product is summed by shuffles. Same interface as WarpMma. Exactness is its
// purpose, not speed.
template <int kDim_, int kHeads_>
class WarpSimt {
public:
  static constexpr int kDim = kDim_;
  static constexpr int kHeads = kHeads_;
  using Tile = cuda::Tile<8, kDim * 4>;
  using Storage = float;

  LAMINA_DEVICE explicit WarpSimt(int lane) : lane_(lane) {}

  LAMINA_DEVICE void open(const float* query, int heads, int head_dim) {
    heads_ = heads;
    LAMINA_UNROLL
    for (int head = 0; head < kHeads; ++head) {
      LAMINA_UNROLL
      for (int i = 0; i < kOwn; ++i) {
        const bool exists = head < heads && dim(i) < head_dim;
        query_[head][i] = exists ? query[head * head_dim + dim(i)] : 0;
        out_[head][i] = 0;
      }
      running_[head] = Running{};
    }
  }

  LAMINA_DEVICE void weigh(int keys, int tokens, const Scoring& scoring) {
    float dots[kHeads] = {};  // of token lane % 8
    LAMINA_UNROLL
    for (int token = 0; token < Tile::kRows; ++token) {
      float row[kOwn];
      read(row, keys, token);
      LAMINA_UNROLL
      for (int head = 0; head < kHeads; ++head) {
        if (head >= heads_) continue;
        float dot = 0;
        LAMINA_UNROLL
        for (int i = 0; i < kOwn; ++i) dot += query_[head][i] * row[i];
        LAMINA_UNROLL
        for (int mask = 1; mask < 32; mask *= 2) dot += shuffle_xor(dot, mask);
        if (lane_ % Tile::kRows == token) dots[head] = dot;
      }
    }
    LAMINA_UNROLL
    for (int head = 0; head < kHeads; ++head) {
      if (head >= heads_) continue;
      const float score = lane_ % Tile::kRows < tokens ? scoring(dots[head]) : kNothing;
      float observed = score;
      LAMINA_UNROLL
      for (int mask = 1; mask < Tile::kRows; mask *= 2) {
        const float other = shuffle_xor(observed, mask);
        observed = observed > other ? observed : other;
      }
      const float factor = running_[head].raise(observed);
      weights_[head] = running_[head].weight(score);
      running_[head].sum += weights_[head];  // of this lane's token only; finish() adds the lanes up
      LAMINA_UNROLL
      for (int i = 0; i < kOwn; ++i) out_[head][i] *= factor;
    }
  }

  LAMINA_DEVICE void gather(int values) {
    LAMINA_UNROLL
    for (int token = 0; token < Tile::kRows; ++token) {
      float row[kOwn];
      read(row, values, token);
      LAMINA_UNROLL
      for (int head = 0; head < kHeads; ++head) {
        if (head >= heads_) continue;
        const float weight = shuffle(weights_[head], token);
        LAMINA_UNROLL
        for (int i = 0; i < kOwn; ++i) out_[head][i] += weight * row[i];
      }
    }
  }

  LAMINA_DEVICE void finish(float* max, float* sum) {
    LAMINA_UNROLL
    for (int head = 0; head < kHeads; ++head) {
      float total = running_[head].sum;
      LAMINA_UNROLL
      for (int mask = 1; mask < Tile::kRows; mask *= 2) total += shuffle_xor(total, mask);
      if (lane_ == 0) {
        max[head] = running_[head].max;
        sum[head] = total;
      }
    }
  }

  LAMINA_DEVICE void write(float* rows, int stride, const float* factor) {
    LAMINA_UNROLL
    for (int head = 0; head < kHeads; ++head) {
      LAMINA_UNROLL
      for (int i = 0; i < kOwn; ++i) rows[head * stride + dim(i)] = out_[head][i] * factor[head];
    }
  }

private:
  static constexpr int kOwn = kDim / 32;             // dimensions of each lane
  static constexpr int kSide = kOwn < 4 ? kOwn : 4;  // of them side by side, read as one
  static_assert(kDim == 64 || kDim == 128 || kDim == 256);

  LAMINA_DEVICE int dim(int i) const { return (i / kSide * 32 + lane_) * kSide + i % kSide; }

  LAMINA_DEVICE void read(float (&row)[kOwn], int tile, int token) const {
    LAMINA_UNROLL
    for (int i = 0; i < kOwn; i += kSide) {
      const int byte = dim(i) * 4;
      const auto* from =
          reinterpret_cast<const float*>(shared_memory() + tile + Tile::at(token, byte / 16) + byte % 16);
      LAMINA_UNROLL
      for (int j = 0; j < kSide; ++j) row[i + j] = from[j];
    }
  }

  int lane_;
  int heads_ = 0;
  float query_[kHeads][kOwn];
  float weights_[kHeads];
  Running running_[kHeads];
  float out_[kHeads][kOwn];
};

}  // namespace lamina::attention::cuda
