#include "attention/cuda/kernels_16bit.cuh"

namespace lamina::attention::cuda {

Kernels kernels_bf16() { return kernels_16bit<Bf16>(); }

}  // namespace lamina::attention::cuda
