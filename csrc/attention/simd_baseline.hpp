#pragma once

#include <cstdint>
#include <cstring>

#include "attention/kernel.hpp"

namespace lamina::attention {
namespace {

// Four floats at a time, in the compiler's own vectors: SSE2 on x86-64, and right on every other processor.
struct BaselineSimd {
  typedef float Vec __attribute__((vector_size(16)));
  typedef std::int32_t Ints __attribute__((vector_size(16)));
  static constexpr int kWidth = 4;
  static constexpr int kMostHeads = 4;
  static constexpr int kManyHeadsStep = kBlock;
  // Vectors of output per query head that fit in the registers with N heads.
  template <int N>
  static constexpr int columns() {
    return 2;
  }

  static Vec zero() { return Vec{}; }
  static Vec set1(float x) { return Vec{x, x, x, x}; }
  static Vec load(const float* p) {
    Vec x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  static void store(float* p, Vec x) { std::memcpy(p, &x, sizeof x); }
  static Vec add(Vec a, Vec b) { return a + b; }
  static Vec sub(Vec a, Vec b) { return a - b; }
  static Vec mul(Vec a, Vec b) { return a * b; }
  static Vec div(Vec a, Vec b) { return a / b; }
  static Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
  static Vec max(Vec a, Vec b) { return a > b ? a : b; }
  static Vec min(Vec a, Vec b) { return a < b ? a : b; }

  // The nearest whole number, for |x| < 2^22: adding this pushes the fraction out.
  static Vec round(Vec x) {
    const Vec magic = set1(12582912.0f);
    return (x + magic) - magic;
  }
  // 2^n for a whole n from -126 to 127.
  static Vec power_of_two(Vec n) {
    return reinterpret_cast<Vec>((__builtin_convertvector(n, Ints) + 127) << 23);
  }
  // y where x >= limit, else 0.
  static Vec keep_from(Vec x, float limit, Vec y) {
    return reinterpret_cast<Vec>((x >= set1(limit)) & reinterpret_cast<Ints>(y));
  }

  static Vec widen(const float* p) { return load(p); }
  static Vec widen(const BFloat16* p) {
    Ints x = {p[0].bits, p[1].bits, p[2].bits, p[3].bits};
    return reinterpret_cast<Vec>(x << 16);
  }
  static Vec widen(const Float16* p) {
    const Ints x = {p[0].bits, p[1].bits, p[2].bits, p[3].bits};
    const Ints magnitude = x & 0x7fff;
    // Shifted into place the exponent is 112 too small; the multiplication also makes subnormals normal.
    const Vec finite = reinterpret_cast<Vec>(magnitude << 13) * set1(0x1p112f);
    const Ints beyond = (magnitude >= 0x7c00) & 0x7f800000;  // infinities and NaN keep their exponent
    return reinterpret_cast<Vec>(reinterpret_cast<Ints>(finite) | beyond | ((x & 0x8000) << 16));
  }

  static void narrow(float* p, Vec x) { store(p, x); }
  static void narrow(BFloat16* p, Vec x) {
    const Ints bits = reinterpret_cast<Ints>(x);
    const Ints rounded = bits + 0x7fff + ((bits >> 16) & 1);
    const Ints quiet = bits | 0x400000;  // a NaN must not round up to infinity
    const Ints retained = (x == x) ? rounded : quiet;
    for (int i = 0; i < kWidth; ++i) p[i].bits = static_cast<std::uint16_t>(retained[i] >> 16);
  }
  static void narrow(Float16* p, Vec x) {
    for (int i = 0; i < kWidth; ++i) p[i].bits = half_of(x[i]);
  }

  // Each vector's sum of lanes, in order.
  static void store_sums(float* out, int, const Vec (&a)[kWidth]) {
    for (int i = 0; i < kWidth; ++i) out[i] = (a[i][0] + a[i][1]) + (a[i][2] + a[i][3]);
  }
  // K floats, again and again.
  template <int K>
  static Vec repeat(const float* p) {
    if constexpr (K == 4) return load(p);
    if constexpr (K == 2) return Vec{p[0], p[1], p[0], p[1]};
    if constexpr (K == 1) return set1(*p);
  }
  // Of each K lanes, the halves change places.
  template <int K>
  static Vec swap(Vec x) {
    if constexpr (K == 4) return Vec{x[2], x[3], x[0], x[1]};
    if constexpr (K == 2) return Vec{x[1], x[0], x[3], x[2]};
  }

private:
  // To the nearest, ties to even.
  static std::uint16_t half_of(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const std::uint32_t sign = (bits >> 16) & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7e00);
    if (bits >= 0x47800000) return static_cast<std::uint16_t>(sign | 0x7c00);
    if (bits < 0x38800000) {  // subnormal: adding 0.5 leaves the result, rounded, in the low bits
      float magnitude;
      std::memcpy(&magnitude, &bits, sizeof magnitude);
      magnitude += 0.5f;
      std::memcpy(&bits, &magnitude, sizeof bits);
      return static_cast<std::uint16_t>(sign | (bits - 0x3f000000));
    }
    bits += 0xfff + ((bits >> 13) & 1);
    return static_cast<std::uint16_t>(sign | ((bits - 0x38000000) >> 13));
  }
};

}  // namespace
}  // namespace lamina::attention
