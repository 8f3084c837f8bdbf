#include "attention/stored.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "attention/simd_baseline.hpp"

namespace lamina::attention {

namespace {

using S = BaselineSimd;

constexpr float kMostFp8 = 448;
constexpr std::uint32_t kInfinity = 0x7f800000;
constexpr std::uint32_t kMagnitude = 0x7fffffff;

template <typename E>
std::array<E, 256> table(Stored stored) {
  std::array<E, 256> numbers;
  for (int code = 0; code < 256; code += S::kWidth) {
    float values[S::kWidth];
    for (int i = 0; i < S::kWidth; ++i) values[i] = value_of(stored, code + i);
    S::narrow(numbers.data() + code, S::load(values));
  }
  return numbers;
}

template <typename E, Stored kStored>
void look_up(const NarrowRows& from, std::byte* to) {
  static const std::array<E, 256> numbers = table<E>(kStored);
  for (int row = 0; row < from.rows; ++row, to += from.row_stride) {
    const auto* codes = reinterpret_cast<const std::uint8_t*>(from.at + from.offsets[row]);
    E* out = reinterpret_cast<E*>(to);
    for (int i = 0; i < from.numbers; ++i) out[i] = numbers[codes[i]];
  }
}

// Without branches, so that compilers make vectors of it.
std::uint8_t fp8_of(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & kMagnitude;
  const float retained = std::min(std::bit_cast<float>(magnitude), kMostFp8);
  const std::uint32_t rounded = std::bit_cast<std::uint32_t>(retained);
  const std::uint32_t normal = ((rounded + 0x7ffff + (rounded >> 20 & 1)) >> 20) - (120u << 3);
  // Added to 2^14, whose last bit is 2^-9, the smallest number there is: what is left is how many of them.
  const std::uint32_t small =
      std::bit_cast<std::uint32_t>(retained + 0x1p14f) - std::bit_cast<std::uint32_t>(0x1p14f);
  std::uint32_t code = rounded < std::bit_cast<std::uint32_t>(0x1p-6f) ? small : normal;
  code = magnitude > kInfinity ? 0x7f : code;
  return static_cast<std::uint8_t>(code | (bits >> 24 & 0x80));
}

void to_fp8(const float* row, int numbers, std::uint8_t* to) {
  for (int i = 0; i < numbers; ++i) to[i] = fp8_of(row[i]);
}

float to_int8(const float* row, int numbers, std::uint8_t* to) {
  std::uint32_t most = 0;  // as bits, so that what is no number is above all that are
  for (int i = 0; i < numbers; ++i) most = std::max(most, std::bit_cast<std::uint32_t>(row[i]) & kMagnitude);
  const float scale = std::bit_cast<float>(most) / 127.0f;
  if (most >= kInfinity || scale < std::numeric_limits<float>::min()) {
    std::fill_n(to, numbers, std::uint8_t{0});
    return most >= kInfinity ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
  }
  // Adding this pushes the fraction out, and leaves the whole number in the low bits.
  constexpr float kMagic = 12582912.0f;
  for (int i = 0; i < numbers; ++i) {
    to[i] = static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(row[i] / scale + kMagic));
  }
  return scale;
}

template <typename E, Stored kStored>
void narrow(const std::byte* from, int numbers, std::byte* to, float* scale) {
  float row[kMaxHeadDim];
  const E* wide = reinterpret_cast<const E*>(from);
  for (int i = 0; i < numbers; i += S::kWidth) S::store(row + i, S::widen(wide + i));
  auto* codes = reinterpret_cast<std::uint8_t*>(to);
  if constexpr (kStored == Stored::kFp8) {
    to_fp8(row, numbers, codes);
  } else {
    *scale = to_int8(row, numbers, codes);
  }
}

}  // namespace

Narrow narrow_to(Stored stored, DType dtype) {
  return of_kind(stored, dtype, []<typename E, Stored kStored>() -> Narrow { return &narrow<E, kStored>; });
}

Widen widen_for([[maybe_unused]] Isa isa, Stored stored, DType dtype) {
  if (stored == Stored::kAsIs) return nullptr;
#if defined(__x86_64__)
  const Widen widen = isa > Isa::kAvx2 ? vbmi_widen(stored, dtype) : nullptr;
  if (widen != nullptr) return widen;
  if (isa >= Isa::kAvx2) return avx2_widen(stored, dtype);
#endif
  return of_kind(stored, dtype, []<typename E, Stored kStored>() -> Widen { return &look_up<E, kStored>; });
}

}  // namespace lamina::attention
