#pragma once

#include <cstdint>

#include "attention/cuda/device.cuh"
#include "attention/cuda/query_mma.cuh"
#include "attention/cuda/softmax.hpp"
#include "attention/cuda/tile.hpp"

namespace lamina::attention::cuda {

// One warp's attention over its groups of 16 tokens on the tensor cores, for up to kHeads query heads of one
// KV head.
//
// Everything is transposed, S' = K Q' and O' = V' P', so that the 16 rows of the instruction are tokens or
// dimensions, of which there are plenty, and heads are its 8 columns: a group of 8 heads wastes nothing, a
// single head 7/8 of an instruction that is cheap compared with the bytes it waits for.
template <typename Element, int kDim_, int kHeads_>
class WarpMma {
public:
  static constexpr int kDim = kDim_;
  static constexpr int kHeads = kHeads_;
  using Tile = cuda::Tile<16, kDim * 2>;
  using Storage = typename Element::Storage;

  LAMINA_DEVICE explicit WarpMma(int lane) : lane_(lane) {}

  LAMINA_DEVICE void open(const Storage* query, int heads, int head_dim) {
    LAMINA_UNROLL
    for (int block = 0; block < kBlocks; ++block) {
      load_query(query_[block], query, block * 8 + lane_ / 4, heads, head_dim, lane_);
      LAMINA_UNROLL
      for (int i = 0; i < 2; ++i) running_[block][i] = Running{};
      LAMINA_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        LAMINA_UNROLL
        for (int i = 0; i < 4; ++i) out_[block][step][i] = 0;
      }
    }
  }

  // The weights of `tokens` tokens, from their keys; what was gathered before is scaled to match.
  LAMINA_DEVICE void weigh(int keys, int tokens, const Scoring& scoring) {
    const int first = keys + Tile::at(lane_ % 16, lane_ / 16);
    float dots[kBlocks][kChains][4] = {};
    LAMINA_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t rows[4];
      load_matrices(rows, shared_memory() + Tile::right(first, step * 2));
      LAMINA_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        Element::multiply_add(dots[block][step % kChains], rows, query_[block][step]);
      }
    }
    // This lane has tokens lane / 4 and 8 more of heads 2 (lane % 4) and the next.
    const bool has_upper = lane_ / 4 < tokens;
    const bool has_lower = lane_ / 4 + 8 < tokens;
    LAMINA_UNROLL
    for (int block = 0; block < kBlocks; ++block) {
      float upper[2];
      float lower[2];
      LAMINA_UNROLL
      for (int i = 0; i < 2; ++i) {
        upper[i] = scoring(dot(dots[block], i));
        lower[i] = scoring(dot(dots[block], i + 2));
        upper[i] = has_upper ? upper[i] : kNothing;
        lower[i] = has_lower ? lower[i] : kNothing;
        float observed = upper[i] > lower[i] ? upper[i] : lower[i];
        LAMINA_UNROLL
        for (int mask = 4; mask < 32; mask *= 2) {
          const float other = shuffle_xor(observed, mask);
          observed = observed > other ? observed : other;
        }
        Running& running = running_[block][i];
        const float factor = running.raise(observed);
        upper[i] = running.weight(upper[i]);
        lower[i] = running.weight(lower[i]);
        running.sum += upper[i] + lower[i];  // of this lane's tokens only; finish() adds the lanes up
        LAMINA_UNROLL
        for (int step = 0; step < kSteps; ++step) {
          out_[block][step][i] *= factor;
          out_[block][step][i + 2] *= factor;
        }
      }
      // Scores come with tokens as rows; the next product wants them as columns.
      weights_[block][0] = transpose_8x8(Element::pack(upper[0], upper[1]));
      weights_[block][1] = transpose_8x8(Element::pack(lower[0], lower[1]));
    }
  }

  // Adds the values of the same tokens, by those weights.
  LAMINA_DEVICE void gather(int values) {
    const int first = values + Tile::at(lane_ % 8 + lane_ / 16 * 8, lane_ / 8 % 2);
    LAMINA_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t columns[4];
      load_matrices_transposed(columns, shared_memory() + Tile::right(first, step * 2));
      LAMINA_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        Element::multiply_add(out_[block][step], columns, weights_[block]);
      }
    }
  }

  // Writes each head's maximum and sum.
  LAMINA_DEVICE void finish(float* max, float* sum) {
    LAMINA_UNROLL
    for (int block = 0; block < kBlocks; ++block) {
      LAMINA_UNROLL
      for (int i = 0; i < 2; ++i) {
        float total = running_[block][i].sum;
        LAMINA_UNROLL
        for (int mask = 4; mask < 32; mask *= 2) total += shuffle_xor(total, mask);
        if (lane_ < 4) {
          max[block * 8 + lane_ * 2 + i] = running_[block][i].max;
          sum[block * 8 + lane_ * 2 + i] = total;
        }
      }
    }
  }

  // Writes what was gathered times each head's factor: rows of `stride` floats, one a head.
  LAMINA_DEVICE void write(float* rows, int stride, const float* factor) {
    LAMINA_UNROLL
    for (int block = 0; block < kBlocks; ++block) {
      LAMINA_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int head = block * 8 + (lane_ % 4) * 2 + i % 2;
        LAMINA_UNROLL
        for (int step = 0; step < kSteps; ++step) {
          rows[head * stride + step * 16 + i / 2 * 8 + lane_ / 4] = out_[block][step][i] * factor[head];
        }
      }
    }
  }

private:
  static constexpr int kBlocks = kHeads / 8;
  static constexpr int kSteps = kDim / 16;
  // Chains of dependent instructions: even and odd steps, if no other block runs on the multiprocessor.
  static constexpr int kChains = kBlocks == 1 ? 2 : 1;
  static_assert(kHeads % 8 == 0 && kDim % 64 == 0);

  static LAMINA_DEVICE float dot(const float (&dots)[kChains][4], int i) {
    return kChains == 1 ? dots[0][i] : dots[0][i] + dots[kChains - 1][i];
  }

  int lane_;
  std::uint32_t query_[kBlocks][kSteps][2];
  std::uint32_t weights_[kBlocks][2];
  Running running_[kBlocks][2];
  float out_[kBlocks][kSteps][4];
};

}  // namespace lamina::attention::cuda
