#if defined(__x86_64__)

#include "attention/target_region.hpp"

LAMINA_BEGIN_TARGET("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")

#include "attention/kernel_template.hpp"
#include "attention/pairs.hpp"
#include "attention/simd_avx512.hpp"
#include "attention/wide.hpp"

namespace lamina::attention {

namespace {

using FloatWeights = RangeKernel<Avx512Simd, BFloat16, PairDot, WideSum<Avx512Simd, BFloat16>>;
using RoundedWeights = RangeKernel<Avx512Simd, BFloat16, PairDot, PairSum>;

// From 8 query heads to a KV head on, arithmetic takes as long as reading: there, weights are rounded to
// bfloat16.
void attend(const RangeTask& task) {
  task.shape.group() < 8 ? FloatWeights::attend(task) : RoundedWeights::attend(task);
}

}  // namespace

// Only bfloat16 gains from these instructions.
Kernels avx512_bf16_kernels(DType dtype) {
  if (dtype != DType::kBFloat16) return avx512_kernels(dtype);
  return {&attend, &MergeKernel<Avx512Simd, BFloat16>::merge, &read<Avx512Simd>};
}

}  // namespace lamina::attention

LAMINA_END_TARGET

#endif
