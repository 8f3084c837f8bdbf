#pragma once

// The kernels of attention and of operators of fake_cuda's device, beside those of cuda_fake_device.hpp.

#include "attention/cuda/attend.cuh"
#include "attention/cuda/finish.cuh"
#include "attention/cuda/plan.cuh"
#include "attention/cuda/rows.cuh"
#include "cuda_fake_device.hpp"
#include "operators/cuda/operators.cuh"

namespace fake_cuda {

// Whatever else is launched attends: there are many of that one, with the same arguments.
inline Work work_of_attention(const Launch& launch) {
  namespace kernels = lamina::attention::cuda;
  using kernels::Bf16, kernels::F16, kernels::F32;
  Work work = bound_if_among(launch, &kernels::share_out, &kernels::combine, &kernels::append,
                             &kernels::finish<Bf16>, &kernels::finish<F16>, &kernels::finish<F32>);
  if (work) return work;
  namespace operators = lamina::operators::cuda;
  work = bound_if_among(launch, &operators::norm<Bf16, 32>, &operators::norm<F16, 32>,
                        &operators::norm<F32, 32>, &operators::norm<Bf16, 256>, &operators::norm<F16, 256>,
                        &operators::norm<F32, 256>, &operators::norm<Bf16, 1024>, &operators::norm<F16, 1024>,
                        &operators::norm<F32, 1024>, &operators::rotate<Bf16>, &operators::rotate<F16>,
                        &operators::rotate<F32>, &operators::gate<Bf16>, &operators::gate<F16>);
  if (work) return work;
  return bound(launch, reinterpret_cast<void (*)(kernels::AttendArgs)>(const_cast<void*>(launch.entry)));
}

[[maybe_unused]] inline const bool kAttends = [] {
  work_of_others = &work_of_attention;
  return true;
}();

}  // namespace fake_cuda
