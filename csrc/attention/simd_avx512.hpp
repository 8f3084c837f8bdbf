#pragma once

#include <immintrin.h>

#include "attention/kernel.hpp"

namespace lamina::attention {
namespace {

// Sixteen floats at a time. Included only where the compiler may use AVX-512 F, BW, DQ
// and VL.
struct Avx512Simd {
  using Vec = __m512;
  static constexpr int kWidth = 16;
  static constexpr int kMostHeads = 8;
  static constexpr int kManyHeadsStep = kBlock;
  // Vectors of output per query head that fit in the registers with N heads.
  template <int N>
  static constexpr int columns() {
    return N == 8 ? 2 : 4;
  }

  static Vec zero() { return _mm512_setzero_ps(); }
  static Vec set1(float x) { return _mm512_set1_ps(x); }
  static Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
  static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  static Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
  static Vec round(Vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // 2^n for a whole n from -126 to 127.
  static Vec power_of_two(Vec n) { return _mm512_scalef_ps(set1(1.0f), n); }
  // y where x >= limit, else 0.
  static Vec keep_from(Vec x, float limit, Vec y) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, set1(limit), _CMP_NLT_UQ), y);
  }

  static Vec widen(const float* p) { return load(p); }
  static Vec widen(const BFloat16* p) {
    return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Vec widen(const Float16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  // 32 numbers, the even and the odd ones apart.
  static void widen_two(const BFloat16* p, Vec& even, Vec& odd) {
    const __m512i x = _mm512_loadu_si512(p);
    even = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
    odd = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536)));
  }
  // Two vectors of consecutive numbers to the even and the odd ones of both, and back.
  static void part(Vec& a, Vec& b) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const Vec first = _mm512_permutex2var_ps(a, even, b);
    b = _mm512_permutex2var_ps(a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b);
    a = first;
  }
  static void join(Vec& a, Vec& b) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const Vec first = _mm512_permutex2var_ps(a, low, b);
    b = _mm512_permutex2var_ps(a, _mm512_add_epi32(low, _mm512_set1_epi32(8)), b);
    a = first;
  }
  // The last 8 numbers of a row: nothing beyond its end is read.
  static Vec widen_half(const float* p) { return _mm512_zextps256_ps512(_mm256_loadu_ps(p)); }
  static Vec widen_half(const BFloat16* p) { return widen_bf16(load_half(p)); }
  static Vec widen_half(const Float16* p) { return _mm512_cvtph_ps(load_half(p)); }

  static void narrow(float* p, Vec x) { store(p, x); }
  static void narrow(BFloat16* p, Vec x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(x));
  }
  static void narrow(Float16* p, Vec x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  static void narrow_half(float* p, Vec x) { _mm256_storeu_ps(p, _mm512_castps512_ps256(x)); }
  static void narrow_half(BFloat16* p, Vec x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(narrow_bf16(x)));
  }
  static void narrow_half(Float16* p, Vec x) {
    const __m256i y = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(y));
  }

  // Lane j * K + i is the sum of a[i]'s lanes j * K to j * K + K - 1: with K = 16, of all its lanes. Each
  // step adds pairs of vectors into one that holds half of each.
  template <int K>
  static Vec fold(const Vec (&a)[K]) {
    if constexpr (K == 1) {
      return a[0];
    } else {
      Vec half[K / 2];
      for (int i = 0; i < K / 2; ++i) half[i] = add_halves<K>(a[i], a[i + K / 2]);
      return fold<K / 2>(half);
    }
  }
  // Each vector's sum of lanes, 4 in order, and the next ones `stride` further.
  static void store_sums(float* out, int, const Vec (&a)[16]) { store(out, fold<16>(a)); }
  static void store_sums(float* out, int stride, const Vec (&a)[8]) {
    const Vec halves = sum_across<16>(fold<8>(a));
    _mm_storeu_ps(out, _mm512_castps512_ps128(halves));
    _mm_storeu_ps(out + stride, _mm512_extractf32x4_ps(halves, 1));
  }
  static void store_sums(float* out, int, const Vec (&a)[4]) {
    _mm_storeu_ps(out, _mm512_castps512_ps128(sum_across<8>(sum_across<16>(fold<4>(a)))));
  }
  // Of each K lanes, the halves are added to each other.
  template <int K>
  static Vec sum_across(Vec x) {
    return add(x, swap<K>(x));
  }
  // K floats, again and again.
  template <int K>
  static Vec repeat(const float* p) {
    if constexpr (K == 16) return load(p);
    if constexpr (K == 8) return _mm512_broadcast_f32x8(_mm256_loadu_ps(p));
    if constexpr (K == 4) return _mm512_broadcast_f32x4(_mm_loadu_ps(p));
  }
  // Of each K lanes, the halves change places.
  template <int K>
  static Vec swap(Vec x) {
    if constexpr (K == 16) return _mm512_shuffle_f32x4(x, x, 0x4e);
    if constexpr (K == 8) return _mm512_shuffle_f32x4(x, x, 0xb1);
    if constexpr (K == 4) return _mm512_permute_ps(x, 0x4e);
    if constexpr (K == 2) return _mm512_permute_ps(x, 0xb1);
  }

private:
  // Of each K lanes, the first half is of a: the sum of its halves; and the second half likewise of b.
  template <int K>
  static Vec add_halves(Vec a, Vec b) {
    constexpr __mmask16 kSecond = K == 16 ? 0xff00 : K == 8 ? 0xf0f0 : K == 4 ? 0xcccc : 0xaaaa;
    return add(_mm512_mask_blend_ps(kSecond, a, b), swap<K>(_mm512_mask_blend_ps(kSecond, b, a)));
  }

  static __m256i load_half(const void* p) {
    return _mm256_zextsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static Vec widen_bf16(__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  }
  static __m256i narrow_bf16(Vec x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));  // no NaN becomes infinity
    const __m512i retained = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(retained, 16));
  }
};

}  // namespace
}  // namespace lamina::attention
