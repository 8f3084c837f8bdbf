#pragma once

#include <cstdint>

#include "attention/cuda/device.cuh"
#include "attention/cuda/latent.cuh"
#include "attention/cuda/query_mma.cuh"

namespace lamina::attention::cuda {

// On the tensor cores, transposed as WarpMma does it: S' = K Q' and O' = V' P'. For scores a warp takes 8
// heads, whose queries stay in its registers, and for sums 64 dimensions of all heads: so every warp reads
// the tile's keys (the fewer heads, the fewer of them), and its values are read once in all.
template <typename Element, int kHeads_>
class LatentMma {
public:
  static constexpr int kHeads = kHeads_;
  static constexpr int kTokens = 32;
  static constexpr int kStages = 4;
  static constexpr int kRetainedBytes = 0;
  using Storage = typename Element::Storage;
  using Tile = Swizzled<kTokens, kLatentDim * 2>;
  static constexpr int kScorePitch = kTokens + 4;        // floats: lanes write to different banks
  static constexpr int kWeightPitch = kTokens * 2 + 16;  // bytes: so do the matrix loads read

  LAMINA_DEVICE LatentMma(int warp, int lane, int) : warp_(warp), lane_(lane) {}

  static LAMINA_DEVICE Storage store(float weight) { return Element::store(weight); }

  LAMINA_DEVICE void open(const Storage* query, int heads, int head_dim) {
    load_query(query_, query, block() * 8 + lane_ / 4, heads, head_dim, lane_);
    LAMINA_UNROLL
    for (int block = 0; block < kHeadBlocks; ++block) {
      LAMINA_UNROLL
      for (int rows = 0; rows < kOwnRows; ++rows) {
        LAMINA_UNROLL
        for (int i = 0; i < 4; ++i) out_[block][rows][i] = 0;
      }
    }
  }

  LAMINA_DEVICE void score(int tile, float* scores) {
    LAMINA_UNROLL_1
    for (int group = warp_ / kHeadBlocks; group < kTokens / 16; group += kLatentWarps / kHeadBlocks) {
      const int first = tile + group * 16 * Tile::kRowBytes + Tile::at(lane_ % 16, lane_ / 16);
      float dots[4][4] = {};  // of every fourth step: a quarter as long a chain of dependent instructions
      LAMINA_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        std::uint32_t rows[4];
        load_matrices(rows, shared_memory() + Tile::right(first, step * 2));
        Element::multiply_add(dots[step % 4], rows, query_[step]);
      }
      // This lane has tokens lane / 4 and 8 more of heads 2 (lane % 4) and the next.
      LAMINA_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int head = block() * 8 + (lane_ % 4) * 2 + i % 2;
        const int token = group * 16 + i / 2 * 8 + lane_ / 4;
        scores[head * kScorePitch + token] = (dots[0][i] + dots[1][i]) + (dots[2][i] + dots[3][i]);
      }
    }
  }

  // Shrinks what was gathered before by the factors, and adds the values by their weights.
  LAMINA_DEVICE void gather(int tile, int weights, const float* factor) {
    LAMINA_UNROLL
    for (int block = 0; block < kHeadBlocks; ++block) {
      LAMINA_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float shrink = factor[block * 8 + (lane_ % 4) * 2 + i % 2];
        LAMINA_UNROLL
        for (int rows = 0; rows < kOwnRows; ++rows) out_[block][rows][i] *= shrink;
      }
    }
    const int values = tile + warp_ * kOwnRows * 32 + Tile::at(lane_ % 8 + lane_ / 16 * 8, lane_ / 8 % 2);
    const int weight = weights + (lane_ / 16 * 8 + lane_ % 8) * kWeightPitch + lane_ / 8 % 2 * 16;
    LAMINA_UNROLL_1  // there are no registers for the loads of two
        for (int group = 0; group < kTokens / 16; ++group) {
      std::uint32_t by[kHeadBlocks][2];
      LAMINA_UNROLL
      for (int block = 0; block < kHeadBlocks; block += 2) {
        std::uint32_t both[4];
        load_matrices(both, shared_memory() + weight + block * 8 * kWeightPitch + group * 32);
        LAMINA_UNROLL
        for (int i = 0; i < 4; ++i) by[block + i / 2][i % 2] = both[i];
      }
      LAMINA_UNROLL
      for (int rows = 0; rows < kOwnRows; ++rows) {
        std::uint32_t columns[4];
        load_matrices_transposed(
            columns, shared_memory() + Tile::right(values, rows * 2) + group * 16 * Tile::kRowBytes);
        LAMINA_UNROLL
        for (int block = 0; block < kHeadBlocks; ++block) {
          Element::multiply_add(out_[block][rows], columns, by[block]);
        }
      }
    }
  }

  // Writes what was gathered times each head's factor: rows of `stride` floats, one a head.
  LAMINA_DEVICE void write(float* rows, int stride, const float* factor) const {
    LAMINA_UNROLL
    for (int block = 0; block < kHeadBlocks; ++block) {
      LAMINA_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int head = block * 8 + (lane_ % 4) * 2 + i % 2;
        float* const to = rows + head * stride + warp_ * kOwnRows * 16 + i / 2 * 8 + lane_ / 4;
        LAMINA_UNROLL
        for (int row = 0; row < kOwnRows; ++row) to[row * 16] = out_[block][row][i] * factor[head];
      }
    }
  }

private:
  static constexpr int kSteps = kLatentDim / 16;
  static constexpr int kHeadBlocks = kHeads / 8;
  static constexpr int kOwnRows =
      kLatentValues / 16 / kLatentWarps;  // of the instruction: 16 dimensions each
  static_assert(kSteps % 4 == 0 && kHeadBlocks % 2 == 0 && kLatentWarps % kHeadBlocks == 0);
  static_assert(kOwnRows * 2 % 8 == 0, "a warp's dimensions begin at a chunk that is a multiple of eight");

  LAMINA_DEVICE int block() const { return warp_ % kHeadBlocks; }  // of heads, whose scores are this warp's

  int warp_;
  int lane_;
  std::uint32_t query_[kSteps][2];
  float out_[kHeadBlocks][kOwnRows][4];
};

}  // namespace lamina::attention::cuda
