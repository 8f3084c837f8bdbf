#include "attention/kernel.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <limits>

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")

#include "attention/kernel_template.hpp"
#include "attention/merge_template.hpp"
#include "attention/simd_avx512.hpp"

namespace lamina::attention {

namespace {

// Scores by multiplying pairs of bfloat16 and adding the exact products to floats, 32 numbers an instruction.
template <typename S, typename E>
struct PairDot {
  using Vec = typename S::Vec;

  template <int N>
  static void scores(const BFloat16* q, int dim, const std::byte* keys, const Block& block,
                     float (*out)[kBlock], Ahead& ahead, int lines) {
    constexpr int kTokens = S::kWidth / N;
    const __mmask32 rest = (1u << (dim % kLanes)) - 1;
    for (int t = 0; t < block.tokens; t += kTokens) {
      ahead.fetch(lines);
      const BFloat16* k[kTokens];
      for (int i = 0; i < kTokens; ++i) k[i] = reinterpret_cast<const BFloat16*>(keys + block.offsets[t + i]);
      Vec sums[S::kWidth];  // [N][kTokens]
      for (Vec& sum : sums) sum = S::zero();
      int d = 0;
      for (; d + kLanes <= dim; d += kLanes) {
        add<N, kTokens, false>(q, dim, k, d, rest, sums);
      }
      if (d < dim) add<N, kTokens, true>(q, dim, k, d, rest, sums);
      alignas(64) float lanes[N][kTokens];
      S::store(&lanes[0][0], S::sums(sums));
      for (int n = 0; n < N; ++n) std::copy_n(lanes[n], kTokens, out[n] + t);
    }
  }

private:
  static constexpr int kLanes = 32;

  template <int N, int kTokens, bool kRest>
  static void add(const BFloat16* q, int dim, const BFloat16* const (&k)[kTokens], int d, __mmask32 rest,
                  Vec (&sums)[S::kWidth]) {
    __m512bh key[kTokens];
    for (int i = 0; i < kTokens; ++i) key[i] = load<kRest>(k[i] + d, rest);
    for (int n = 0; n < N; ++n) {
      const __m512bh query = load<kRest>(q + n * dim + d, rest);
      for (int i = 0; i < kTokens; ++i) {
        sums[n * kTokens + i] = _mm512_dpbf16_ps(sums[n * kTokens + i], query, key[i]);
      }
    }
  }

  template <bool kRest>
  static __m512bh load(const BFloat16* p, __mmask32 rest) {
    return (__m512bh)(kRest ? _mm512_maskz_loadu_epi16(rest, p) : _mm512_loadu_si512(p));
  }
};

}  // namespace

// Only bfloat16 gains from these instructions.
Kernels avx512_bf16_kernels(DType dtype) {
  if (dtype != DType::kBFloat16) return avx512_kernels(dtype);
  return {&RangeKernel<Avx512Simd, BFloat16, PairDot>::attend, &MergeKernel<Avx512Simd, BFloat16>::merge,
          &read<Avx512Simd>};
}

}  // namespace lamina::attention

#pragma GCC pop_options

#endif
