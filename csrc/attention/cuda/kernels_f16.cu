#include "attention/cuda/kernels_16bit.cuh"

namespace lamina::attention::cuda {

Kernels kernels_f16() { return kernels_16bit<F16>(); }

}  // namespace lamina::attention::cuda
