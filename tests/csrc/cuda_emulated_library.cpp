// liblamina_cuda.so over a runtime whose device is the emulation: a library for Python's tests, which compile
// it. Work that is put on a stream is done when the call returns, by the thread that calls; threads work side
// by side. Tensors "on the device" are in the host's memory, which lamina_cuda_is_emulated tells.

#include "cuda/library.cu"
#include "cuda_fake_attention.hpp"
#include "fhbn/cuda/channel.cu"
#include "fhbn/cuda/nic.cu"
#include "fhbn/cuda/ring.cu"
// These bring names of their own into all that follows.
#include "attention/cuda/kernels_bf16.cu"
#include "attention/cuda/kernels_f16.cu"
#include "attention/cuda/kernels_f32.cu"
#include "attention/cuda/problem.cu"
//
#include "attention/cuda/decode.cu"
//
#include "operators/cuda/operators.cu"

extern "C" {
extern LAMINA_CUDA_API const int lamina_cuda_is_emulated;
const int lamina_cuda_is_emulated = 1;
// What the calling thread launches goes to this device, of which there are as many as are asked for.
LAMINA_CUDA_API void lamina_cuda_emulated_take(int device) { cudaSetDevice(device); }
// What waits for all that runs on the thread's device, and how much that is.
LAMINA_CUDA_API void lamina_cuda_emulated_synchronize() { cudaDeviceSynchronize(); }
LAMINA_CUDA_API int lamina_cuda_emulated_running() { return fake_cuda::devices.running(fake_cuda::device); }
}
