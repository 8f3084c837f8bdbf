#ifndef LAMINA_CUDA_LIBRARY_H
#define LAMINA_CUDA_LIBRARY_H

// What all of liblamina_cuda.so's functions have in common. What it does is in attention/cuda/decode.h,
// operators/cuda/operators.h, and fhbn/cuda/channel.h, nic.h and ring.h.

#if defined(__cplusplus)
extern "C" {
#endif

#define LAMINA_CUDA_API __attribute__((visibility("default")))

typedef struct CUstream_st* lamina_cuda_stream;  // the same as cudaStream_t

typedef enum {
  LAMINA_CUDA_OK = 0,
  LAMINA_CUDA_BAD_ARGUMENT = 1,  // the arguments make no sense; nothing was launched
  LAMINA_CUDA_NO_DEVICE = 2,     // no driver, or no GPU that this library has code for
  LAMINA_CUDA_FAILED = 3,        // the CUDA runtime said no
  // What lamina_cuda_channel_check() finds.
  LAMINA_CUDA_CHANNEL_LATE = 4,       // nothing happened in time
  LAMINA_CUDA_CHANNEL_LOST = 5,       // the peer has ended without closing
  LAMINA_CUDA_CHANNEL_CLOSED = 6,     // the peer has closed its end
  LAMINA_CUDA_CHANNEL_CORRUPTED = 7,  // the peer has written what no peer of ours writes
  LAMINA_CUDA_CHANNEL_MISUSED = 8,    // what was called does not fit what has arrived
  LAMINA_CUDA_NIC_FAILED = 9          // what lamina_cuda_nic_check() finds: the NIC has given up
} lamina_cuda_status;

// Why this thread's latest call did not return LAMINA_CUDA_OK, in one sentence. Valid until its next call.
LAMINA_CUDA_API const char* lamina_cuda_message(void);

// LAMINA_CUDA_OK if the current device can be used.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_check_device(void);

#if defined(__cplusplus)
}
#endif

#endif
