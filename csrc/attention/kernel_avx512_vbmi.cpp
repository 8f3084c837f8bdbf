#include "attention/stored.hpp"

#if defined(__x86_64__)

#include <bit>
#include <type_traits>

#include "attention/target_region.hpp"

LAMINA_BEGIN_TARGET("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")

#include "attention/simd_avx512.hpp"
#include "attention/vbmi.hpp"
#include "attention/wide.hpp"

namespace lamina::attention {

namespace {

// Numbers of a byte, widened as they are read. For few query heads: tiles and many of them want rows in
// memory.
struct VbmiSimd : Avx512Simd {
  static constexpr int kMostHeads = 2;

  using Avx512Simd::widen;
  using Avx512Simd::widen_half;
  static Vec widen(const Int8* p) { return of_int8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static Vec widen_half(const Int8* p) {
    return of_int8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }

  // 64 numbers: of the first 32 the even ones and the odd ones, and so of the others.
  static void widen_four(const Fp8* p, Vec (&x)[4]) {
    const Words words = widened<BFloat16, Stored::kFp8>(_mm512_loadu_si512(p));
    const __m512i odd = _mm512_set1_epi32(-65536);
    x[0] = _mm512_castsi512_ps(_mm512_slli_epi32(words.first, 16));
    x[1] = _mm512_castsi512_ps(_mm512_and_si512(words.first, odd));
    x[2] = _mm512_castsi512_ps(_mm512_slli_epi32(words.second, 16));
    x[3] = _mm512_castsi512_ps(_mm512_and_si512(words.second, odd));
  }

private:
  static Vec of_int8(__m128i x) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x)); }
};

}  // namespace
}  // namespace lamina::attention

LAMINA_END_TARGET

namespace lamina::attention {

Attend narrow_attend(Isa isa, DType dtype, Stored stored, const Shape& shape) {
  const bool floats = isa == Isa::kAvx512 || isa == Isa::kAmxBf16;
  if (!floats || dtype != DType::kBFloat16 || shape.group() > 2 || !__builtin_cpu_supports("avx512vbmi")) {
    return nullptr;
  }
  if (stored == Stored::kInt8) return &attend_narrow<VbmiSimd, BFloat16, Int8>;
  if (stored != Stored::kFp8 || shape.head_dim % 64 != 0 || shape.value_dim() % 64 != 0) return nullptr;
  return &attend_narrow<VbmiSimd, BFloat16, Fp8>;
}

}  // namespace lamina::attention

#else

namespace lamina::attention {

Attend narrow_attend(Isa, DType, Stored, const Shape&) { return nullptr; }

}  // namespace lamina::attention

#endif
