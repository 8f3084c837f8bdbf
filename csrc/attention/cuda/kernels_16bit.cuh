#pragma once

#include "attention/cuda/finish.cuh"
#include "attention/cuda/latent_mma.cuh"
#include "attention/cuda/separate_warps.cuh"
#include "attention/cuda/warp_mma.cuh"

namespace lamina::attention::cuda {

template <typename Element, int kDim, int kHeads>
AttendKernel mma_kernel() {
  return attend_kernel<SeparateWarps<WarpMma<Element, kDim, kHeads>>>();
}

// Dimensions are filled up to 64, 128 or 256 in shared memory only: what is filled up costs no bytes of the
// arena's.
template <typename Element>
AttendKernel mma_kernel_for(int group, int head_dim) {
  if (head_dim <= 64) return group <= 8 ? mma_kernel<Element, 64, 8>() : mma_kernel<Element, 64, 16>();
  if (head_dim <= 128) return group <= 8 ? mma_kernel<Element, 128, 8>() : mma_kernel<Element, 128, 16>();
  return group <= 8 ? mma_kernel<Element, 256, 8>() : mma_kernel<Element, 256, 16>();
}

template <typename Element>
AttendKernel latent_mma_kernel_for(int group) {
  return group <= 16 ? attend_kernel<Latent<LatentMma<Element, 16>>>()
                     : attend_kernel<Latent<LatentMma<Element, 64>>>();
}

template <typename Element>
Kernels kernels_16bit() {
  return {&mma_kernel_for<Element>, &latent_mma_kernel_for<Element>,
          reinterpret_cast<const void*>(&finish<Element>), 2};
}

}  // namespace lamina::attention::cuda
