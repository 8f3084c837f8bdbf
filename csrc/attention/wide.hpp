#pragma once

#include <algorithm>

#include "attention/kernel.hpp"
#include "attention/kernel_template.hpp"

namespace lamina::attention {
namespace {

template <typename S, bool kHalf, typename E>
typename S::Vec widen(const E* p) {
  if constexpr (kHalf) {
    return S::widen_half(p);
  } else {
    return S::widen(p);
  }
}

// Whether pairs of vectors can be widened as the even and the odd numbers of both, which is half the work.
template <typename S, typename E>
constexpr bool kByTwos = requires(const E* p, typename S::Vec& x) { S::widen_two(p, x, x); };

// Whether four are widened at once, twice in that order, and no fewer.
template <typename S, typename E>
constexpr bool kByFours = requires(const E* p, typename S::Vec (&x)[4]) { S::widen_four(p, x); };

template <typename S>
typename S::Vec load_once(const float* p) {
  if constexpr (requires { S::load_once(p); }) {
    return S::load_once(p);
  } else {
    return S::load(p);
  }
}

// N rows' sums so far, C vectors of each.
template <typename S, int N, int C>
void start(typename S::Vec (&sums)[N][C], const float* rows, int stride, const Before& before) {
  for (int n = 0; n < N; ++n) {
    for (int c = 0; c < C; ++c) {
      sums[n][c] = before.fresh ? S::zero() : S::load(rows + n * stride + c * S::kWidth);
      if (before.decay != nullptr) sums[n][c] = S::mul(sums[n][c], S::set1(before.decay[n]));
    }
  }
}

// Scores, by widening queries and keys to floats. K: what keys are made of.
template <typename S, typename E, typename K = E>
struct WideDot {
  using Vec = typename S::Vec;
  static constexpr int kManyHeadsStep = S::kManyHeadsStep;
  static constexpr bool kFillsUp = false;

  // Query heads to [N][padded(dim)], in the order in which keys are widened.
  template <int N>
  static void pack(const E* q, int dim, float* to, int) {
    for (int n = 0; n < N; ++n, q += dim, to += padded(dim)) {
      int d = 0;
      if constexpr (kByTwos<S, K> || kByFours<S, K>) {
        for (; d + 2 * S::kWidth <= dim; d += 2 * S::kWidth) {
          Vec even;
          Vec odd;
          S::widen_two(q + d, even, odd);
          S::store(to + d, even);
          S::store(to + d + S::kWidth, odd);
        }
      }
      for (; d + S::kWidth <= dim; d += S::kWidth) S::store(to + d, S::widen(q + d));
      if constexpr (S::kWidth > 8) {
        if (d < dim) S::store(to + d, S::widen_half(q + d));
      }
    }
  }

  template <int N>
  [[gnu::noinline]] static void scores(const Step& step, const float* q, float* out) {
    if constexpr (N == 8) {
      scores<4>(step, q, out);
      scores<4>(step, q + 4 * padded(step.dim), out + 4 * kBlock);
    } else {
      constexpr int kEach = std::min(kTogether<S, N>, kStep);
      const int dim = step.dim;
      const int fetches = (step.fetches * kEach + kStep - 1) / kStep;
      for (int t = 0; t < step.tokens; t += kEach) {
        step.ahead.fetch(fetches);
        step.ahead.template soon<kEach>(step.rows, step.offsets + t, step.tokens - t,
                                        dim * static_cast<int>(sizeof(K)));
        const K* k[kEach];
        for (int i = 0; i < kEach; ++i) k[i] = reinterpret_cast<const K*>(step.rows + step.offsets[t + i]);
        Vec sums[N * kEach];
        for (Vec& sum : sums) sum = S::zero();
        if constexpr (kByFours<S, K>) {
          for (int d = 0; d < dim; d += 4 * S::kWidth) add_four<N, kEach>(q + d, padded(dim), k, d, sums);
        } else {
          int d = 0;
          if constexpr (kByTwos<S, K>) {
            for (; d + 2 * S::kWidth <= dim; d += 2 * S::kWidth)
              add_two<N, kEach>(q + d, padded(dim), k, d, sums);
          }
          for (; d + S::kWidth <= dim; d += S::kWidth) add<N, kEach, false>(q + d, padded(dim), k, d, sums);
          if constexpr (S::kWidth > 8) {
            if (d < dim) add<N, kEach, true>(q + d, padded(dim), k, d, sums);
          }
        }
        S::store_sums(out + place_of<S, N>(0, step.at + t), kTogether<S, N>, sums);
      }
    }
  }

private:
  template <int N, int kEach, bool kHalf>
  static void add(const float* q, int stride, const K* const (&k)[kEach], int d, Vec (&sums)[N * kEach]) {
    Vec key[kEach];
    for (int i = 0; i < kEach; ++i) key[i] = widen<S, kHalf>(k[i] + d);
    multiply<N, kEach>(q, stride, key, sums);
  }

  template <int N, int kEach>
  static void add_two(const float* q, int stride, const K* const (&k)[kEach], int d, Vec (&sums)[N * kEach]) {
    Vec even[kEach];
    Vec odd[kEach];
    for (int i = 0; i < kEach; ++i) S::widen_two(k[i] + d, even[i], odd[i]);
    multiply<N, kEach>(q, stride, even, sums);
    multiply<N, kEach>(q + S::kWidth, stride, odd, sums);
  }

  template <int N, int kEach>
  static void add_four(const float* q, int stride, const K* const (&k)[kEach], int d,
                       Vec (&sums)[N * kEach]) {
    for (int i = 0; i < kEach; ++i) {
      Vec key[4];
      S::widen_four(k[i] + d, key);
      for (int n = 0; n < N; ++n) {
        for (int c = 0; c < 4; ++c) {
          Vec& sum = sums[n * kEach + i];
          sum = S::fma(S::load(q + n * stride + c * S::kWidth), key[c], sum);
        }
      }
    }
  }

  template <int N, int kEach>
  static void multiply(const float* q, int stride, const Vec (&key)[kEach], Vec (&sums)[N * kEach]) {
    for (int n = 0; n < N; ++n) {
      const Vec query = load_once<S>(q + n * stride);
      for (int i = 0; i < kEach; ++i) sums[n * kEach + i] = S::fma(query, key[i], sums[n * kEach + i]);
    }
  }
};

// Sums of weighted values, by widening the values to floats.
template <typename S, typename E>
struct WideSum {
  using Vec = typename S::Vec;

  // Weights stay where the scores were.
  static void keep(float* scores, int i, Vec weight) { S::store(scores + i, weight); }

  // Adds a step's weighted values to the rows of N query heads.
  template <int N>
  static void add(const Step& step, const float* weights, const Before& before, float* rows) {
    constexpr int kMost = S::template columns<N>();
    const int dim = step.dim;
    int d = 0;
    for (; d + kMost * S::kWidth <= dim; d += kMost * S::kWidth) {
      columns<N, kMost, false>(step, d, weights, before, rows);
    }
    if constexpr (!kByFours<S, E>) {
      if (kMost > 2 && d + 2 * S::kWidth <= dim) {
        columns<N, 2, false>(step, d, weights, before, rows);
        d += 2 * S::kWidth;
      }
      if (d + S::kWidth <= dim) {
        columns<N, 1, false>(step, d, weights, before, rows);
        d += S::kWidth;
      }
      if constexpr (S::kWidth > 8) {
        if (d < dim) columns<N, 1, true>(step, d, weights, before, rows);
      }
    }
  }

private:
  // C vectors of each row, from number d on, which stay in registers meanwhile.
  template <int N, int C, bool kHalf>
  [[gnu::noinline]] static void columns(const Step& step, int d, const float* weights, const Before& before,
                                        float* rows) {
    constexpr int kBytes = C * S::kWidth * static_cast<int>(sizeof(E));
    constexpr bool kTwos =
        (kByTwos<S, E> || kByFours<S, E>) && C % 2 == 0;  // sums are in that order meanwhile
    const int stride = padded(step.dim);
    const int fetches = (step.fetches * C * S::kWidth + step.dim - 1) / step.dim;
    rows += d;
    Vec sums[N][C];
    start<S>(sums, rows, stride, before);
    if constexpr (kTwos) each_two<N, C>(sums, S::part);
    const std::byte* values = step.rows + static_cast<std::size_t>(d) * sizeof(E);
    for (int from = 0; from < step.tokens; from += kStep) {
      const float* weight_of = weights + place_of<S, N>(0, step.at + from);
      step.ahead.fetch(fetches);
      step.ahead.template soon<kStep>(values, step.offsets + from, step.tokens - from, kBytes);
#pragma GCC unroll 8
      for (int t = 0; t < kStep; ++t) {
        const E* row = reinterpret_cast<const E*>(values + step.offsets[from + t]);
        Vec value[C];
        if constexpr (kByFours<S, E>) {
          S::widen_four(row, value);
        } else if constexpr (kTwos) {
          for (int c = 0; c < C; c += 2) S::widen_two(row + c * S::kWidth, value[c], value[c + 1]);
        } else {
          for (int c = 0; c < C; ++c) value[c] = widen<S, kHalf>(row + c * S::kWidth);
        }
        for (int n = 0; n < N; ++n) {
          const Vec weight = S::set1(weight_of[place_of<S, N>(n, t)]);
          for (int c = 0; c < C; ++c) sums[n][c] = S::fma(weight, value[c], sums[n][c]);
        }
      }
    }
    if constexpr (kTwos) each_two<N, C>(sums, S::join);
    for (int n = 0; n < N; ++n) {
      for (int c = 0; c < C; ++c) S::store(rows + n * stride + c * S::kWidth, sums[n][c]);
    }
  }

  template <int N, int C, typename F>
  [[gnu::always_inline]] static inline void each_two(Vec (&sums)[N][C], F order) {
    for (int n = 0; n < N; ++n) {
      for (int c = 0; c < C; c += 2) order(sums[n][c], sums[n][c + 1]);
    }
  }
};

// Keys and values of K widened as they are read, instead of to memory first.
template <typename S, typename E, typename K>
void attend_narrow(const RangeTask& task) {
  RangeTask as_it_lies = task;
  as_it_lies.widen = nullptr;
  RangeKernel<S, E, WideDot<S, E, K>, WideSum<S, K>>::attend(as_it_lies);
}

// What an instruction set without products of its own has for every dtype: all of it in floats, as wide as S.
template <typename S, typename E>
Kernels wide_kernels_of() {
  return {&RangeKernel<S, E, WideDot<S, E>, WideSum<S, E>>::attend, &MergeKernel<S, E>::merge, &read<S>};
}

template <typename S>
Kernels wide_kernels(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return wide_kernels_of<S, BFloat16>();
    case DType::kFloat16:
      return wide_kernels_of<S, Float16>();
    default:
      return wide_kernels_of<S, float>();
  }
}

}  // namespace
}  // namespace lamina::attention
