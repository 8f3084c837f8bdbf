#include "attention/kernel.hpp"
#include "attention/simd_baseline.hpp"
#include "attention/wide.hpp"

namespace lamina::attention {

Kernels baseline_kernels(DType dtype) { return wide_kernels<BaselineSimd>(dtype); }

}  // namespace lamina::attention
