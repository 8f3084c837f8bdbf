#include "operators/kernels.hpp"

namespace lamina::operators {

Functions functions_for(Isa isa, DType dtype) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return avx2_functions(dtype);
    case Isa::kAvx512:
    case Isa::kAvx512Bf16:
    case Isa::kAmxBf16:
      return avx512_functions(dtype);
#endif
    default:
      return baseline_functions(dtype);
  }
}

}  // namespace lamina::operators
