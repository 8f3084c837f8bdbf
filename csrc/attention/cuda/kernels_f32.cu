#include "attention/cuda/attend.cuh"
#include "attention/cuda/finish.cuh"
#include "attention/cuda/warp_simt.cuh"

namespace lamina::attention::cuda {

namespace {

template <int kDim>
AttendKernel simt_kernel() {
  using Warp = WarpSimt<kDim, 8>;
  using Kernel = Attend<Warp>;
  return {reinterpret_cast<const void*>(&attend<Warp>), Kernel::kSharedBytes, Kernel::kHeads,
          Kernel::kTokens};
}

AttendKernel simt_kernel_for(int, int head_dim) {
  if (head_dim <= 64) return simt_kernel<64>();
  return head_dim <= 128 ? simt_kernel<128>() : simt_kernel<256>();
}

}  // namespace

Kernels kernels_f32() { return {&simt_kernel_for, reinterpret_cast<const void*>(&finish<F32>), 4}; }

}  // namespace lamina::attention::cuda
