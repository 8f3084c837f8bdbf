#pragma once

#include <cstdint>

#include "attention/cuda/attend.cuh"
#include "attention/cuda/softmax.hpp"
#include "attention/cuda/tile.hpp"

namespace lamina::attention::cuda {

// A latent KV (MLA): a value is its key's first numbers, and many heads share both. So a block's warps share
// every tile: it is gathered once, makes the scores of all heads with all its numbers, and stays for the sum
// of its first ones. Rows are filled up in shared memory to the widest that there are.
constexpr int kLatentDim = 576;     // of keys
constexpr int kLatentValues = 512;  // of them
constexpr int kLatentWarps = 8;

// Math is one type's arithmetic on a tile: score() from keys, gather() of values by weights, of which every
// warp does a share that is its own choice. Between the two, scores of all tokens become weights here.
template <typename Math>
class Latent {
public:
  static constexpr int kThreads = kLatentWarps * 32;
  static constexpr int kBlocks = 1;  // a multiprocessor: shared memory and registers are used up
  static constexpr int kHeads = Math::kHeads;
  static constexpr int kTokens = Math::kTokens;
  using Tile = typename Math::Tile;
  using Storage = typename Math::Storage;

  // Where shared memory goes: the tiles under way and in use, which are the heads' outputs later; what Math
  // keeps, a tile's scores and weights (in rows of heads), and by how much each head's sums shrink.
  static constexpr int kStages = Math::kStages;
  static constexpr int kMath = kStages * Tile::kBytes;
  static constexpr int kScores = kMath + Math::kRetainedBytes;
  static constexpr int kWeights = kScores + kHeads * Math::kScorePitch * 4;
  static constexpr int kFactors = kWeights + kHeads * Math::kWeightPitch;
  static constexpr int kStride =
      kLatentValues + 8;  // floats between outputs: neighbours begin in other banks
  static_assert(kHeads * kStride * 4 <= kMath);
  static constexpr int kSharedBytes = kFactors + kHeads * 4;

  LAMINA_DEVICE Latent(const AttendArgs& args, int heads, float* lse)
      : args_(args),
        factor_(reinterpret_cast<float*>(shared_memory() + kFactors)),
        lse_(lse),
        heads_(heads),
        math_(warp(), lane(), kMath) {}

  // Of the segment's tokens, for the heads whose queries begin at this row.
  LAMINA_DEVICE void read(const Segment& segment, std::int64_t row) {
    keys_ = args_.rows.k + segment.kv_head * args_.head_bytes + first_chunk() * 16;
    next_ = segment.tokens.begin + token();
    end_ = segment.tokens.end;
    const std::int32_t count = segment.tokens.end - segment.tokens.begin;
    const int tiles = (count + kTokens - 1) / kTokens;
    slot_ = read_slot();
    math_.open(static_cast<const Storage*>(args_.q) + row * args_.head_dim, heads_, args_.head_dim);
    running_ = Running{};
    LAMINA_UNROLL_1
    for (int i = 0; i < kStages - 1; ++i) fetch(i);
    LAMINA_UNROLL_1
    for (int i = 0; i < tiles; ++i) {
      const int tile = i % kStages * Tile::kBytes;
      wait_async<kStages - 2>();
      sync_block();  // all threads' copies have arrived; the previous tile is free again
      fetch(i + kStages - 1);
      math_.score(tile, scores());
      sync_block();
      weigh(count - i * kTokens);
      sync_block();
      math_.gather(tile, kWeights, factor_);
    }
    wait_async<0>();
    sync_block();
    finish();
    sync_block();
    math_.write(rows(), kStride, factor_);
    sync_block();
  }

  LAMINA_DEVICE void put(float* out) const {
    for (int i = thread_index(); i < heads_ * args_.value_dim; i += kThreads) {
      out[i] = rows()[i / args_.value_dim * kStride + i % args_.value_dim];
    }
  }

private:
  static constexpr int kLanes = kThreads / kTokens;  // threads that copy one row, side by side
  static constexpr int kCopies = Tile::kChunks / kLanes;
  static constexpr int kSharers = kThreads / kHeads;  // threads that share a head's softmax
  static constexpr int kOwnTokens = kTokens / kSharers;
  static_assert(kSharers <= 32 && kTokens % kSharers == 0);
  static_assert(Tile::kRows == kTokens && kLanes % 8 == 0);
  static_assert(Tile::kChunks % kLanes == 0, "every thread copies as much");

  static LAMINA_DEVICE int lane() { return thread_index() % 32; }
  static LAMINA_DEVICE int warp() { return thread_index() / 32; }
  static LAMINA_DEVICE int token() { return thread_index() / kLanes; }
  static LAMINA_DEVICE int first_chunk() { return thread_index() % kLanes; }
  static LAMINA_DEVICE int own_head() { return thread_index() / kSharers; }
  static LAMINA_DEVICE int own_token(int i) { return thread_index() % kSharers + i * kSharers; }
  static LAMINA_DEVICE float* rows() { return reinterpret_cast<float*>(shared_memory()); }
  static LAMINA_DEVICE float* scores() { return reinterpret_cast<float*>(shared_memory() + kScores); }

  // The slot of this thread's row of the next tile; -1 where there is no token.
  LAMINA_DEVICE std::int32_t read_slot() {
    const std::int32_t slot = next_ < end_ ? args_.slots[next_] : -1;
    next_ += kTokens;
    return slot;
  }

  LAMINA_DEVICE void fetch(int i) {
    const char* const row = keys_ + static_cast<std::int64_t>(slot_ < 0 ? 0 : slot_) * args_.rows.slot_bytes;
    const int first = i % kStages * Tile::kBytes + Tile::at(token(), first_chunk());
    LAMINA_UNROLL
    for (int copy = 0; copy < kCopies; ++copy) {
      const int beyond = copy * kLanes;
      const bool exists = (first_chunk() + beyond) * 16 < args_.rows.row_bytes;
      copy_async_16(shared_memory() + Tile::right(first, beyond), row + beyond * 16, slot_ >= 0 && exists);
    }
    commit_async();
    slot_ = read_slot();
  }

  // A tile's scores to weights, relative to the largest so far. Some neighbours share a head, token by token.
  LAMINA_DEVICE void weigh(int tokens) {
    const auto* const scores_of = scores() + own_head() * Math::kScorePitch;
    float score[kOwnTokens];
    float observed = kNothing;
    LAMINA_UNROLL
    for (int i = 0; i < kOwnTokens; ++i) {
      score[i] = own_token(i) < tokens ? args_.scoring(scores_of[own_token(i)]) : kNothing;
      observed = observed > score[i] ? observed : score[i];
    }
    LAMINA_UNROLL
    for (int mask = 1; mask < kSharers; mask *= 2) {
      const float other = shuffle_xor(observed, mask);
      observed = observed > other ? observed : other;
    }
    const float factor = running_.raise(observed);
    if (own_token(0) == 0) factor_[own_head()] = factor;
    auto* const weights =
        reinterpret_cast<Storage*>(shared_memory() + kWeights + own_head() * Math::kWeightPitch);
    LAMINA_UNROLL
    for (int i = 0; i < kOwnTokens; ++i) {
      const float weight = running_.weight(score[i]);
      running_.sum += weight;  // of this thread's tokens only; finish() adds them up
      weights[own_token(i)] = Math::store(weight);
    }
  }

  // What the sums are to be multiplied with, and the log-sum-exps.
  LAMINA_DEVICE void finish() {
    float total = running_.sum;
    LAMINA_UNROLL
    for (int mask = 1; mask < kSharers; mask *= 2) total += shuffle_xor(total, mask);
    if (own_token(0) != 0) return;
    factor_[own_head()] = 1 / total;
    lse_[own_head()] = log_sum(running_.max, total);
  }

  const AttendArgs& args_;
  float* const factor_;  // [head]
  float* const lse_;     // [head]
  const int heads_;      // that there are
  const char* keys_ = nullptr;
  std::int32_t next_ = 0;
  std::int32_t end_ = 0;
  std::int32_t slot_ = -1;
  Running running_;  // of own_head()
  Math math_;
};

}  // namespace lamina::attention::cuda
