#pragma once

#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <type_traits>

#include "attention/stored.hpp"

namespace lamina::attention {
namespace {

// What the bytes 0 to 127 stand for, all first bytes and all second ones: 64 of either in a vector.
struct alignas(64) Halves {
  std::uint8_t low[128];
  std::uint8_t high[128];
};

// A number that E has.
template <typename E>
constexpr std::uint16_t bits_of(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if constexpr (std::is_same_v<E, BFloat16>) return static_cast<std::uint16_t>(bits >> 16);
  if (value == 0) return 0;
  if (value != value) return 0x7e00;
  return static_cast<std::uint16_t>(((bits >> 23) - 112) << 10 | (bits >> 13 & 0x3ff));
}

template <typename E>
constexpr Halves halves(Stored stored) {
  Halves of{};
  for (int code = 0; code < 128; ++code) {
    const std::uint16_t bits = bits_of<E>(value_of(stored, code));
    of.low[code] = static_cast<std::uint8_t>(bits);
    of.high[code] = static_cast<std::uint8_t>(bits >> 8);
  }
  return of;
}

template <typename E, Stored kStored>
constexpr Halves kHalves = halves<E>(kStored);

// 64 numbers of 16 bits, in order.
struct Words {
  __m512i first;
  __m512i second;
};

// Both bytes of each looked up by its magnitude, its sign put to the second one, and side by side. (Shifts,
// and masks for what they do not get right, take as many instructions.)
template <typename E, Stored kStored>
[[gnu::always_inline]] inline Words widened(__m512i code) {
  const Halves& table = kHalves<E, kStored>;
  // Bytes are joined within each 16 of a vector: of the first half every second eight have to be in each.
  code = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), code);
  const __m512i magnitude = kStored == Stored::kInt8 ? _mm512_abs_epi8(code) : code;
  const auto look_up = [&](const std::uint8_t* bytes) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(bytes), magnitude, _mm512_load_si512(bytes + 64));
  };
  const __m512i low = look_up(table.low);
  // The second byte | (the code & its sign).
  const __m512i high = _mm512_ternarylogic_epi64(look_up(table.high), code, _mm512_set1_epi8(-128), 0xf8);
  return {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
}

}  // namespace
}  // namespace lamina::attention
