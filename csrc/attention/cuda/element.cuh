#pragma once

#include <cstdint>

#include "attention/cuda/device.cuh"

// The types K, V and q may have. Kernels move 16-bit elements about as bits and convert them where they
// calculate.
namespace lamina::attention::cuda {

struct Bf16 {
  using Storage = std::uint16_t;
  static LAMINA_DEVICE float load(Storage bits) {
    return float_of_bits(static_cast<std::uint32_t>(bits) << 16);
  }
  static LAMINA_DEVICE Storage store(float value) { return static_cast<Storage>(pack_bf16(value, 0.0f)); }
  static LAMINA_DEVICE std::uint32_t pack(float low, float high) { return pack_bf16(low, high); }
  static LAMINA_DEVICE void multiply_add(float (&d)[4], const std::uint32_t (&a)[4],
                                         const std::uint32_t (&b)[2]) {
    multiply_add_bf16(d, a, b);
  }
};

struct F16 {
  using Storage = std::uint16_t;
  static LAMINA_DEVICE float load(Storage bits) { return float_of_f16(bits); }
  static LAMINA_DEVICE Storage store(float value) { return static_cast<Storage>(pack_f16(value, 0.0f)); }
  static LAMINA_DEVICE std::uint32_t pack(float low, float high) { return pack_f16(low, high); }
  static LAMINA_DEVICE void multiply_add(float (&d)[4], const std::uint32_t (&a)[4],
                                         const std::uint32_t (&b)[2]) {
    multiply_add_f16(d, a, b);
  }
};

struct F32 {
  using Storage = float;
  static LAMINA_DEVICE float load(Storage value) { return value; }
  static LAMINA_DEVICE Storage store(float value) { return value; }
};

}  // namespace lamina::attention::cuda
