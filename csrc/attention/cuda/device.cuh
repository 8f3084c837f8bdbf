#pragma once

#include <cstdint>

// What the kernels ask of the hardware, each named for what it does to memory or among threads. Nothing else
// in this folder contains PTX. A test that has no GPU puts functions of the same names in their place and
// runs the kernels as they are on the host.
#ifndef __CUDACC__
#include "cuda_emulation.hpp"
#else

#include <cuda_fp16.h>

#define LAMINA_DEVICE __device__ __forceinline__
#define LAMINA_UNROLL _Pragma("unroll")
#define LAMINA_UNROLL_4 _Pragma("unroll 4")
#define LAMINA_UNROLL_1 _Pragma("unroll 1")
#define LAMINA_KERNEL(threads) __global__ void __launch_bounds__(threads)
#define LAMINA_KERNEL_SHARING(threads, blocks) __global__ void __launch_bounds__(threads, blocks)

namespace lamina::attention::cuda {

LAMINA_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
LAMINA_DEVICE int block_x() { return static_cast<int>(blockIdx.x); }
LAMINA_DEVICE int block_y() { return static_cast<int>(blockIdx.y); }
LAMINA_DEVICE int blocks_x() { return static_cast<int>(gridDim.x); }
LAMINA_DEVICE int blocks_y() { return static_cast<int>(gridDim.y); }

LAMINA_DEVICE char* shared_memory() {
  extern __shared__ __align__(128) char bytes[];
  return bytes;
}

LAMINA_DEVICE void sync_block() { __syncthreads(); }
LAMINA_DEVICE void sync_warp() { __syncwarp(); }

template <typename T>
LAMINA_DEVICE T shuffle(T value, int from_lane) {
  return __shfl_sync(0xffffffffu, value, from_lane);
}

// From a lane of the same kWidth neighbours.
template <int kWidth, typename T>
LAMINA_DEVICE T shuffle_within(T value, int from_lane) {
  return __shfl_sync(0xffffffffu, value, from_lane, kWidth);
}

template <typename T>
LAMINA_DEVICE T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

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

// Adds one; what this block wrote before (behind a barrier) is seen by whoever reads the sum after, on the
// whole device.
LAMINA_DEVICE std::int32_t count_acq_rel_gpu(std::int32_t* counter) {
  std::int32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

// Reads past L1, for what other blocks have just written.
LAMINA_DEVICE float load_l2(const float* global) { return __ldcg(global); }

}  // namespace lamina::attention::cuda
#endif
