#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "attention/kernel.hpp"
#include "attention/kernel_template.hpp"
#include "attention/simd_avx512.hpp"
#include "attention/wide.hpp"

namespace lamina::attention {
namespace {

// Sixteen rows of 64 bytes, which is what a tile register holds.
inline constexpr int kTileRows = 16;
inline constexpr int kLine = static_cast<int>(kLineBytes);

// The shape of all eight tile registers, as LDTILECFG reads it: whole ones. Setting it takes as long as ten
// products, so that what is no whole tile is computed as one, and not looked at.
struct alignas(kLine) WholeTiles {
  std::uint8_t palette = 1;
  std::uint8_t start = 0;
  std::uint8_t none[14] = {};
  std::uint16_t row_bytes[16] = {kLine, kLine, kLine, kLine, kLine, kLine, kLine, kLine};
  std::uint8_t rows[16] = {kTileRows, kTileRows, kTileRows, kTileRows,
                           kTileRows, kTileRows, kTileRows, kTileRows};
};

// What was stored before is in memory: the compiler takes a tile's load for something that reads none.
[[gnu::always_inline]] inline void stored() { asm volatile("" : : : "memory"); }

// Tokens of a step: so many have their weights in a row of a tile.
inline constexpr int kTileTokens = 32;

// A row's numbers from d on; of a token that is not there, zeros.
[[gnu::always_inline]] inline __m512i numbers(const std::byte* row, int d) {
  return row == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(row + d * 2);
}

// Scores of 4 or 8 query heads by tiles: keys of 16 tokens are A, as they lie; queries are B. Products of
// bfloat16 are exact and are added to floats. Fewer heads are worked on by vectors.
struct TileDot {
  using S = Avx512Simd;
  using Vec = S::Vec;
  using Few = WideDot<S, BFloat16>;
  static constexpr int kManyHeadsStep = kTileTokens;
  static constexpr bool kFillsUp = true;
  static constexpr int kNumbers = 32;  // of a key, in one row of a tile

  // Query heads to [dim / 2][N] of pairs, and zeros for those that there are not.
  template <int N>
  static void pack(const BFloat16* q, int dim, float* to, int heads) {
    if constexpr (N < 4) {
      Few::pack<N>(q, dim, to, heads);
    } else {
      auto* pairs = reinterpret_cast<BFloat16*>(to);
      for (int d = 0; d < dim; d += 2) {
        for (int n = 0; n < N; ++n, pairs += 2) {
          pairs[0] = n < heads ? q[n * dim + d] : BFloat16{};
          pairs[1] = n < heads ? q[n * dim + d + 1] : BFloat16{};
        }
      }
    }
  }

  template <int N>
  [[gnu::noinline]] static void scores(const Step& step, const float* q, float* out) {
    if constexpr (N < 4) {
      Few::scores<N>(step, q, out);
    } else {
      const Keys first(step, 0);
      const Keys second(step, kTileRows);
      const int each = (step.fetches * (step.tokens / kStep) * kNumbers / 2 + step.dim - 1) / step.dim;
      _tile_zero(0);
      _tile_zero(1);
      stored();
      for (int d = 0; d < step.dim; d += kNumbers) {
        // A row of B is as long as all rows; beyond the N queries there is something, which gives sums of its
        // own.
        _tile_loadd(2, q + d / 2 * N, N * 4);
        step.ahead.fetch(each);
        _tile_loadd(3, first.at(d), first.row_stride());
        _tile_dpbf16ps(0, 3, 2);
        step.ahead.fetch(each);
        _tile_loadd(4, second.at(d), second.row_stride());
        _tile_dpbf16ps(1, 4, 2);
      }
      alignas(kLine) float sums[kTileTokens][kTileRows];
      _tile_stored(0, sums[0], kLine);
      _tile_stored(1, sums[kTileRows], kLine);
      for (int t = 0; t < step.tokens; t += kStep) in_place<N>(sums[t], out + place_of<S, 4>(0, step.at + t));
    }
  }

private:
  // Where the keys of 16 tokens begin and how far apart they are. If they are not evenly apart, or fewer, it
  // is a copy of them.
  class Keys {
  public:
    Keys(const Step& step, int from) {
      const std::size_t* offsets = step.offsets + from;
      if (from + kTileRows <= step.tokens && even(offsets)) {
        at_ = step.rows + offsets[0];
        row_stride_ = offsets[1] - offsets[0];
        return;
      }
      row_stride_ = static_cast<std::size_t>(step.dim) * sizeof(BFloat16);
      std::byte* to = step.room + static_cast<std::size_t>(from) * row_stride_;
      at_ = to;
      if (step.again) return;
      for (int t = from; t < from + kTileRows; ++t) {
        const std::byte* row = t < step.tokens ? step.rows + step.offsets[t] : nullptr;
        for (int d = 0; d < step.dim; d += kNumbers, to += kLine) _mm512_store_si512(to, numbers(row, d));
      }
    }

    const std::byte* at(int d) const { return at_ + d * 2; }
    std::size_t row_stride() const { return row_stride_; }

  private:
    static bool even(const std::size_t* offsets) {
      const std::size_t row_stride = offsets[1] - offsets[0];
      const __m512i distances = _mm512_mullo_epi64(_mm512_set1_epi64(static_cast<long long>(row_stride)),
                                                   _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
      const auto differ = [&](int i) {
        const __m512i first = _mm512_set1_epi64(static_cast<long long>(offsets[0] + i * row_stride));
        return _mm512_cmpneq_epi64_mask(_mm512_loadu_si512(offsets + i), _mm512_add_epi64(first, distances));
      };
      return (differ(0) | differ(8)) == 0;
    }

    const std::byte* at_;
    std::size_t row_stride_;
  };

  // Scores of 4 tokens, a row each, to where the softmax wants them.
  template <int N>
  [[gnu::always_inline]] static inline void in_place(const float* from, float* to) {
    const Vec rows[kStep] = {S::load(from), S::load(from + kTileRows), S::load(from + 2 * kTileRows),
                             S::load(from + 3 * kTileRows)};
    const __m512i order = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const Vec first = _mm512_permutex2var_ps(rows[0], order, rows[1]);
    const Vec second = _mm512_permutex2var_ps(rows[2], order, rows[3]);
    const __m512i pairs = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    S::store(to, of_pairs(first, pairs, second));
    if constexpr (N == 8) {
      S::store(to + 4 * kBlock, of_pairs(first, _mm512_add_epi64(pairs, _mm512_set1_epi64(4)), second));
    }
  }

  static Vec of_pairs(Vec a, __m512i order, Vec b) {
    return _mm512_castpd_ps(_mm512_permutex2var_pd(_mm512_castps_pd(a), order, _mm512_castps_pd(b)));
  }
};

// Sums of weighted values of 4 or 8 query heads by tiles. A weight is two numbers of bfloat16, one of which
// has what the other one lacks, and so is right to 2^-17: A has a row of each. Values are B, of two tokens
// side by side.
struct TileSum {
  using S = Avx512Simd;
  using Vec = S::Vec;
  using Few = WideSum<S, BFloat16>;

  static void keep(float* scores, int i, Vec weight) { Few::keep(scores, i, weight); }

  template <int N>
  [[gnu::noinline]] static void add(const Step& step, const float* weights, const Before& before,
                                    float* rows) {
    if constexpr (N < 4) {
      Few::add<N>(step, weights, before, rows);
    } else {
      alignas(kLine) BFloat16 parts[kTileRows][kTileTokens];  // of which 4 heads have the first 8 rows
      for (int n = 0; n < N; n += 4) {
        split<N>(weights + n * kBlock + place_of<S, 4>(0, step.at), step.tokens, &parts[n]);
      }
      const int fetches = step.fetches * (step.tokens / kStep);
      if (!step.again) pair_up(step);
      const int each = (fetches * kTileTokens / 2 + step.dim - 1) / step.dim;
      const int stride = step.dim * 4;
      stored();
      _tile_loadd(5, parts, kLine);
      for (int d = 0; d < step.dim; d += kTileTokens) {
        step.ahead.fetch(each);
        const std::byte* values = step.room + d * 4;
        _tile_zero(0);
        _tile_loadd(3, values, stride);
        _tile_dpbf16ps(0, 5, 3);
        _tile_zero(1);
        _tile_loadd(4, values + kLine, stride);
        _tile_dpbf16ps(1, 5, 4);
        alignas(kLine) float low[kTileRows][kTileRows];
        alignas(kLine) float high[kTileRows][kTileRows];
        _tile_stored(0, low, kLine);
        _tile_stored(1, high, kLine);
        step.ahead.fetch(each);
        for (int n = 0; n < step.heads; ++n) {
          float* row = rows + n * padded(step.dim) + d;
          in_order(S::add(S::load(low[n]), S::load(low[N + n])),
                   S::add(S::load(high[n]), S::load(high[N + n])), before, n, row);
        }
      }
    }
  }

private:
  // Weights of 4 heads to a row of tokens each, and what these lack to rows N further on.
  template <int N>
  [[gnu::always_inline]] static inline void split(const float* weights, int tokens,
                                                  BFloat16 (*parts)[kTileTokens]) {
    for (int t = 0; t < kTileTokens; t += kTileRows) {
      Vec exact[4];
      for (int i = 0; i < 4; ++i) {
        exact[i] = t + i * kStep < tokens ? S::load(weights + t * 4 + i * S::kWidth) : S::zero();
      }
      const __m512i first = (__m512i)_mm512_cvtne2ps_pbh(exact[1], exact[0]);
      const __m512i second = (__m512i)_mm512_cvtne2ps_pbh(exact[3], exact[2]);
      in_rows(first, second, parts, t);
      const Vec rest[4] = {lacking(exact[0], _mm512_castsi512_si256(first)),
                           lacking(exact[1], _mm512_extracti64x4_epi64(first, 1)),
                           lacking(exact[2], _mm512_castsi512_si256(second)),
                           lacking(exact[3], _mm512_extracti64x4_epi64(second, 1))};
      in_rows((__m512i)_mm512_cvtne2ps_pbh(rest[1], rest[0]), (__m512i)_mm512_cvtne2ps_pbh(rest[3], rest[2]),
              parts + N, t);
    }
  }

  static Vec lacking(Vec exact, __m256i rounded) {
    return S::sub(exact, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16)));
  }

  // Two times two vectors of [head][4 tokens] to 16 tokens of each of four rows, from token t on.
  [[gnu::always_inline]] static inline void in_rows(__m512i first, __m512i second,
                                                    BFloat16 (*rows)[kTileTokens], int t) {
    const __m512i heads = _mm512_setr_epi64(0, 4, 8, 12, 1, 5, 9, 13);
    const __m512i others = _mm512_add_epi64(heads, _mm512_set1_epi64(2));
    const auto put = [&](__m512i two, int row) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(rows[row] + t), _mm512_castsi512_si256(two));
      _mm256_store_si256(reinterpret_cast<__m256i*>(rows[row + 1] + t), _mm512_extracti64x4_epi64(two, 1));
    };
    put(_mm512_permutex2var_epi64(first, heads, second), 0);
    put(_mm512_permutex2var_epi64(first, others, second), 2);
  }

  // The values of two tokens side by side, to [token / 2][dim * 2]. Of 32 numbers the first 64 bytes have
  // every second four, as this is how vectors are joined; in_order() undoes it.
  static void pair_up(const Step& step) {
    std::byte* to = step.room;
    for (int t = 0; t < kTileTokens; t += 2) {
      const bool there = t < step.tokens;
      const std::byte* one = there ? step.rows + step.offsets[t] : nullptr;
      const std::byte* two = there ? step.rows + step.offsets[t + 1] : nullptr;
      for (int d = 0; d < step.dim; d += kTileTokens, to += 2 * kLine) {
        const __m512i x = numbers(one, d);
        const __m512i y = numbers(two, d);
        _mm512_store_si512(to, _mm512_unpacklo_epi16(x, y));
        _mm512_store_si512(to + kLine, _mm512_unpackhi_epi16(x, y));
      }
    }
  }

  // Adds 32 numbers to head n's row.
  [[gnu::always_inline]] static inline void in_order(Vec low, Vec high, const Before& before, int n,
                                                     float* row) {
    const __m512i order = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i others = _mm512_add_epi32(order, _mm512_set1_epi32(8));
    put(_mm512_permutex2var_ps(low, order, high), before, n, row);
    put(_mm512_permutex2var_ps(low, others, high), before, n, row + S::kWidth);
  }

  static void put(Vec sum, const Before& before, int n, float* row) {
    if (!before.fresh) {
      const Vec was = S::load(row);
      sum = before.decay == nullptr ? S::add(was, sum) : S::fma(was, S::set1(before.decay[n]), sum);
    }
    S::store(row, sum);
  }
};

}  // namespace
}  // namespace lamina::attention
