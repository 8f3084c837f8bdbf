#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "attention/kernel.hpp"
#include "attention/kernel_template.hpp"
#include "attention/simd_avx512.hpp"
#include "attention/wide.hpp"

namespace lamina::attention {
namespace {

// Scores, by multiplying pairs of bfloat16 and adding the exact products to floats.
//
// A piece of a key, 64 / N bytes, is repeated N times in a vector and multiplied with the same piece of N
// query heads, so that at the end no sum is over more than the 16 / N lanes of one head.
struct PairDot {
  using S = Avx512Simd;
  using Vec = S::Vec;
  static constexpr int kManyHeadsStep = kBlock;
  static constexpr bool kFillsUp = false;

  // Query heads to [piece][N] of pieces, zero beyond dim.
  template <int N>
  static void pack(const BFloat16* q, int dim, float* to, int = N) {
    if constexpr (N == 8) {
      pack<4>(q, dim, to);
      return pack<4>(q + 4 * dim, dim, to + 4 * padded(dim));
    }
    constexpr int kPiece = 32 / N;
    BFloat16* out = reinterpret_cast<BFloat16*>(to);
    for (int d = 0; d < dim; d += kPiece) {
      for (int n = 0; n < N; ++n, out += kPiece) {
        const int some = std::min(kPiece, dim - d);
        std::memcpy(out, q + n * dim + d, static_cast<std::size_t>(some) * 2);
        std::memset(static_cast<void*>(out + some), 0, static_cast<std::size_t>(kPiece - some) * 2);
      }
    }
  }

  template <int N>
  [[gnu::noinline]] static void scores(const Step& step, const float* q, float* out) {
    constexpr int kHeads = std::min(N, 4);  // 8 heads are two times 4, which share the repeated keys
    for (int t = 0; t < step.tokens; t += kStep) {
      some<kHeads, N / kHeads>(step, t, q, out + place_of<S, kHeads>(0, step.at + t));
    }
  }

private:
  // Scores of M times N heads and kStep tokens. Each is summed in two, so that enough additions need not wait
  // for each other.
  template <int N, int M>
  [[gnu::always_inline]] static inline void some(const Step& step, int t, const float* q, float* out) {
    constexpr int kPiece = 32 / N;
    const int dim = step.dim;
    const int next = N * padded(dim);  // to the next N heads' queries
    const std::byte* k[kStep];
    for (int i = 0; i < kStep; ++i) k[i] = step.rows + step.offsets[t + i];
    Vec even[M][kStep];
    Vec odd[M][kStep];
    for (int m = 0; m < M; ++m) {
      for (int i = 0; i < kStep; ++i) even[m][i] = odd[m][i] = S::zero();
    }
    const int whole = dim / kPiece * kPiece;
    const int each = (step.fetches * 4 * kPiece + dim - 1) / dim;
    int d = 0;
    for (; d + 4 * kPiece <= whole; d += 4 * kPiece) {
      step.ahead.fetch(each);
      multiply<N, M>(q, next, k, d, even);
      multiply<N, M>(q, next, k, d + kPiece, odd);
      multiply<N, M>(q, next, k, d + 2 * kPiece, even);
      multiply<N, M>(q, next, k, d + 3 * kPiece, odd);
    }
    for (; d < whole; d += kPiece) multiply<N, M>(q, next, k, d, even);
    if constexpr (N < 4) {
      if (d < dim) {
        const __m512bh query = (__m512bh)_mm512_loadu_ps(q + d * N / 2);
        for (int i = 0; i < kStep; ++i)
          odd[0][i] = _mm512_dpbf16_ps(odd[0][i], query, rest<N>(k[i] + d * 2, dim - d));
      }
    }
    for (int m = 0; m < M; ++m) {
      for (int i = 0; i < kStep; ++i) even[m][i] = S::add(even[m][i], odd[m][i]);
      const Vec folded = S::fold<kStep>(even[m]);  // [16 / kStep][kStep], of each head 4 / N sums
      if constexpr (N == 4) {
        S::store(out + m * 4 * kBlock, folded);
      } else if constexpr (N == 2) {
        const Vec sums = S::sum_across<8>(folded);
        _mm_storeu_ps(out, _mm512_castps512_ps128(sums));
        _mm_storeu_ps(out + kTogether<S, 2>, _mm512_extractf32x4_ps(sums, 2));
      } else {
        _mm_storeu_ps(out, _mm512_castps512_ps128(S::sum_across<8>(S::sum_across<16>(folded))));
      }
    }
  }

  template <int N, int M>
  [[gnu::always_inline]] static inline void multiply(const float* q, int next,
                                                     const std::byte* const (&k)[kStep], int d,
                                                     Vec (&sums)[M][kStep]) {
    __m512bh query[M];
    for (int m = 0; m < M; ++m) query[m] = (__m512bh)_mm512_loadu_ps(q + m * next + d * N / 2);
    for (int i = 0; i < kStep; ++i) {
      const __m512bh key = repeated<N>(k[i] + d * 2);
      for (int m = 0; m < M; ++m) sums[m][i] = _mm512_dpbf16_ps(sums[m][i], query[m], key);
    }
  }

  template <int N>
  static __m512bh repeated(const std::byte* p) {
    if constexpr (N == 1) return (__m512bh)_mm512_loadu_si512(p);
    if constexpr (N == 2) {
      return (__m512bh)_mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    if constexpr (N == 4) {
      return (__m512bh)_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
  }

  // The last piece of a key, of which there are only so many numbers.
  template <int N>
  static __m512bh rest(const std::byte* p, int numbers) {
    const __m512i x = _mm512_maskz_loadu_epi16((1u << numbers) - 1, p);
    if constexpr (N == 1) return (__m512bh)x;
    return (__m512bh)_mm512_broadcast_i64x4(_mm512_castsi512_si256(x));
  }
};

// Sums of weighted values, by rounding the weights to bfloat16 and multiplying two tokens at once.
struct PairSum {
  using S = Avx512Simd;
  using Vec = S::Vec;

  // Weights take half the room of the scores, which they replace in order.
  static void keep(float* scores, int i, Vec weight) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(scores + i / 2), (__m256i)_mm512_cvtneps_pbh(weight));
  }
  static constexpr int place_in_weights(int place) {
    constexpr int kFour = 4 * kBlock;  // the scores of 4 heads
    return place / kFour * kFour + place % kFour / 2;
  }

  // As WideSum.
  template <int N>
  static void add(const Step& step, const float* weights, const Before& before, float* rows) {
    int d = 0;
    for (; d + 32 <= step.dim; d += 32) columns<N, 2>(step, d, weights, before, rows);
    for (; d < step.dim; d += 16) columns<N, 1>(step, d, weights, before, rows);
  }

private:
  // C vectors of each row, from number d on, 16 numbers each; of the last one, perhaps only 8.
  template <int N, int C>
  [[gnu::noinline]] static void columns(const Step& step, int d, const float* weights, const Before& before,
                                        float* rows) {
    const int stride = padded(step.dim);
    const int fetches = (step.fetches * C * S::kWidth + step.dim - 1) / step.dim;
    rows += d;
    Vec sums[N][C];
    start<S>(sums, rows, stride, before);
    alignas(64) static constexpr std::uint16_t kLow[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                           37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                           11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i low = _mm512_load_si512(kLow);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    const __mmask32 some = (1u << ((step.dim - d) % 32)) - 1;
    const std::byte* values = step.rows + d * 2;
    for (int from = 0; from < step.tokens; from += kStep) {
      const float* pairs = weights + place_of<S, N>(0, step.at + from) / 2;
      step.ahead.fetch(fetches);
#pragma GCC unroll 4
      for (int t = 0; t < kStep; t += 2) {
        const __m512i one = load<C>(values + step.offsets[from + t], some);
        const __m512i two = load<C>(values + step.offsets[from + t + 1], some);
        const __m512bh first = (__m512bh)_mm512_permutex2var_epi16(one, low, two);
        __m512bh second = first;
        if constexpr (C == 2) second = (__m512bh)_mm512_permutex2var_epi16(one, high, two);
        for (int n = 0; n < N; ++n) {
          const __m512bh weight = (__m512bh)_mm512_set1_ps(pairs[place_in_weights(place_of<S, N>(n, t))]);
          sums[n][0] = _mm512_dpbf16_ps(sums[n][0], first, weight);
          if constexpr (C == 2) sums[n][1] = _mm512_dpbf16_ps(sums[n][1], second, weight);
        }
      }
    }
    for (int n = 0; n < N; ++n) {
      for (int c = 0; c < C; ++c) S::store(rows + n * stride + c * S::kWidth, sums[n][c]);
    }
  }

  template <int C>
  static __m512i load(const std::byte* p, __mmask32 some) {
    if constexpr (C == 2) return _mm512_loadu_si512(p);
    return _mm512_maskz_loadu_epi16(some, p);
  }
};

}  // namespace
}  // namespace lamina::attention
