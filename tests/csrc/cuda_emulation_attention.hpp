#pragma once

// What the attention kernels ask of the hardware beyond what all do: matrix instructions, asynchronous copies
// and 16-bit numbers.

#include "cuda_emulation.hpp"

namespace lamina::cuda::emulated {

inline void carry_out(const Copy& copy) {
  if (copy.wanted) {
    std::memcpy(copy.to, copy.from, 16);
  } else {
    std::memset(copy.to, 0, 16);
  }
}

inline float half_to_float(std::uint16_t bits) {
  _Float16 value;
  std::memcpy(&value, &bits, 2);
  return static_cast<float>(value);
}
inline std::uint16_t float_to_half(float value) {
  const auto half = static_cast<_Float16>(value);
  std::uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}
inline float bf16_to_float(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}
inline std::uint16_t float_to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // to nearest, ties to even
}

// d[16x8] += a[16x16] b[16x8] with the lanes holding what the instruction set's tables say.
template <typename ToFloat>
void multiply_add(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2], ToFloat to_float) {
  const std::uint32_t own[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  const auto* const all = exchange(own, 6);
  const auto half_of = [&](std::uint32_t pair, int i) {
    return to_float(static_cast<std::uint16_t>(i == 0 ? pair : pair >> 16));
  };
  for (int i = 0; i < 4; ++i) {
    const int row = lane() / 4 + (i / 2) * 8;
    const int column = (lane() % 4) * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const float left = half_of(all[(row % 8) * 4 + (k % 8) / 2][row / 8 + (k / 8) * 2], k % 2);
      const float right = half_of(all[column * 4 + (k % 8) / 2][4 + k / 8], k % 2);
      d[i] += left * right;
    }
  }
}

inline void matrices(std::uint32_t (&r)[4], const void* address, bool transposed) {
  std::uint32_t own[2];
  std::memcpy(own, &address, 8);
  const auto* const all = exchange(own, 2);
  for (int m = 0; m < 4; ++m) {
    std::uint16_t pair[2];
    for (int i = 0; i < 2; ++i) {
      const int row = transposed ? (lane() % 4) * 2 + i : lane() / 4;
      const int column = transposed ? lane() / 4 : (lane() % 4) * 2 + i;
      const char* from;
      std::memcpy(&from, all[m * 8 + row], 8);
      std::memcpy(&pair[i], from + column * 2, 2);
    }
    std::memcpy(&r[m], pair, 4);
  }
}

}  // namespace lamina::cuda::emulated

namespace lamina::attention::cuda {

inline void copy_async_16(void* shared, const void* global, bool wanted) {
  const emulated::Copy copy{shared, global, wanted};
  if (emulated::machine.copies == emulated::Copies::kAtOnce) {
    emulated::carry_out(copy);
  } else {
    emulated::self().open.push_back(copy);
  }
}
inline void commit_async() {
  emulated::self().groups.push_back(std::move(emulated::self().open));
  emulated::self().open.clear();
}
template <int kPending>
void wait_async() {
  auto& groups = emulated::self().groups;
  while (groups.size() > kPending) {
    for (const emulated::Copy& copy : groups.front()) emulated::carry_out(copy);
    groups.erase(groups.begin());
  }
}

inline void load_matrices(std::uint32_t (&r)[4], const void* shared) { emulated::matrices(r, shared, false); }
inline void load_matrices_transposed(std::uint32_t (&r)[4], const void* shared) {
  emulated::matrices(r, shared, true);
}
inline std::uint32_t transpose_8x8(std::uint32_t pair) {
  const auto* const all = emulated::exchange(&pair, 1);
  std::uint32_t transposed = 0;
  for (int i = 0; i < 2; ++i) {
    const int row = (emulated::lane() % 4) * 2 + i;
    const int column = emulated::lane() / 4;
    const std::uint32_t stored = all[row * 4 + column / 2][0];
    transposed |= ((column % 2 == 0 ? stored : stored >> 16) & 0xffffu) << (16 * i);
  }
  return transposed;
}
inline void multiply_add_bf16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  emulated::multiply_add(d, a, b, emulated::bf16_to_float);
}
inline void multiply_add_f16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  emulated::multiply_add(d, a, b, emulated::half_to_float);
}
inline std::uint32_t pack_bf16(float low, float high) {
  return emulated::float_to_bf16(low) | static_cast<std::uint32_t>(emulated::float_to_bf16(high)) << 16;
}
inline std::uint32_t pack_f16(float low, float high) {
  return emulated::float_to_half(low) | static_cast<std::uint32_t>(emulated::float_to_half(high)) << 16;
}
inline float float_of_f16(std::uint16_t bits) { return emulated::half_to_float(bits); }
inline float float_of_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline std::int32_t count_acq_rel_gpu(std::int32_t* counter) { return (*counter)++; }
inline float load_l2(const float* global) { return *global; }

}  // namespace lamina::attention::cuda
