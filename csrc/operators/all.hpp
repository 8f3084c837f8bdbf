#pragma once

#include "operators/choice.hpp"
#include "operators/gate.hpp"
#include "operators/kernels.hpp"
#include "operators/norm.hpp"
#include "operators/rotary.hpp"

namespace lamina::operators {
namespace {

template <typename S, typename N = S>
Functions all_functions(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return {&Norm<S, N, BFloat16>::run, &rotary<S, BFloat16>, &gate<S, BFloat16>, &Choice<BFloat16>::rows};
    case DType::kFloat16:
      return {&Norm<S, N, Float16>::run, &rotary<S, Float16>, &gate<S, Float16>, &Choice<Float16>::rows};
    default:
      return {&Norm<S, N, float>::run, &rotary<S, float>, nullptr, &Choice<float>::rows};
  }
}

}  // namespace
}  // namespace lamina::operators
