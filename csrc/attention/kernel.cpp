#include "attention/kernel.hpp"

namespace lamina::attention {

Kernels kernels_for(Isa isa, DType dtype) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return avx2_kernels(dtype);
    case Isa::kAvx512:
      return avx512_kernels(dtype);
    case Isa::kAvx512Bf16:
      return avx512_bf16_kernels(dtype);
#endif
    default:
      return baseline_kernels(dtype);
  }
}

}  // namespace lamina::attention
