// liblamina_cuda.so over a runtime whose device is the emulation: a library for Python's tests, which compile
// it. Work that is put on a stream is done when the call returns, by the thread that calls; one thread at a
// time. Tensors "on the device" are in the host's memory, which lamina_cuda_is_emulated tells.

#include "cuda/library.cu"
#include "cuda_fake_device.hpp"
#include "fhbn/cuda/channel.cu"
#include "fhbn/cuda/nic.cu"
// These bring names of their own into all that follows.
#include "attention/cuda/kernels_bf16.cu"
#include "attention/cuda/kernels_f16.cu"
#include "attention/cuda/kernels_f32.cu"
#include "attention/cuda/problem.cu"
//
#include "attention/cuda/decode.cu"

extern "C" {
extern LAMINA_CUDA_API const int lamina_cuda_is_emulated;
const int lamina_cuda_is_emulated = 1;
}

namespace {

namespace kernels = lamina::attention::cuda;

// Whatever else is launched attends: there are many of that one, with the same arguments.
bool launch_attention(const fake_cuda::Launch& launch) {
  using kernels::Bf16, kernels::F16, kernels::F32;
  if (!fake_cuda::run_if_among(launch, &kernels::share_out, &kernels::combine, &kernels::append,
                               &kernels::finish<Bf16>, &kernels::finish<F16>, &kernels::finish<F32>)) {
    fake_cuda::run(launch, reinterpret_cast<void (*)(kernels::AttendArgs)>(const_cast<void*>(launch.entry)));
  }
  return true;
}

[[maybe_unused]] const bool kAttends = [] {
  fake_cuda::launch_others = &launch_attention;
  return true;
}();

}  // namespace
