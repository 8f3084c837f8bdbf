#include "attention/stored.hpp"

#if defined(__x86_64__)

#include <bit>
#include <type_traits>

#include "attention/target_region.hpp"

LAMINA_BEGIN_TARGET("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")

#include "attention/vbmi.hpp"

namespace lamina::attention {

namespace {

template <typename E, Stored kStored>
void widen(const NarrowRows& from, std::byte* to) {
  for (int row = 0; row < from.rows; ++row, to += from.row_stride) {
    const std::byte* codes = from.at + from.offsets[row];
    std::byte* out = to;
    int left = from.numbers;
    for (; left >= 64; left -= 64, codes += 64, out += 128) {
      const Words words = widened<E, kStored>(_mm512_loadu_si512(codes));
      _mm512_storeu_si512(out, words.first);
      _mm512_storeu_si512(out + 64, words.second);
    }
    if (left == 0) continue;
    const __mmask64 some = (__mmask64{1} << left) - 1;
    const Words words = widened<E, kStored>(_mm512_maskz_loadu_epi8(some, codes));
    _mm512_mask_storeu_epi16(out, static_cast<__mmask32>(some), words.first);
    if (left > 32) _mm512_mask_storeu_epi16(out + 64, static_cast<__mmask32>(some >> 32), words.second);
  }
}

}  // namespace
}  // namespace lamina::attention

LAMINA_END_TARGET

namespace lamina::attention {

Widen vbmi_widen(Stored stored, DType dtype) {
  if (!__builtin_cpu_supports("avx512vbmi")) return nullptr;
  return of_kind(stored, dtype, []<typename E, Stored kStored>() -> Widen {
    if constexpr (std::is_same_v<E, float>) {
      return nullptr;
    } else {
      return &widen<E, kStored>;
    }
  });
}

}  // namespace lamina::attention

#else

namespace lamina::attention {

Widen vbmi_widen(Stored, DType) { return nullptr; }

}  // namespace lamina::attention

#endif
