#include "attention/kernel.hpp"
#include "attention/kernel_template.hpp"
#include "attention/merge_template.hpp"
#include "attention/simd_baseline.hpp"
#include "attention/wide.hpp"

namespace lamina::attention {

namespace {

template <typename E>
Kernels kernels_of() {
  return {&RangeKernel<BaselineSimd, E, WideDot<BaselineSimd, E>, WideSum<BaselineSimd, E>>::attend,
          &MergeKernel<BaselineSimd, E>::merge, &read<BaselineSimd>};
}

}  // namespace

Kernels baseline_kernels(DType dtype) {
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
