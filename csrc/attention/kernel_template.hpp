#pragma once

// The attention kernel, written once for every width of vector. Each kernel_*.cpp includes it where the
// compiler may use that file's instructions, which is why everything here and in the headers beside it is in
// unnamed namespaces: a function shared with another file could be linked in the version for a better
// processor.

#include <algorithm>
#include <limits>

#include "attention/ahead.hpp"
#include "attention/kernel.hpp"
#include "attention/kernel_math.hpp"

namespace lamina::attention {
namespace {

// Tokens are worked on in multiples of this many.
inline constexpr int kStep = 4;

// N query heads of one KV head share a vector of scores, of this many tokens each, in the order [N][tokens];
// and such vectors follow one another.
template <typename S, int N>
inline constexpr int kTogether = S::kWidth / N;

// Where the score of one of N heads and a token is, the token counted from a multiple of kTogether. 8 heads
// are 4 and then 4 more.
template <typename S, int N>
constexpr int place_of(int head, int token) {
  if constexpr (N == 8) {
    return head / 4 * 4 * kBlock + place_of<S, 4>(head % 4, token);
  } else {
    constexpr int kEach = kTogether<S, N>;
    return token / kEach * S::kWidth + head * kEach + token % kEach;
  }
}

// S: the vectors. E: what K and V are made of. Dot: how scores are made. Sum: how weighted values are summed.
template <typename S, typename E, typename Dot, typename Sum>
class RangeKernel {
  using Vec = typename S::Vec;

public:
  static void attend(const RangeTask& task) { RangeKernel(task).run(); }

private:
  explicit RangeKernel(const RangeTask& task)
      : task_(task),
        source_(*task.source),
        group_(task.shape.group()),
        dim_(task.shape.head_dim),
        // How many of a head's tokens are worked on before the next head. Few, and all heads' rows are read
        // side by side, nearly as they lie in memory; but each head's sums leave the registers as often,
        // which costs most where a KV head has many query heads. Found by measuring; no result depends on it.
        step_(group_ >= 4                     ? kBlock
              : group_ == 1 && sizeof(E) == 2 ? kStep
                                              : 2 * kStep),
        step_fetches_((dim_ * static_cast<int>(sizeof(E)) * kStep + Ahead::kBytes - 1) / Ahead::kBytes),
        weights_(task.scratch + (task.last - task.first) * group_ * padded(dim_)),
        decays_(weights_ + (task.last - task.first) * group_ * kBlock),
        ahead_(task, sizeof(E)) {}

  void run() {
    for (int head = task_.first; head < task_.last; ++head) pack<4>(head, 0);
    for (int start = 0; start < task_.tokens; start += kBlock) {
      fresh_ = start == 0;
      find_rows(start);
      for (at_ = 0; at_ < whole_; at_ += step_) {
        aim_after(source_.k, source_.v, 0, whole_);
        for (int head = task_.first; head < task_.last; ++head) score<S::kMostHeads>(head, 0);
      }
      for (int head = task_.first; head < task_.last; ++head) weigh<4>(head, 0);
      for (at_ = 0; at_ < whole_; at_ += step_) {
        aim_after(source_.v, source_.k, whole_, following_);
        for (int head = task_.first; head < task_.last; ++head) gather<S::kMostHeads>(head, 0);
      }
    }
  }

  // Where the block's tokens lie, and those of the next one as far as they are needed.
  void find_rows(int start) {
    const int tokens = std::min(kBlock, task_.tokens - start);
    int t = 0;
    for (; t < tokens; ++t) offsets_[t] = offset_of(task_.slots[start + t]);
    for (; t % kStep != 0; ++t) offsets_[t] = offsets_[tokens - 1];
    tokens_ = tokens;
    whole_ = t;
    following_ = std::min(step_, task_.tokens - start - tokens);
    for (int i = 0; i < following_; ++i) offsets_[t + i] = offset_of(task_.slots[start + tokens + i]);
  }

  std::size_t offset_of(Slot slot) const { return static_cast<std::size_t>(slot) * source_.slot_stride; }

  // What follows this step: more of the same rows, or at their end some of the others.
  void aim_after(const std::byte* same, const std::byte* other, int other_at, int other_tokens) {
    const int next = at_ + step_;
    if (next < whole_) {
      ahead_.aim(same, offsets_ + next, std::min(step_, whole_ - next));
    } else {
      ahead_.aim(other, offsets_ + other_at, std::min(step_, other_tokens));
    }
  }

  Step step_of(const std::byte* rows, int kv_head, int heads) {
    return {rows + static_cast<std::size_t>(kv_head) * source_.head_stride,
            offsets_ + at_,
            at_,
            std::min(step_, whole_ - at_),
            dim_,
            (step_fetches_ * heads + group_ - 1) / group_,  // the query heads of a KV head share the fetching
            ahead_};
  }

  // Each of these four goes over a KV head's query heads from number `from` on, as many together as can be.

  template <int N>
  void pack(int kv_head, int from) {
    for (; from + N <= group_; from += N) {
      const E* q = reinterpret_cast<const E*>(task_.q) + (kv_head * group_ + from) * dim_;
      Dot::template pack<N>(q, dim_, queries(kv_head, from));
    }
    if constexpr (N > 1) pack<N / 2>(kv_head, from);
  }

  template <int N>
  void score(int kv_head, int from) {
    for (; from + N <= group_; from += N) {
      Dot::template scores<N>(step_of(source_.k, kv_head, N), queries(kv_head, from), weights(kv_head, from));
    }
    if constexpr (N > 1) score<N / 2>(kv_head, from);
  }

  template <int N>
  void weigh(int kv_head, int from) {
    for (; from + N <= group_; from += N) {
      weigh_some<N>(weights(kv_head, from), task_.partials + kv_head * group_ + from, decays(kv_head, from));
    }
    if constexpr (N > 1) weigh<N / 2>(kv_head, from);
  }

  template <int N>
  void gather(int kv_head, int from) {
    for (; from + N <= group_; from += N) {
      // Only a block's first step meets sums that were made under another largest score.
      const Before before{fresh_ && at_ == 0, at_ == 0 ? decays(kv_head, from) : nullptr};
      const std::size_t row = static_cast<std::size_t>((kv_head * group_ + from) * padded(dim_));
      Sum::template add<N>(step_of(source_.v, kv_head, N), weights(kv_head, from), before, task_.rows + row);
    }
    if constexpr (N > 1) gather<N / 2>(kv_head, from);
  }

  // Scores to softmax weights, relative to the largest score so far; and by how much what has been summed
  // under the previous largest score shrinks.
  template <int N>
  [[gnu::noinline]] void weigh_some(float* scores, Partial* partials, float* decay) {
    constexpr int kEach = kTogether<S, N>;
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    const int end = (whole_ * N + S::kWidth - 1) / S::kWidth * S::kWidth;
    silence_rest<N>(scores, end);
    alignas(64) float lanes[S::kWidth];
    for (int i = 0; i < S::kWidth; ++i) lanes[i] = fresh_ ? kNone : partials[i / kEach].max;
    const Vec before = S::load(lanes);
    Vec max = before;
    for (int i = 0; i < end; i += S::kWidth) {
      const Vec score = finished(S::load(scores + i));
      S::store(scores + i, score);
      max = S::max(max, score);
    }
    max = S::template max_each<kEach>(max);
    if (source_.softcap != 0) silence_rest<N>(scores, end);  // capped, they would be heard again
    Vec sum = S::zero();
    for (int i = 0; i < end; i += S::kWidth) {
      const Vec weight = exp_negative<S>(S::sub(S::load(scores + i), max));
      sum = S::add(sum, weight);
      Sum::keep(scores, i, weight);
    }
    alignas(64) float sums[S::kWidth];
    alignas(64) float shrink[S::kWidth];
    S::store(lanes, max);
    S::store(sums, S::template sum_each<kEach>(sum));
    S::store(shrink, exp_negative<S>(S::sub(before, max)));
    for (int n = 0; n < N; ++n) {
      decay[n] = shrink[n * kEach];
      partials[n] = {lanes[n * kEach], (fresh_ ? 0.0f : partials[n].sum * decay[n]) + sums[n * kEach]};
    }
  }

  // Beyond the last token nothing weighs anything.
  template <int N>
  void silence_rest(float* scores, int end) const {
    for (int t = tokens_; t < end / N; ++t) {
      for (int n = 0; n < N; ++n) scores[place_of<S, N>(n, t)] = -std::numeric_limits<float>::infinity();
    }
  }

  Vec finished(Vec product) const {
    const Vec scaled = S::mul(product, S::set1(source_.scale));
    if (source_.softcap == 0) return scaled;
    const Vec cap = S::set1(source_.softcap);
    return S::mul(tanh<S>(S::div(scaled, cap)), cap);
  }

  // The scratch memory holds, of each of the task's query heads, the query, a block's weights and its decay.
  int nth(int kv_head, int from) const { return (kv_head - task_.first) * group_ + from; }
  float* queries(int kv_head, int from) const { return task_.scratch + nth(kv_head, from) * padded(dim_); }
  float* weights(int kv_head, int from) const { return weights_ + nth(kv_head, from) * kBlock; }
  float* decays(int kv_head, int from) const { return decays_ + nth(kv_head, from); }

  const RangeTask& task_;
  const Source source_;
  const int group_;
  const int dim_;
  const int step_;
  const int step_fetches_;  // that the rows of kStep tokens need
  float* const weights_;
  float* const decays_;
  Ahead ahead_;
  bool fresh_ = true;  // no block has been summed
  int tokens_ = 0;     // of the block
  int whole_ = 0;      // the same, to whole steps
  int following_ = 0;  // of the next block, as far as they are needed
  int at_ = 0;         // the step's first token
  std::size_t offsets_[2 * kBlock];
};

}  // namespace
}  // namespace lamina::attention
