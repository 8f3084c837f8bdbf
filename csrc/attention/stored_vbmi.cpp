#include "attention/stored.hpp"

#if defined(__x86_64__)

#include "attention/target_region.hpp"

namespace lamina::attention {

namespace {

// What the bytes 0 to 127 stand for, all first bytes and all second ones: 64 of either in a vector.
struct alignas(64) Halves {
  std::uint8_t low[128];
  std::uint8_t high[128];
};

template <typename E>
Halves halves(Stored stored) {
  Halves of;
  for (int code = 0; code < 128; ++code) {
    const std::uint16_t bits = numbers_of<E>(stored)[code].bits;
    of.low[code] = static_cast<std::uint8_t>(bits);
    of.high[code] = static_cast<std::uint8_t>(bits >> 8);
  }
  return of;
}

}  // namespace

LAMINA_BEGIN_TARGET("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")

namespace {

// 64 numbers at a time: both bytes of each looked up by its magnitude, its sign put to the second one, and
// side by side. (Shifts, and masks for what they do not get right, take as many instructions.)
template <typename E, Stored kStored>
void widen(const NarrowRows& from, std::byte* to) {
  static const Halves table = halves<E>(kStored);
  const __m512i low[2] = {_mm512_load_si512(table.low), _mm512_load_si512(table.low + 64)};
  const __m512i high[2] = {_mm512_load_si512(table.high), _mm512_load_si512(table.high + 64)};
  const __m512i sign = _mm512_set1_epi8(-128);
  // Bytes are joined within each 16 of a vector: of the first half every second eight have to be in each.
  const __m512i apart = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  for (int row = 0; row < from.rows; ++row, to += from.apart) {
    const std::byte* codes = from.at + from.offsets[row];
    for (int i = 0; i < from.numbers; i += 64) {
      const int left = from.numbers - i;
      const __mmask64 some = left < 64 ? (__mmask64{1} << left) - 1 : ~__mmask64{0};
      const __m512i code = _mm512_permutexvar_epi64(apart, _mm512_maskz_loadu_epi8(some, codes + i));
      const __m512i magnitude = kStored == Stored::kInt8 ? _mm512_abs_epi8(code) : code;
      const __m512i first = _mm512_permutex2var_epi8(low[0], magnitude, low[1]);
      const __m512i second = _mm512_permutex2var_epi8(high[0], magnitude, high[1]);
      const __m512i with_sign =
          _mm512_ternarylogic_epi64(second, code, sign, 0xf8);  // second | (code & sign)
      std::byte* out = to + 2 * i;
      _mm512_mask_storeu_epi16(out, static_cast<__mmask32>(some), _mm512_unpacklo_epi8(first, with_sign));
      if (left <= 32) continue;
      _mm512_mask_storeu_epi16(out + 64, static_cast<__mmask32>(some >> 32),
                               _mm512_unpackhi_epi8(first, with_sign));
    }
  }
}

template <typename E>
Widen widen_of(Stored stored) {
  return stored == Stored::kFp8 ? &widen<E, Stored::kFp8> : &widen<E, Stored::kInt8>;
}

}  // namespace

LAMINA_END_TARGET

Widen vbmi_widen(Stored stored, DType dtype) {
  if (dtype == DType::kFloat32 || !__builtin_cpu_supports("avx512vbmi")) return nullptr;
  return dtype == DType::kBFloat16 ? widen_of<BFloat16>(stored) : widen_of<Float16>(stored);
}

}  // namespace lamina::attention

#else

namespace lamina::attention {

Widen vbmi_widen(Stored, DType) { return nullptr; }

}  // namespace lamina::attention

#endif
