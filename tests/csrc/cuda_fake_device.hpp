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

template <typename Args>
bool launch_if(const void* entry, void (*kernel)(Args), dim3 grid, dim3 block, void** arguments) {
  if (entry != reinterpret_cast<const void*>(kernel)) return false;
  ++launches;
  if (block.x > 1) blocks_of_last_copy = static_cast<int>(grid.x);
  lamina::cuda::emulated::launch(kernel, static_cast<int>(grid.x), static_cast<int>(grid.y),
                                 static_cast<int>(block.x), 0,
                                 *static_cast<const std::remove_const_t<Args>*>(arguments[0]));
  return true;
}

void launch(const void* entry, dim3 grid, dim3 block, void** arguments) {
  namespace cuda = lamina::fhbn::cuda;
  const bool launched = launch_if(entry, &cuda::await_slot, grid, block, arguments) ||
                        launch_if(entry, &cuda::gather, grid, block, arguments) ||
                        launch_if(entry, &cuda::poll, grid, block, arguments) ||
                        launch_if(entry, &cuda::fetch, grid, block, arguments) ||
                        launch_if(entry, &cuda::give_back, grid, block, arguments) ||
                        launch_if(entry, &cuda::post, grid, block, arguments) ||
                        launch_if(entry, &cuda::poll_nic, grid, block, arguments);
  expect(launched, "an unknown kernel was launched");
}

}  // namespace fake_cuda
