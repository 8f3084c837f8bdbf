#if defined(__x86_64__)

#include "attention/target_region.hpp"

LAMINA_BEGIN_TARGET("avx2,fma,f16c")

#include "attention/simd_avx2.hpp"
#include "attention/wide.hpp"

namespace lamina::attention {

Kernels avx2_kernels(DType dtype) { return wide_kernels<Avx2Simd>(dtype); }

}  // namespace lamina::attention

LAMINA_END_TARGET

#endif
