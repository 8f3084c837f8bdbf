#include "attention/kernel.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/target_region.hpp"

LAMINA_BEGIN_TARGET("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")

#include "attention/kernel_template.hpp"
#include "attention/merge_template.hpp"
#include "attention/simd_avx512.hpp"
#include "attention/wide.hpp"

namespace lamina::attention {

namespace {

template <typename E>
Kernels kernels_of() {
  return {&RangeKernel<Avx512Simd, E, WideDot<Avx512Simd, E>, WideSum<Avx512Simd, E>>::attend,
          &MergeKernel<Avx512Simd, E>::merge, &read<Avx512Simd>};
}

}  // namespace

Kernels avx512_kernels(DType dtype) {
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
