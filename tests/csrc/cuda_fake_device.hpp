#pragma once

// The device of fake_cuda: the emulation, for the kernels of channels and of NICs. Of a program, one file
// includes this.

#include <type_traits>

#include "cuda_channel.hpp"
#include "cuda_runtime_api.h"
#include "fhbn/cuda/nic.cuh"

namespace fake_cuda {

inline int launches = 0;
inline int blocks_of_last_copy = 0;
inline bool (*launch_others)(const Launch&) = nullptr;  // kernels that are none of these

template <typename Args>
void run(const Launch& launch, void (*kernel)(Args)) {
  ++launches;
  if (launch.block.x > 1) blocks_of_last_copy = static_cast<int>(launch.grid.x);
  lamina::cuda::emulated::launch(kernel, static_cast<int>(launch.grid.x), static_cast<int>(launch.grid.y),
                                 static_cast<int>(launch.block.x), launch.shared_bytes,
                                 *static_cast<const std::remove_const_t<Args>*>(launch.arguments[0]));
}

// Runs the one that is launched, if it is among these.
template <typename... Args>
bool run_if_among(const Launch& launch, void (*... kernels)(Args)) {
  const auto run_if = [&](auto kernel) {
    const bool is = launch.entry == reinterpret_cast<const void*>(kernel);
    if (is) run(launch, kernel);
    return is;
  };
  return (run_if(kernels) || ...);
}

void launch(const Launch& launch) {
  namespace cuda = lamina::fhbn::cuda;
  const bool launched = run_if_among(launch, &cuda::await_slot, &cuda::gather, &cuda::poll, &cuda::fetch,
                                     &cuda::give_back, &cuda::post, &cuda::poll_nic) ||
                        (launch_others != nullptr && launch_others(launch));
  expect(launched, "an unknown kernel was launched");
}

}  // namespace fake_cuda
