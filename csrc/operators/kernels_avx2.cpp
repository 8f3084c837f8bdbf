#if defined(__x86_64__)

#include "attention/target_region.hpp"
#include "operators/kernels.hpp"

LAMINA_BEGIN_TARGET("avx2,fma,f16c")

#include "attention/simd_avx2.hpp"
#include "operators/all.hpp"

namespace lamina::operators {

Functions avx2_functions(DType dtype) { return all_functions<attention::Avx2Simd>(dtype); }

}  // namespace lamina::operators

LAMINA_END_TARGET

#endif
