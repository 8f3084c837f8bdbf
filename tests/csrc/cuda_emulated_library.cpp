// liblamina_cuda.so's own calls for channels and NICs, over a runtime whose device is the emulation: a
// library for Python's tests, which compile it. Work that is put on a stream is done when the call returns,
// by the thread that calls; one thread at a time.

#include "cuda/library.cu"
#include "cuda_fake_device.hpp"
#include "fhbn/cuda/channel.cu"
#include "fhbn/cuda/nic.cu"
