#include "attention/kernel.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/target_region.hpp"

LAMINA_BEGIN_TARGET("avx2,fma,f16c")

#include "attention/kernel_template.hpp"
#include "attention/merge_template.hpp"
#include "attention/simd_avx2.hpp"
#include "attention/wide.hpp"

namespace lamina::attention {

namespace {

template <typename E>
Kernels kernels_of() {
  return {&RangeKernel<Avx2Simd, E, WideDot<Avx2Simd, E>, WideSum<Avx2Simd, E>>::attend,
          &MergeKernel<Avx2Simd, E>::merge, &read<Avx2Simd>};
}

}  // namespace

Kernels avx2_kernels(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return kernels_of<BFloat16>();
    case DType::kFloat16:
      return kernels_of<Float16>();
    default:
      return kernels_of<float>();
  }
}

}  // namespace lamina::attention

LAMINA_END_TARGET

#endif
