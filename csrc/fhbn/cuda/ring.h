#ifndef LAMINA_FHBN_CUDA_RING_H
#define LAMINA_FHBN_CUDA_RING_H

#include <stddef.h>
#include <stdint.h>

#include "cuda/library.h"

// Rings in a GPU's own memory, for NICs that reach it. Not verified on hardware.

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct {
  uint64_t message_bytes;
  uint64_t first_seqno;
  uint32_t slots;
  uint32_t epoch;
} lamina_cuda_ring_shape;

// To be given back by destroy(allocated), which waits for the device, when no NIC knows of it any more.
typedef struct {
  void* memory;  // the ring, as kernels address it, beginning at a page
  size_t bytes;
  void* allocated;
  void (*destroy)(void* allocated);
  int32_t file;  // a dmabuf that stands for the ring, the caller's to close; -1 if none was requested
} lamina_cuda_ring;

// An empty ring in the current device's memory, or the mirror of one. LAMINA_CUDA_FAILED where kernels would
// not see what a NIC writes in the order in which it was written, or the driver gives no such file.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_ring_create(const lamina_cuda_ring_shape* shape,
                                                           int32_t as_file, lamina_cuda_ring* ring);

#if defined(__cplusplus)
}
#endif

#endif
