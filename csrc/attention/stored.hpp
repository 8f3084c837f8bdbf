#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "attention/kernel.hpp"

namespace lamina::attention {

// Rounds a row of a multiple of 8 numbers of one dtype to what is stored; `scale` is written where each row
// has one.
//
// fp8: to the nearest float8_e4m3fn, ties to even, and what is larger than 448 to that. int8: the scale is
// the largest magnitude / 127, and numbers are the nearest whole multiples of it, ties to even. A scale that
// would be no normal number is 0, and so are the numbers; a row that is not finite has NaN for a scale.
using Narrow = void (*)(const std::byte* from, int numbers, std::byte* to, float* scale);

Narrow narrow_to(Stored stored, DType dtype);

// Null for Stored::kAsIs.
Widen widen_for(Isa isa, Stored stored, DType dtype);

// What a byte stands for, scales left out. All dtypes have these numbers.
constexpr float value_of(Stored stored, int code) {
  if (stored == Stored::kInt8) return static_cast<float>(static_cast<std::int8_t>(code));
  const int exponent = code >> 3 & 15;
  float magnitude = static_cast<float>(exponent == 0 ? code & 7 : 8 + (code & 7)) * 0x1p-9f;
  for (int i = 1; i < exponent; ++i) magnitude *= 2;
  if ((code & 0x7f) == 0x7f) magnitude = std::numeric_limits<float>::quiet_NaN();
  return code < 128 ? magnitude : -magnitude;
}

// What `of` gives for a dtype's numbers and how they are stored, one function of a template.
template <typename Of>
auto of_kind(Stored stored, DType dtype, Of of) {
  const auto with = [&]<typename E>() {
    return stored == Stored::kFp8 ? of.template operator()<E, Stored::kFp8>()
                                  : of.template operator()<E, Stored::kInt8>();
  };
  switch (dtype) {
    case DType::kBFloat16:
      return with.template operator()<BFloat16>();
    case DType::kFloat16:
      return with.template operator()<Float16>();
    default:
      return with.template operator()<float>();
  }
}

// By table look-ups of AVX-512 VBMI, to numbers of 16 bits; null where the processor has none.
Widen vbmi_widen(Stored stored, DType dtype);

Widen avx2_widen(Stored stored, DType dtype);

}  // namespace lamina::attention
