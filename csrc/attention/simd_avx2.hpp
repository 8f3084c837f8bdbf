#pragma once

#include <immintrin.h>

#include "attention/kernel.hpp"

namespace lamina::attention {
namespace {

// Eight floats at a time. Included only where the compiler may use AVX2, FMA and F16C.
struct Avx2Simd {
  using Vec = __m256;
  static constexpr int kWidth = 8;
  static constexpr int kMostHeads = 4;
  static constexpr int kManyHeadsStep = 32;  // Zen 3: 1.1 to 1.2 times as fast as by 64 tokens
  // Vectors of output per query head that fit in the registers with N heads.
  template <int N>
  static constexpr int columns() {
    return N == 4 ? 2 : 4;
  }

  static Vec zero() { return _mm256_setzero_ps(); }
  static Vec set1(float x) { return _mm256_set1_ps(x); }
  static Vec load(const float* p) { return _mm256_loadu_ps(p); }
  // GCC loads again wherever it can what only lies in memory, and there are but two loads a cycle.
  static Vec load_once(const float* p) {
    Vec x = load(p);
    asm("" : "+x"(x));
    return x;
  }
  static void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
  static Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  static Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  static Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
  static Vec round(Vec x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // 2^n for a whole n from -126 to 127.
  static Vec power_of_two(Vec n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }
  // y where x >= limit, else 0.
  static Vec keep_from(Vec x, float limit, Vec y) {
    return _mm256_and_ps(_mm256_cmp_ps(x, set1(limit), _CMP_NLT_UQ), y);
  }

  static Vec widen(const float* p) { return load(p); }
  static Vec widen(const BFloat16* p) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  }
  static Vec widen(const Float16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }

  // 16 numbers, the even and the odd ones apart.
  static void widen_two(const BFloat16* p, Vec& even, Vec& odd) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    even = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
    odd = _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(-65536)));
  }
  // Two vectors of consecutive numbers to the even and the odd ones of both, and back.
  static void part(Vec& a, Vec& b) {
    const auto in_order = [](Vec x) {
      return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8));
    };
    const Vec first = in_order(_mm256_shuffle_ps(a, b, 0x88));
    b = in_order(_mm256_shuffle_ps(a, b, 0xdd));
    a = first;
  }
  static void join(Vec& a, Vec& b) {
    const Vec low = _mm256_unpacklo_ps(a, b);
    const Vec high = _mm256_unpackhi_ps(a, b);
    a = _mm256_permute2f128_ps(low, high, 0x20);
    b = _mm256_permute2f128_ps(low, high, 0x31);
  }

  static void narrow(float* p, Vec x) { store(p, x); }
  static void narrow(BFloat16* p, Vec x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));  // no NaN becomes infinity
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i retained = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(retained, retained), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
  static void narrow(Float16* p, Vec x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }

  // Each vector's sum of lanes, in order.
  static void store_sums(float* out, int, const Vec (&a)[4]) {
    const Vec halves = sums_of_halves(a[0], a[1], a[2], a[3]);
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1)));
  }
  static void store_sums(float* out, int, const Vec (&a)[kWidth]) {
    const Vec first = sums_of_halves(a[0], a[1], a[2], a[3]);
    const Vec second = sums_of_halves(a[4], a[5], a[6], a[7]);
    store(out, add(_mm256_permute2f128_ps(first, second, 0x20), _mm256_permute2f128_ps(first, second, 0x31)));
  }
  // K floats, again and again.
  template <int K>
  static Vec repeat(const float* p) {
    if constexpr (K == 8) return load(p);
    if constexpr (K == 4) return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(p));
    if constexpr (K == 2) return _mm256_castpd_ps(_mm256_broadcast_sd(reinterpret_cast<const double*>(p)));
  }
  // Of each K lanes, the halves change places.
  template <int K>
  static Vec swap(Vec x) {
    if constexpr (K == 8) return _mm256_permute2f128_ps(x, x, 0x01);
    if constexpr (K == 4) return _mm256_permute_ps(x, 0x4e);
    if constexpr (K == 2) return _mm256_permute_ps(x, 0xb1);
  }

private:
  // Of 4 vectors, in order, the sums of their first 4 lanes and then of their last 4. (By VHADDPS it takes
  // longer.)
  static Vec sums_of_halves(Vec a, Vec b, Vec c, Vec d) {
    const auto two = [](Vec x, Vec y) { return add(_mm256_unpacklo_ps(x, y), _mm256_unpackhi_ps(x, y)); };
    const Vec first = two(a, b);
    const Vec second = two(c, d);
    return add(_mm256_shuffle_ps(first, second, 0x44), _mm256_shuffle_ps(first, second, 0xee));
  }
};

}  // namespace
}  // namespace lamina::attention
