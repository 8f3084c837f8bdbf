#include "attention/stored.hpp"

#if defined(__x86_64__)

#include <type_traits>

#include "attention/target_region.hpp"

LAMINA_BEGIN_TARGET("avx2,fma,f16c")

#include "attention/simd_avx2.hpp"

namespace lamina::attention {

namespace {

using S = Avx2Simd;

[[gnu::always_inline]] inline __m256i words(int word) {
  return _mm256_set1_epi16(static_cast<std::int16_t>(word));
}

// 16 bytes of fp8 as bfloat16: the exponent's and the fraction's bits belong 4 higher and the exponent is
// biased by 120 more. Of the eight smallest, which have no such exponent, both bytes are looked up.
[[gnu::always_inline]] inline __m256i wide_fp8(__m128i codes) {
  const __m256i code = _mm256_cvtepu8_epi16(codes);
  const __m256i magnitude = _mm256_and_si256(code, words(0x7f));
  const __m256i usual = _mm256_add_epi16(_mm256_slli_epi16(magnitude, 4), words(120 << 7));
  const __m128i of_smallest =  // 0 to 7 times 2^-9: the first bytes and then the second ones
      _mm_setr_epi8(0, 0, -128, -64, 0, 32, 64, 96, 0, 0x3b, 0x3b, 0x3b, 0x3c, 0x3c, 0x3c, 0x3c);
  const __m256i places =
      _mm256_add_epi16(_mm256_or_si256(magnitude, _mm256_slli_epi16(magnitude, 8)), words(8 << 8));
  const __m256i small = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(of_smallest), places);
  const __m256i number = _mm256_blendv_epi8(usual, small, _mm256_cmpgt_epi16(words(8), magnitude));
  const __m256i none = _mm256_cmpeq_epi16(magnitude, words(0x7f));
  const __m256i sign = _mm256_and_si256(_mm256_slli_epi16(code, 8), words(0x8000));
  return _mm256_or_si256(_mm256_or_si256(number, sign), _mm256_and_si256(none, words(0x7fff)));
}

// The same of whole numbers.
[[gnu::always_inline]] inline __m256i wide_int8(__m128i numbers) {
  const auto first_bytes = [](__m128i eight) {
    return _mm256_srli_epi32(_mm256_castps_si256(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight))), 16);
  };
  const __m256i packed =
      _mm256_packus_epi32(first_bytes(numbers), first_bytes(_mm_unpackhi_epi64(numbers, numbers)));
  return _mm256_permute4x64_epi64(packed, 0xd8);
}

// Eight of them to what they are wanted as, which has all these numbers.
template <typename E>
[[gnu::always_inline]] inline void put(E* to, __m128i eight) {
  if constexpr (std::is_same_v<E, BFloat16>) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), eight);
  } else {
    S::narrow(to, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16)));
  }
}

template <typename E, Stored kStored>
void widen(const NarrowRows& from, std::byte* to) {
  const auto wide = [](__m128i codes) {
    return kStored == Stored::kFp8 ? wide_fp8(codes) : wide_int8(codes);
  };
  for (int row = 0; row < from.rows; ++row, to += from.row_stride) {
    const auto* codes = reinterpret_cast<const __m128i*>(from.at + from.offsets[row]);
    E* out = reinterpret_cast<E*>(to);
    int left = from.numbers;
    for (; left >= 16; left -= 16, ++codes, out += 16) {
      const __m256i numbers = wide(_mm_loadu_si128(codes));
      put(out, _mm256_castsi256_si128(numbers));
      put(out + 8, _mm256_extracti128_si256(numbers, 1));
    }
    if (left > 0) put(out, _mm256_castsi256_si128(wide(_mm_loadl_epi64(codes))));
  }
}

}  // namespace
}  // namespace lamina::attention

LAMINA_END_TARGET

namespace lamina::attention {

Widen avx2_widen(Stored stored, DType dtype) {
  return of_kind(stored, dtype, []<typename E, Stored kStored>() -> Widen { return &widen<E, kStored>; });
}

}  // namespace lamina::attention

#endif
