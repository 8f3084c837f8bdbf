#pragma once

// The device of fake_cuda: the emulation, for the kernels of channels and of NICs. Of a program, one file
// includes this.

#include <type_traits>

#include "cuda_channel.hpp"
#include "cuda_runtime_api.h"
#include "fhbn/cuda/nic.cuh"

namespace fake_cuda {

// Of this thread's launches.
inline thread_local int launches = 0;
inline thread_local int blocks_of_last_copy = 0;
inline Work (*work_of_others)(const Launch&) = nullptr;  // kernels that are none of these

template <typename Args>
Work bound(const Launch& launch, void (*kernel)(Args)) {
  return [kernel, grid = launch.grid, block = launch.block, shared_bytes = launch.shared_bytes,
          args = *static_cast<const std::remove_const_t<Args>*>(launch.arguments[0])] {
    ++launches;
    if (block.x > 1) blocks_of_last_copy = static_cast<int>(grid.x);
    lamina::cuda::emulated::launch(kernel, static_cast<int>(grid.x), static_cast<int>(grid.y),
                                   static_cast<int>(block.x), shared_bytes, args);
  };
}

// The one that is launched, if it is among these.
template <typename... Args>
Work bound_if_among(const Launch& launch, void (*... kernels)(Args)) {
  Work work;
  const auto bind_if = [&](auto kernel) {
    if (launch.entry == reinterpret_cast<const void*>(kernel)) work = bound(launch, kernel);
  };
  (bind_if(kernels), ...);
  return work;
}

Work work_of(const Launch& launch) {
  namespace cuda = lamina::fhbn::cuda;
  Work work = bound_if_among(launch, &cuda::send, &cuda::recv, &cuda::poll, &cuda::fetch, &cuda::give_back,
                             &cuda::post, &cuda::poll_nic);
  if (!work && work_of_others != nullptr) work = work_of_others(launch);
  expect(work != nullptr, "an unknown kernel was launched");
  return work;
}

}  // namespace fake_cuda
