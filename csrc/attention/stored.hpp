#pragma once

#include <cstddef>
#include <cstdint>

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

// What each of the 256 bytes stands for, in that dtype: exactly. Scales are left out.
template <typename E>
const E* numbers_of(Stored stored);

// By table look-ups of AVX-512 VBMI, to numbers of 16 bits; null where the processor has none.
Widen vbmi_widen(Stored stored, DType dtype);

}  // namespace lamina::attention
