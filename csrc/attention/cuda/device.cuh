#pragma once

#include <cstdint>

#include "cuda/device.cuh"

// What the attention kernels ask of the hardware, each named for what it does to memory or among threads.
// Nothing else in this folder contains PTX.
namespace lamina::attention::cuda {

using namespace lamina::cuda;

}  // namespace lamina::attention::cuda

#ifndef __CUDACC__
#include "cuda_emulation_attention.hpp"
#else

#include <cuda_fp16.h>

namespace lamina::attention::cuda {

LAMINA_DEVICE std::uint32_t shared_address(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}

// Starts copying 16 bytes from global to shared memory, past L1, which would keep what is read once. When it
// is not wanted the 16 bytes become zero and `global` is not read.
LAMINA_DEVICE void copy_async_16(void* shared, const void* global, bool wanted) {
  const int bytes = wanted ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(bytes)
               : "memory");
}

// Closes the group of this thread's copies begun since the last call; the group may be empty.
LAMINA_DEVICE void commit_async() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's latest groups are unfinished. Other threads see the bytes
// after a barrier with this one.
template <int kPending>
LAMINA_DEVICE void wait_async() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8. Afterwards
// register i holds two neighbours of row lane / 4 of matrix i.
LAMINA_DEVICE void load_matrices(std::uint32_t (&r)[4], const void* shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(shared))
               : "memory");
}

// The same, each matrix transposed.
LAMINA_DEVICE void load_matrices_transposed(std::uint32_t (&r)[4], const void* shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(shared))
               : "memory");
}

// Transposes an 8x8 matrix of 16-bit elements held by the warp as above.
LAMINA_DEVICE std::uint32_t transpose_8x8(std::uint32_t pair) {
  std::uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

// d[16x8] += a[16x16] b[16x8], in fp32.
LAMINA_DEVICE void multiply_add_bf16(float (&d)[4], const std::uint32_t (&a)[4],
                                     const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

LAMINA_DEVICE void multiply_add_f16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Two floats rounded to nearest, the first in the low half.
LAMINA_DEVICE std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

LAMINA_DEVICE std::uint32_t pack_f16(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

LAMINA_DEVICE float float_of_f16(std::uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
LAMINA_DEVICE float float_of_bits(std::uint32_t bits) { return __uint_as_float(bits); }

// Adds one; what this block wrote before (behind a barrier) is visible to readers of the sum afterwards, on
// the whole device.
LAMINA_DEVICE std::int32_t count_acq_rel_gpu(std::int32_t* counter) {
  std::int32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

// Reads past L1, for what other blocks have just written.
LAMINA_DEVICE float load_l2(const float* global) { return __ldcg(global); }

}  // namespace lamina::attention::cuda
#endif

namespace lamina::attention::cuda {

// The types K, V and q may have. Kernels move 16-bit elements about as bits and convert them where they
// calculate.

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
