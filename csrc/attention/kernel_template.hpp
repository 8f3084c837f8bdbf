#pragma once

// The attention kernel, written once for every width of vector. Each kernel_*.cpp includes it where the
// compiler may use that file's instructions, which is why everything here and in the headers next to it is in
// unnamed namespaces: a function shared with another file could be linked in the version for a better
// processor.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "attention/kernel.hpp"

namespace lamina::attention {
namespace {

// e^x = power * (1 + tail), power a power of two: kept apart so that e^x - 1 need not cancel.
template <typename S>
struct Exponential {
  typename S::Vec power;
  typename S::Vec tail;
};

// For x from -87 to 88. The polynomial is Cephes' expf; the result is within 1 unit in the last place or so.
template <typename S>
Exponential<S> split_exp(typename S::Vec x) {
  using Vec = typename S::Vec;
  const Vec n = S::round(S::mul(x, S::set1(1.44269504f)));
  const Vec r = S::fma(n, S::set1(2.12194440e-4f), S::fma(n, S::set1(-0.693359375f), x));
  Vec p = S::set1(1.9875691500e-4f);
  p = S::fma(p, r, S::set1(1.3981999507e-3f));
  p = S::fma(p, r, S::set1(8.3334519073e-3f));
  p = S::fma(p, r, S::set1(4.1665795894e-2f));
  p = S::fma(p, r, S::set1(1.6666665459e-1f));
  p = S::fma(p, r, S::set1(5.0000001201e-1f));
  return {S::power_of_two(n), S::fma(S::mul(r, r), p, r)};
}

// e^x for x <= 0, and 0 where that is no normal number: a share of 1e-38 of the largest weight.
template <typename S>
typename S::Vec exp_negative(typename S::Vec x) {
  constexpr float kLeast = -87.0f;
  const auto e = split_exp<S>(S::max(S::set1(kLeast), x));
  return S::keep_from(x, kLeast, S::fma(e.power, e.tail, e.power));
}

// tanh x = (e^2x - 1) / (e^2x + 1); above 20 it is 1 to the last bit of a float.
template <typename S>
typename S::Vec tanh(typename S::Vec x) {
  using Vec = typename S::Vec;
  const Vec twice = S::add(x, x);
  const auto e = split_exp<S>(S::max(S::set1(-40.0f), S::min(S::set1(40.0f), twice)));
  const Vec less_one = S::fma(e.power, e.tail, S::sub(e.power, S::set1(1.0f)));
  return S::div(less_one, S::add(less_one, S::set1(2.0f)));
}

// Fetches rows that will be needed soon from memory into the cache, in the order in which they lie there, a
// few cache lines between any two steps of the arithmetic: all at once they would hold up the loads that the
// arithmetic waits for.
class Ahead {
public:
  static constexpr int kBytes = 256;              // what one fetch is about
  static constexpr std::size_t kLongRow = 2048;   // for Prefetch::kShort
  static constexpr std::size_t kLongSlot = 2048;  // for Prefetch::kSlots

  // in_order: all heads' rows of a token are read before the next token's.
  Ahead(const RangeTask& task, bool in_order) {
    const std::size_t row = static_cast<std::size_t>(task.shape.head_dim) * task.number_bytes;
    const int heads = task.last - task.first;
    const bool side_by_side = task.source->head_stride == row;
    pieces_ = side_by_side ? 1 : heads;
    piece_bytes_ = side_by_side ? static_cast<std::size_t>(heads) * row : row;
    piece_stride_ = task.source->head_stride;
    first_ = static_cast<std::size_t>(task.first) * task.source->head_stride;
    near_ = task.prefetch == Prefetch::kL1;
    both_ = task.prefetch == Prefetch::kBoth || task.prefetch == Prefetch::kShort;
    if (task.prefetch == Prefetch::kNone ||
        (task.prefetch == Prefetch::kShort && in_order && piece_bytes_ >= kLongRow)) {
      none_ = true;
      both_ = false;
    }
    if (task.widen != nullptr) both_ = false;  // what a step reads are rows that were widened just now
    by_slots_ = task.prefetch == Prefetch::kSlots && task.widen == nullptr && side_by_side &&
                task.source->v - task.source->k == static_cast<std::ptrdiff_t>(piece_bytes_) &&
                2 * piece_bytes_ <= kLongSlot && one_run(task);
    if (by_slots_) piece_bytes_ *= 2;
  }

  // Whether a token's keys are fetched with its values, which lie behind them.
  bool by_slots() const { return by_slots_; }

  // From now on, these tokens' rows.
  void aim(const std::byte* base, const std::size_t* offsets, int tokens) {
    base_ = base + first_;
    offset_ = offsets_ = offsets;
    stop_ = offsets + tokens;
    pieces_left_ = pieces_;
    line_ = tokens > 0 && !none_ ? base_ + *offset_ : nullptr;
    end_ = line_ + piece_bytes_;
  }

  // Always inlined: in the compiler's eyes a function that only fetches ahead has no effect, and its calls
  // go; and a call of another function would empty the vector registers.
  [[gnu::always_inline]] inline void fetch(int times) {
    for (; times > 0 && line_ != nullptr; --times) {
      near_ ? touch<3>(line_) : touch<2>(line_);
      line_ += kBytes;
      if (line_ < end_) continue;
      if (++offset_ == stop_) {
        if (--pieces_left_ == 0) {
          line_ = nullptr;
          return;
        }
        base_ += piece_stride_;
        offset_ = offsets_;
      }
      line_ = base_ + *offset_;
      end_ = line_ + piece_bytes_;
    }
  }

  // What is read soon, a step's rows at places of their own, into the first level if it is but in the second.
  template <int kRows>
  [[gnu::always_inline]] inline void soon(const std::byte* rows, const std::size_t* offsets, int left,
                                          int bytes) const {
    if (!both_ || left < 2 * kRows) return;
    for (int row = kRows; row < 2 * kRows; ++row) {
      for (int at = 0; at < bytes; at += 64) __builtin_prefetch(rows + offsets[row] + at);
    }
  }

private:
  // Whether most tokens are adjacent to their neighbours, as in a prompt.
  static bool one_run(const RangeTask& task) {
    int tokens = 0;
    for (int at = 0; at + kBlock <= task.tokens; at += kBlock) {
      if (task.slots[at + kBlock - 1] - task.slots[at] == kBlock - 1) tokens += kBlock;
    }
    return 2 * tokens > task.tokens;
  }

  // Locality 3 is the first-level cache, 2 the second.
  template <int kLocality>
  [[gnu::always_inline]] static inline void touch(const std::byte* at) {
    __builtin_prefetch(at, 0, kLocality);
    __builtin_prefetch(at + 64, 0, kLocality);
    __builtin_prefetch(at + 128, 0, kLocality);
    __builtin_prefetch(at + 192, 0, kLocality);
  }

  bool none_ = false;
  bool near_;
  bool both_;
  bool by_slots_;
  const std::byte* line_ = nullptr;  // null: nothing left
  const std::byte* end_ = nullptr;
  const std::byte* base_ = nullptr;
  const std::size_t* offset_ = nullptr;
  const std::size_t* offsets_ = nullptr;
  const std::size_t* stop_ = nullptr;
  int pieces_left_ = 0;
  int pieces_;
  std::size_t piece_bytes_;
  std::size_t piece_stride_;
  std::size_t first_;
};

// Some tokens of one KV head, and what to fetch meanwhile.
struct Step {
  const std::byte* rows;
  const std::size_t* offsets;  // of the tokens' rows; a multiple of kStep, the last token repeated
  int at;                      // of the block's tokens, the first
  int tokens;
  int dim;
  int fetches;  // for each kStep tokens
  int heads;    // query heads
  Ahead& ahead;
  std::byte* room;  // for a copy of the rows
  bool again;       // other query heads have just read the same rows
};

// What becomes of the sums that are there already.
struct Before {
  bool fresh;          // there are none
  const float* decay;  // for each query head, by how much they shrink; null: not at all
};

// In every lane what kJoin makes of the K neighbours that it is among.
template <typename S, int K, auto kJoin>
typename S::Vec join_each(typename S::Vec x) {
  if constexpr (K > 1) x = kJoin(x, S::template swap<2>(x));
  if constexpr (K > 2) x = kJoin(x, S::template swap<4>(x));
  if constexpr (K > 4) x = kJoin(x, S::template swap<8>(x));
  if constexpr (K > 8) x = kJoin(x, S::template swap<16>(x));
  return x;
}

// Tokens are worked on in multiples of this many.
inline constexpr int kStep = 4;

// Keys, and then values, that a step reads while it fetches as many.
inline constexpr std::size_t kStepBytes = 32 << 10;

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
        value_dim_(task.shape.value_dim()),
        step_(tokens_of_step(task)),
        step_fetches_(fetches_of_step()),
        weights_(task.scratch + (task.last - task.first) * group_ * padded(dim_)),
        decays_(weights_ + (task.last - task.first) * filled_up(group_) * kBlock),
        room_(line_from(decays_ + (task.last - task.first) * group_)),
        wide_(room_ + sizeof(float) * static_cast<std::size_t>(kBlock / 4 * padded(dim_))),
        ahead_(task, step_ < kBlock) {
    if (task.widen == nullptr) return;
    for (std::size_t t = 0; t < kBlock; ++t) wide_offsets_[t] = t * wide_row();
  }

  // How many of a head's tokens are worked on before the next head. Few, and all heads' rows are read side by
  // side, nearly as they lie in memory; but each head's sums leave the registers as often, which costs most
  // where a KV head has many query heads. Found by measuring; no result depends on it.
  static int tokens_of_step(const RangeTask& task) {
    if (task.shape.group() >= (Dot::kFillsUp ? 3 : 4)) return Dot::kManyHeadsStep;
    const std::size_t row = static_cast<std::size_t>(task.last - task.first) *
                            static_cast<std::size_t>(task.shape.head_dim) * task.number_bytes;
    return std::clamp(static_cast<int>(kStepBytes / row) / kStep * kStep, kStep, kBlock);
  }

  static std::byte* line_from(float* end) {
    const auto at = reinterpret_cast<std::uintptr_t>(end);
    return reinterpret_cast<std::byte*>((at + kLineBytes - 1) / kLineBytes * kLineBytes);
  }

  int fetches_of_step() const {
    return (dim_ * static_cast<int>(task_.number_bytes) * kStep + Ahead::kBytes - 1) / Ahead::kBytes;
  }

  void run() {
    for (int head = task_.first; head < task_.last; ++head) pack(head);
    for (int start = 0; start < task_.tokens; start += kBlock) {
      fresh_ = start == 0;
      find_rows(start);
      if (ahead_.by_slots()) aim_at_slots(!fresh_);
      for (at_ = 0; at_ < whole_; at_ += step_) {
        aim_after(source_.k, source_.v, 0, whole_);
        for (int head = task_.first; head < task_.last; ++head) score(head);
      }
      for (int head = task_.first; head < task_.last; ++head) weigh(head);
      if (ahead_.by_slots() && fresh_) aim_at_slots(true);
      for (at_ = 0; at_ < whole_; at_ += step_) {
        aim_after(source_.v, source_.k, whole_, following_);
        for (int head = task_.first; head < task_.last; ++head) gather(head);
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
    following_ = std::min(ahead_.by_slots() ? kBlock : step_, task_.tokens - start - tokens);
    for (int i = 0; i < following_; ++i) offsets_[t + i] = offset_of(task_.slots[start + tokens + i]);
    if (source_.k_scales == nullptr || task_.prefetch == Prefetch::kNone) return;
    for (int i = start + tokens; i < std::min(start + tokens + kBlock, task_.tokens); ++i) {
      const std::size_t at =
          offset_of(task_.slots[i]) + sizeof(float) * static_cast<std::size_t>(task_.first);
      __builtin_prefetch(source_.k_scales + at);
      __builtin_prefetch(source_.v_scales + at);
    }
  }

  std::size_t offset_of(Slot slot) const { return static_cast<std::size_t>(slot) * source_.slot_stride; }

  // By slots: the next block's, or the first block's own, of which each then has half the time.
  void aim_at_slots(bool next) {
    step_fetches_ = fetches_of_step() * (fresh_ ? 2 : 1);
    if (next) {
      ahead_.aim(source_.k, offsets_ + whole_, following_);
    } else {
      ahead_.aim(source_.k, offsets_, tokens_);
    }
  }

  // What follows this step: more of the same rows, or at their end some of the others.
  void aim_after(const std::byte* same, const std::byte* other, int other_at, int other_tokens) {
    if (ahead_.by_slots()) return;
    const int next = at_ + step_;
    if (next < whole_) {
      ahead_.aim(same, offsets_ + next, std::min(step_, whole_ - next));
    } else {
      ahead_.aim(other, offsets_ + other_at, std::min(step_, other_tokens));
    }
  }

  struct Rows {
    const std::byte* at;
    const std::size_t* offsets;
  };

  // A KV head's rows for a step: as they lie, or copies in the worker's dtype.
  Rows rows_of(const std::byte* rows, int dim, int kv_head) {
    rows += static_cast<std::size_t>(kv_head) * source_.head_stride;
    if (task_.widen == nullptr) return {rows, offsets_ + at_};
    task_.widen({rows, offsets_ + at_, tokens_of_this_step(), dim, wide_row()}, wide_);
    return {wide_, wide_offsets_};
  }

  int tokens_of_this_step() const { return std::min(step_, whole_ - at_); }
  std::size_t wide_row() const { return static_cast<std::size_t>(dim_) * sizeof(E); }

  Step step_of(const Rows& rows, int dim, int from, int heads) {
    return {rows.at,
            rows.offsets,
            at_,
            tokens_of_this_step(),
            dim,
            (step_fetches_ * heads + group_ - 1) / group_,  // the query heads of a KV head share the fetching
            heads,
            ahead_,
            room_,
            from > 0};
  }

  // Goes over a KV head's query heads, as many together as can be: `work` gets a place for N and
  // the first one and how many there are, which is less than N only where Dot fills up.
  template <int N, typename Work>
  void each(Work work, int from = 0) const {
    constexpr bool kFillsUp = Dot::kFillsUp && N >= 4;
    for (; from + N <= group_ || (kFillsUp && from + N / 2 < group_); from += N) {
      work.template operator()<N>(from, std::min(N, group_ - from));
    }
    if constexpr (N > 1) {
      if (from < group_) each<N / 2>(work, from);
    }
  }

  void pack(int kv_head) {
    each<S::kMostHeads>([&]<int N>(int from, int heads) {
      const E* q = reinterpret_cast<const E*>(task_.q) + (kv_head * group_ + from) * dim_;
      Dot::template pack<N>(q, dim_, queries(kv_head, from), heads);
    });
  }

  void score(int kv_head) {
    const Rows rows = rows_of(source_.k, dim_, kv_head);
    each<S::kMostHeads>([&]<int N>(int from, int heads) {
      Dot::template scores<N>(step_of(rows, dim_, from, heads), queries(kv_head, from),
                              weights(kv_head, from));
    });
  }

  void weigh(int kv_head) {
    find_scales(source_.k_scales, kv_head, k_scales_);
    find_scales(source_.v_scales, kv_head, v_scales_);
    each<S::kMostHeads>([&]<int N>(int from, int heads) {
      constexpr int kSome = std::min(N, 4);
      for (const int end = from + heads; from < end; from += kSome) {
        weigh_some<kSome>(weights(kv_head, from), task_.partials + kv_head * group_ + from,
                          decays(kv_head, from), std::min(kSome, end - from));
      }
    });
  }

  void gather(int kv_head) {
    const Rows rows = rows_of(source_.v, value_dim_, kv_head);
    each<S::kMostHeads>([&]<int N>(int from, int heads) {
      // Only a block's first step meets sums that were made under another largest score.
      const Before before{fresh_ && at_ == 0, at_ == 0 ? decays(kv_head, from) : nullptr};
      const std::size_t row = static_cast<std::size_t>((kv_head * group_ + from) * padded(value_dim_));
      Sum::template add<N>(step_of(rows, value_dim_, from, heads), weights(kv_head, from), before,
                           task_.rows + row);
    });
  }

  // Of the block's tokens; 1 where there is none, since what is no number there must not come to be one.
  void find_scales(const std::byte* scales, int kv_head, float* to) const {
    if (scales == nullptr) return;
    scales += sizeof(float) * static_cast<std::size_t>(kv_head);
    for (int t = 0; t < tokens_; ++t) std::memcpy(to + t, scales + offsets_[t], sizeof(float));
    std::fill(to + tokens_, to + kBlock, 1.0f);
  }

  // Scores or weights of N heads, from the i-th on, times what their tokens are scaled by.
  template <int N>
  Vec scaled(Vec x, const float* scales, int i) const {
    if (source_.k_scales == nullptr) return x;
    return S::mul(x, S::template repeat<kTogether<S, N>>(scales + i / N));
  }

  // Scores to softmax weights, relative to the largest score so far; and by how much what has been summed
  // under the previous largest score shrinks.
  template <int N>
  [[gnu::noinline]] void weigh_some(float* scores, Partial* partials, float* decay, int heads) {
    constexpr int kEach = kTogether<S, N>;
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    const int end = (whole_ * N + S::kWidth - 1) / S::kWidth * S::kWidth;
    silence_rest<N>(scores, end);
    alignas(64) float lanes[S::kWidth];
    for (int i = 0; i < S::kWidth; ++i) {
      lanes[i] = fresh_ || i / kEach >= heads ? kNone : partials[i / kEach].max;
    }
    const Vec before = S::load(lanes);
    Vec max = before;
    for (int i = 0; i < end; i += S::kWidth) {
      const Vec score = finished(scaled<N>(S::load(scores + i), k_scales_, i));
      S::store(scores + i, score);
      max = S::max(max, score);
    }
    max = join_each<S, kEach, S::max>(max);
    if (source_.softcap != 0) silence_rest<N>(scores, end);  // the cap would make them finite again
    Vec sum = S::zero();
    for (int i = 0; i < end; i += S::kWidth) {
      const Vec weight = exp_negative<S>(S::sub(S::load(scores + i), max));
      sum = S::add(sum, weight);
      Sum::keep(scores, i, scaled<N>(weight, v_scales_, i));
    }
    alignas(64) float sums[S::kWidth];
    alignas(64) float shrink[S::kWidth];
    S::store(lanes, max);
    S::store(sums, join_each<S, kEach, S::add>(sum));
    S::store(shrink, exp_negative<S>(S::sub(before, max)));
    for (int n = 0; n < heads; ++n) {
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
  float* weights(int kv_head, int from) const {
    return weights_ + ((kv_head - task_.first) * filled_up(group_) + from) * kBlock;
  }
  float* decays(int kv_head, int from) const { return decays_ + nth(kv_head, from); }

  const RangeTask& task_;
  const Source source_;
  const int group_;
  const int dim_;
  const int value_dim_;
  const int step_;
  int step_fetches_;  // that the rows of kStep tokens need
  float* const weights_;
  float* const decays_;
  std::byte* const room_;
  std::byte* const wide_;
  Ahead ahead_;
  bool fresh_ = true;  // no block has been summed
  int tokens_ = 0;     // of the block
  int whole_ = 0;      // the same, to whole steps
  int following_ = 0;  // of the next block, as far as they are needed
  int at_ = 0;         // the step's first token
  std::size_t offsets_[2 * kBlock];
  std::size_t wide_offsets_[kBlock];
  alignas(64) float k_scales_[kBlock];
  alignas(64) float v_scales_[kBlock];
};

// Reads memory into registers, in four chains so that no addition waits for another.
template <typename S>
void read(const std::byte* at, std::size_t size) {
  using Vec = typename S::Vec;
  constexpr std::size_t kVec = S::kWidth * sizeof(float);
  Vec sums[4] = {S::zero(), S::zero(), S::zero(), S::zero()};
  std::size_t i = 0;
  for (; i + 4 * kVec <= size; i += 4 * kVec) {
    for (std::size_t c = 0; c < 4; ++c)
      sums[c] = S::add(sums[c], S::load(reinterpret_cast<const float*>(at + i + c * kVec)));
  }
  for (; i + kVec <= size; i += kVec)
    sums[0] = S::add(sums[0], S::load(reinterpret_cast<const float*>(at + i)));
  // Keeps the compiler from removing the sum as unused.
  const Vec sum = S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3]));
  asm volatile("" : : "r"(&sum) : "memory");
}

// Joins the partials of a request's ranges, always in the order of its tokens.
template <typename S, typename E>
class MergeKernel {
  using Vec = typename S::Vec;

public:
  static void merge(const MergeTask& task) {
    for (int head = task.first; head < task.last; ++head) one_head(task, head);
  }

private:
  static void one_head(const MergeTask& task, int head) {
    const int dim = task.shape.value_dim();
    const std::size_t heads = static_cast<std::size_t>(task.shape.heads);
    const Partial* partial = task.partials + head;
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    const float sink = task.sinks == nullptr ? kNone : task.sinks[head];
    float max = sink;
    for (int r = 0; r < task.ranges; ++r) max = std::max(max, partial[r * heads].max);
    float sum = sink == kNone ? 0.0f : std::exp(sink - max);
    alignas(64) float row[kMaxHeadDim];
    std::fill_n(row, padded(dim), 0.0f);
    for (int r = 0; r < task.ranges; ++r) {
      const float weight = std::exp(partial[r * heads].max - max);
      sum += weight * partial[r * heads].sum;
      const float* from = task.rows + (r * heads + head) * padded(dim);
      for (int d = 0; d < dim; d += S::kWidth) {
        S::store(row + d, S::fma(S::set1(weight), S::load(from + d), S::load(row + d)));
      }
    }
    const float normal = task.ranges > 0 ? 1.0f / sum : 0.0f;
    for (int d = 0; d < dim; d += S::kWidth) S::store(row + d, S::mul(S::set1(normal), S::load(row + d)));
    const std::size_t at = static_cast<std::size_t>(head) * dim;
    if (task.out != nullptr) narrow_row(row, dim, reinterpret_cast<E*>(task.out) + at);
    if (task.out_f32 != nullptr) std::copy_n(row, dim, task.out_f32 + at);
    if (task.lse != nullptr) task.lse[head] = max + std::log(sum);
  }

  static void narrow_row(const float* from, int dim, E* to) {
    int d = 0;
    for (; d + S::kWidth <= dim; d += S::kWidth) S::narrow(to + d, S::load(from + d));
    if constexpr (S::kWidth > 8) {
      if (d < dim) S::narrow_half(to + d, S::load(from + d));
    }
  }
};

}  // namespace
}  // namespace lamina::attention
