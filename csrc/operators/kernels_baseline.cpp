#include "attention/simd_baseline.hpp"
#include "operators/all.hpp"

namespace lamina::operators {

Functions baseline_functions(DType dtype) { return all_functions<attention::BaselineSimd>(dtype); }

}  // namespace lamina::operators
