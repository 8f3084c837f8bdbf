#pragma once

#include <cstdint>

// What all kernels ask of the hardware. A test that has no GPU puts functions of the same names in their
// place and runs the kernels as they are on the host.
#ifndef __CUDACC__
#include "cuda_emulation.hpp"
#else

#define LAMINA_DEVICE __device__ __forceinline__
#define LAMINA_UNROLL _Pragma("unroll")
#define LAMINA_UNROLL_4 _Pragma("unroll 4")
#define LAMINA_UNROLL_1 _Pragma("unroll 1")
#define LAMINA_KERNEL(threads) __global__ void __launch_bounds__(threads)
#define LAMINA_KERNEL_SHARING(threads, blocks) __global__ void __launch_bounds__(threads, blocks)

namespace lamina::cuda {

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

}  // namespace lamina::cuda
#endif
