#if defined(__x86_64__)

#include "attention/target_region.hpp"

LAMINA_BEGIN_TARGET("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")

#include "attention/simd_avx512.hpp"
#include "attention/wide.hpp"

namespace lamina::attention {

Kernels avx512_kernels(DType dtype) { return wide_kernels<Avx512Simd>(dtype); }

}  // namespace lamina::attention

LAMINA_END_TARGET

#endif
