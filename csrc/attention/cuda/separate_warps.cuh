#pragma once

#include <cstdint>

#include "attention/cuda/attend.cuh"
#include "attention/cuda/ring.cuh"

namespace lamina::attention::cuda {

// How many blocks are to share a multiprocessor, as far as registers go: more than shared memory admits would
// be paid for with spills.
constexpr int blocks_for(int heads, int dim) { return dim > 128 ? 1 : heads > 8 || dim > 64 ? 3 : 4; }

// Keys and values apart: every warp gathers tokens of its own and attends to them for all heads. The four
// agree on the weights of their parts at the end only.
template <typename Warp>
class SeparateWarps {
public:
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kHeads = Warp::kHeads;
  static constexpr int kBlocks = blocks_for(kHeads, Warp::kDim);
  static constexpr int kTokens = kWarps * Warp::Tile::kRows;
  using WarpRing = Ring<typename Warp::Tile>;
  static constexpr int kStride =
      Warp::kDim + 8;  // floats between rows of heads: neighbours begin in other banks

  // Where shared memory goes: the warps' rings, each of which later holds the warp's part of the output; then
  // one number a head and warp for each of these.
  static constexpr int kRings = kWarps * WarpRing::kBytes;
  static constexpr int kSharedBytes = kRings + 3 * kWarps * kHeads * 4;
  static_assert(kHeads * kStride * 4 <= WarpRing::kBytes);

  LAMINA_DEVICE SeparateWarps(const AttendArgs& args, int heads, float* lse)
      : args_(args),
        shared_(shared_memory()),
        max_(reinterpret_cast<float*>(shared_ + kRings)),
        sum_(max_ + kWarps * kHeads),
        factor_(sum_ + kWarps * kHeads),
        lse_(lse),
        heads_(heads) {}

  // Of the segment's tokens, for the heads whose queries begin at this row.
  LAMINA_DEVICE void read(const Segment& segment, std::int64_t row) {
    constexpr int kRows = Warp::Tile::kRows;
    const int own = warp() * WarpRing::kBytes;
    const std::int32_t begin = segment.tokens.begin + warp() * kRows;
    const std::int32_t end = segment.tokens.end;
    const int groups = begin < end ? (end - begin + kTokens - 1) / kTokens : 0;

    // The query's loads are on their way before the first wait, which is for the indices.
    Warp attention(lane());
    attention.open(static_cast<const typename Warp::Storage*>(args_.q) + row * args_.head_dim, heads_,
                   args_.head_dim);
    const std::int64_t head_at = segment.kv_head * args_.head_bytes;
    WarpRing ring(
        own, lane(),
        {args_.rows.k + head_at, args_.rows.v + head_at, args_.rows.slot_bytes, args_.rows.row_bytes},
        args_.slots, begin, end, kTokens);
    LAMINA_UNROLL_1
    for (int i = -WarpRing::kAhead; i < groups; ++i) {
      if (i >= 0) attention.weigh(ring.keys(i), end - begin - i * kTokens, args_.scoring);
      ring.fetch_keys(i);
      if (i >= 0) attention.gather(ring.values(i));
      ring.fetch_values(i);
    }
    ring.close();

    attention.finish(max_ + warp() * kHeads, sum_ + warp() * kHeads);
    sync_block();
    if (thread_index() < kHeads) agree(thread_index());
    sync_block();
    attention.write(reinterpret_cast<float*>(shared_ + own), kStride, factor_ + warp() * kHeads);
    sync_block();
  }

  // Adds up the warps' parts.
  LAMINA_DEVICE void put(float* out) const {
    for (int i = thread_index(); i < heads_ * args_.value_dim; i += kThreads) {
      const int head = i / args_.value_dim;
      const int at = head * kStride + i % args_.value_dim;
      float sum = 0;
      LAMINA_UNROLL
      for (int w = 0; w < kWarps; ++w)
        sum += reinterpret_cast<const float*>(shared_ + w * WarpRing::kBytes)[at];
      out[i] = sum;
    }
  }

private:
  static LAMINA_DEVICE int lane() { return thread_index() % 32; }
  static LAMINA_DEVICE int warp() { return thread_index() / 32; }

  // From the warps' maxima and sums of a head to the factors of their parts. At least one warp has seen a
  // token.
  LAMINA_DEVICE void agree(int head) {
    float max = kNothing;
    for (int w = 0; w < kWarps; ++w) max = max > max_[w * kHeads + head] ? max : max_[w * kHeads + head];
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += sum_[w * kHeads + head] * decay(max_[w * kHeads + head], max);
    for (int w = 0; w < kWarps; ++w) factor_[w * kHeads + head] = decay(max_[w * kHeads + head], max) / sum;
    lse_[head] = log_sum(max, sum);
  }

  const AttendArgs& args_;
  char* const shared_;
  float* const max_;  // [warp][head], as all of these
  float* const sum_;
  float* const factor_;
  float* const lse_;  // [head]
  const int heads_;   // that there are
};

}  // namespace lamina::attention::cuda
