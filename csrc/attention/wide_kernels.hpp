#pragma once

#include "attention/kernel.hpp"
#include "attention/kernel_template.hpp"
#include "attention/merge_template.hpp"
#include "attention/wide.hpp"

namespace lamina::attention {
namespace {

// What an instruction set without products of its own has for every dtype: all of it in floats, as wide as S.
template <typename S, typename E>
Kernels wide_kernels_of() {
  return {&RangeKernel<S, E, WideDot<S, E>, WideSum<S, E>>::attend, &MergeKernel<S, E>::merge, &read<S>};
}

template <typename S>
Kernels wide_kernels(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return wide_kernels_of<S, BFloat16>();
    case DType::kFloat16:
      return wide_kernels_of<S, Float16>();
    default:
      return wide_kernels_of<S, float>();
  }
}

}  // namespace
}  // namespace lamina::attention
