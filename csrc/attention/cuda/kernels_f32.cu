#include "attention/cuda/finish.cuh"
#include "attention/cuda/latent_simt.cuh"
#include "attention/cuda/separate_warps.cuh"
#include "attention/cuda/warp_simt.cuh"

namespace lamina::attention::cuda {

namespace {

template <int kDim>
AttendKernel simt_kernel() {
  return attend_kernel<SeparateWarps<WarpSimt<kDim, 8>>>();
}

AttendKernel simt_kernel_for(int, int head_dim) {
  if (head_dim <= 64) return simt_kernel<64>();
  return head_dim <= 128 ? simt_kernel<128>() : simt_kernel<256>();
}

AttendKernel latent_simt_kernel_for(int) { return attend_kernel<Latent<LatentSimt>>(); }

}  // namespace

Kernels kernels_f32() {
  return {&simt_kernel_for, &latent_simt_kernel_for, reinterpret_cast<const void*>(&finish<F32>), 4};
}

}  // namespace lamina::attention::cuda
