#pragma once

// The attention kernel, written once for every width of vector. Each kernel_*.cpp includes it where the
// compiler may use that file's instructions, which is why everything here and in the simd_*.hpp is in unnamed
// namespaces: a function shared with another file could be linked in the version for a better processor.

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/kernel.hpp"
#include "attention/kernel_math.hpp"

namespace lamina::attention {
namespace {

// Tokens whose scores are made before their values are read: enough to make full vectors of scores, and so
// few that their keys and values stay in the first-level cache while the group's other query heads use them.
inline constexpr int kBlock = 64;

// Rows of one block: where its tokens lie from a head's first number, the last one repeated up to whole
// vectors.
struct Block {
  int tokens;
  std::size_t offsets[kBlock];
};

// Fetches the next block's rows from memory into the cache, little by little between the steps of the
// arithmetic, in the order in which they lie in memory.
class Ahead {
public:
  Ahead(const RangeTask& task, int number_bytes) : source_(*task.source) {
    const std::size_t row = static_cast<std::size_t>(task.shape.head_dim * number_bytes);
    const int heads = task.last - task.first;
    const bool whole = source_.head_stride == row;
    piece_bytes_ = whole ? heads * row : row;
    pieces_ = whole ? 2 : 2 * heads;
    first_ = task.first * source_.head_stride;
  }

  void aim(const Block& block) {
    block_ = &block;
    token_ = 0;
    piece_ = 0;
    if (block.tokens > 0)
      point();
    else
      line_ = end_ = nullptr;
  }

  // Always inlined: a function that only prefetches has no effect in the compiler's eyes, and calls of it go.
  [[gnu::always_inline]] void fetch(int lines) {
    for (; lines > 0 && line_ != end_; --lines) {
      __builtin_prefetch(line_);
      line_ += 64;
      if (line_ >= end_) turn();
    }
  }

private:
  void turn() {
    if (++piece_ == pieces_) {
      piece_ = 0;
      if (++token_ == block_->tokens) {
        line_ = end_ = nullptr;
        return;
      }
    }
    point();
  }
  void point() {
    line_ = ((piece_ & 1) ? source_.v : source_.k) + first_ + block_->offsets[token_] +
            (piece_ >> 1) * source_.head_stride;
    end_ = line_ + piece_bytes_;
  }

  const Source& source_;
  std::size_t piece_bytes_;
  std::size_t first_;
  int pieces_;
  const Block* block_ = nullptr;
  int token_ = 0;
  int piece_ = 0;
  const std::byte* line_ = nullptr;
  const std::byte* end_ = nullptr;
};

template <typename S, bool kHalf, typename E>
typename S::Vec widen(const E* p) {
  if constexpr (kHalf) {
    return S::widen_half(p);
  } else {
    return S::widen(p);
  }
}

// S: the vectors. E: what K and V hold. Dot: how scores of some query heads and tokens are made.
template <typename S, typename E, template <typename, typename> typename Dot>
class RangeKernel {
  using Vec = typename S::Vec;

public:
  static void attend(const RangeTask& task) {
    Block blocks[2];
    fill(blocks[0], task, 0);
    Ahead ahead(task, sizeof(E));
    for (int start = 0, i = 0; start < task.tokens; start += kBlock, i ^= 1) {
      blocks[i ^ 1].tokens = 0;
      if (start + kBlock < task.tokens) fill(blocks[i ^ 1], task, start + kBlock);
      ahead.aim(blocks[i ^ 1]);
      for (int head = task.first; head < task.last; ++head)
        one_head(task, blocks[i], ahead, head, start == 0);
    }
  }

private:
  static void fill(Block& block, const RangeTask& task, int start) {
    block.tokens = std::min(kBlock, task.tokens - start);
    const int whole = (block.tokens + S::kWidth - 1) / S::kWidth * S::kWidth;
    for (int t = 0; t < whole; ++t) {
      const Slot slot = task.slots[start + std::min(t, block.tokens - 1)];
      block.offsets[t] = static_cast<std::size_t>(slot) * task.source->slot_stride;
    }
  }

  static void one_head(const RangeTask& task, const Block& block, Ahead& ahead, int kv_head, bool fresh) {
    const int group = task.shape.group();
    int head = kv_head * group;
    const int end = head + group;
    for (; head + 4 <= end; head += 4) heads<4>(task, block, ahead, kv_head, head, fresh);
    for (; head + 2 <= end; head += 2) heads<2>(task, block, ahead, kv_head, head, fresh);
    if (head < end) heads<1>(task, block, ahead, kv_head, head, fresh);
  }

  // N query heads over one block: scores, weights, weighted values.
  template <int N>
  static void heads(const RangeTask& task, const Block& block, Ahead& ahead, int kv_head, int head,
                    bool fresh) {
    const Source& source = *task.source;
    const int dim = task.shape.head_dim;
    const std::size_t offset = static_cast<std::size_t>(kv_head) * source.head_stride;
    const int group = task.shape.group();
    alignas(64) float weights[N][kBlock];
    Dot<S, E>::template scores<N>(reinterpret_cast<const E*>(task.q) + head * dim, dim, source.k + offset,
                                  block, weights, ahead,
                                  (S::kWidth * dim * (int)sizeof(E) / 64 + group - 1) / group);
    float decay[N];
    for (int n = 0; n < N; ++n) {
      decay[n] = weigh(weights[n], block.tokens, source, task.partials[head + n], fresh);
    }
    float* rows = task.rows + static_cast<std::size_t>(head) * padded(dim);
    gather<N>(source.v + offset, dim, block, weights, decay, fresh, rows, ahead, group);
  }

  // Scores to softmax weights, relative to the largest score so far. Returns by how much what has been summed
  // under the previous largest score shrinks.
  static float weigh(float* scores, int tokens, const Source& source, Partial& partial, bool fresh) {
    const Vec scale = S::set1(source.scale);
    const int whole = (tokens + S::kWidth - 1) / S::kWidth * S::kWidth;
    for (int t = 0; t < whole; t += S::kWidth) {
      Vec x = S::mul(S::load(scores + t), scale);
      if (source.softcap != 0) {
        const Vec cap = S::set1(source.softcap);
        x = S::mul(tanh<S>(S::div(x, cap)), cap);
      }
      S::store(scores + t, x);
    }
    for (int t = tokens; t < whole; ++t) scores[t] = -std::numeric_limits<float>::infinity();

    Vec largest = S::load(scores);
    for (int t = S::kWidth; t < whole; t += S::kWidth) largest = S::max(largest, S::load(scores + t));
    const float block_max = S::max_of(largest);
    const float max = fresh ? block_max : std::max(block_max, partial.max);
    Vec sums = S::zero();
    for (int t = 0; t < whole; t += S::kWidth) {
      const Vec weight = exp_negative<S>(S::sub(S::load(scores + t), S::set1(max)));
      S::store(scores + t, weight);
      sums = S::add(sums, weight);
    }
    const float decay = fresh ? 0.0f : std::exp(partial.max - max);
    partial.sum = fresh ? S::sum_of(sums) : partial.sum * decay + S::sum_of(sums);
    partial.max = max;
    return decay;
  }

  template <int N>
  static void gather(const std::byte* values, int dim, const Block& block, const float (*weights)[kBlock],
                     const float* decay, bool fresh, float* rows, Ahead& ahead, int group) {
    int d = 0;
    constexpr int kMost = S::kColumns * S::kWidth;
    for (; d + kMost <= dim; d += kMost) {
      columns<N, S::kColumns, false>(values, dim, d, block, weights, decay, fresh, rows, ahead, group);
    }
    if constexpr (S::kColumns > 2) {
      for (; d + 2 * S::kWidth <= dim; d += 2 * S::kWidth) {
        columns<N, 2, false>(values, dim, d, block, weights, decay, fresh, rows, ahead, group);
      }
    }
    for (; d + S::kWidth <= dim; d += S::kWidth) {
      columns<N, 1, false>(values, dim, d, block, weights, decay, fresh, rows, ahead, group);
    }
    if constexpr (S::kWidth > 8) {
      if (d < dim) columns<N, 1, true>(values, dim, d, block, weights, decay, fresh, rows, ahead, group);
    }
  }

  // Adds the block's weighted values to C vectors of N rows, which stay in registers meanwhile.
  template <int N, int C, bool kHalf>
  static void columns(const std::byte* values, int dim, int d, const Block& block,
                      const float (*weights)[kBlock], const float* decay, bool fresh, float* rows,
                      Ahead& ahead, int group) {
    const int lines = (N * C * S::kWidth * (int)sizeof(E) / 64 + group - 1) / group;
    const std::size_t stride = static_cast<std::size_t>(padded(dim));
    Vec sums[N][C];
    for (int n = 0; n < N; ++n) {
      for (int c = 0; c < C; ++c) {
        sums[n][c] =
            fresh ? S::zero() : S::mul(S::load(rows + n * stride + d + c * S::kWidth), S::set1(decay[n]));
      }
    }
    values += static_cast<std::size_t>(d) * sizeof(E);
    for (int t = 0; t < block.tokens; ++t) {
      const E* row = reinterpret_cast<const E*>(values + block.offsets[t]);
      ahead.fetch(lines);
      Vec value[C];
      for (int c = 0; c < C; ++c) value[c] = widen<S, kHalf>(row + c * S::kWidth);
      for (int n = 0; n < N; ++n) {
        const Vec weight = S::set1(weights[n][t]);
        for (int c = 0; c < C; ++c) sums[n][c] = S::fma(weight, value[c], sums[n][c]);
      }
    }
    for (int n = 0; n < N; ++n) {
      for (int c = 0; c < C; ++c) S::store(rows + n * stride + d + c * S::kWidth, sums[n][c]);
    }
  }
};

// Scores by widening keys and queries to floats.
template <typename S, typename E>
struct WideDot {
  using Vec = typename S::Vec;

  template <int N>
  static void scores(const E* q, int dim, const std::byte* keys, const Block& block, float (*out)[kBlock],
                     Ahead& ahead, int lines) {
    alignas(64) float wide[N][kMaxHeadDim];
    for (int n = 0; n < N; ++n) widen_row(q + n * dim, dim, wide[n]);
    constexpr int kTokens = S::kWidth / N;
    for (int t = 0; t < block.tokens; t += kTokens) {
      ahead.fetch(lines);
      const E* k[kTokens];
      for (int i = 0; i < kTokens; ++i) k[i] = reinterpret_cast<const E*>(keys + block.offsets[t + i]);
      Vec sums[S::kWidth];  // [N][kTokens]
      for (Vec& sum : sums) sum = S::zero();
      int d = 0;
      for (; d + S::kWidth <= dim; d += S::kWidth) {
        add<N, kTokens, false>(wide, k, d, sums);
      }
      if constexpr (S::kWidth > 8) {
        if (d < dim) add<N, kTokens, true>(wide, k, d, sums);
      }
      alignas(64) float lanes[N][kTokens];
      S::store(&lanes[0][0], S::sums(sums));
      for (int n = 0; n < N; ++n) std::copy_n(lanes[n], kTokens, out[n] + t);
    }
  }

private:
  template <int N, int kTokens, bool kHalf>
  static void add(const float (*wide)[kMaxHeadDim], const E* const (&k)[kTokens], int d,
                  Vec (&sums)[S::kWidth]) {
    Vec key[kTokens];
    for (int i = 0; i < kTokens; ++i) key[i] = widen<S, kHalf>(k[i] + d);
    for (int n = 0; n < N; ++n) {
      const Vec q = S::load(wide[n] + d);
      for (int i = 0; i < kTokens; ++i) sums[n * kTokens + i] = S::fma(q, key[i], sums[n * kTokens + i]);
    }
  }

  static void widen_row(const E* from, int dim, float* to) {
    int d = 0;
    for (; d + S::kWidth <= dim; d += S::kWidth) S::store(to + d, S::widen(from + d));
    if constexpr (S::kWidth > 8) {
      if (d < dim) S::store(to + d, S::widen_half(from + d));
    }
  }
};

}  // namespace
}  // namespace lamina::attention
