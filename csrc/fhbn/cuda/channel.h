#ifndef LAMINA_FHBN_CUDA_CHANNEL_H
#define LAMINA_FHBN_CUDA_CHANNEL_H

#include <stddef.h>
#include <stdint.h>

#include "cuda/library.h"

// An end of a channel (fhbn/wire.hpp) on an NVIDIA GPU, over memory that it shares with the peer or that a
// NIC writes to (over a ConnectX not verified on hardware).
//
// What sends and receives are kernels: a call puts them on a stream and returns, and no host thread has a
// part in what follows. So work that needs a message can be launched before the message is there. No call but
// create and destroy allocates or waits for the device; all others can be captured in a graph, and each
// replay sends or receives the next message. An end is used by one stream at a time.
//
// A kernel that waits ends after `timeout_ns`, when the peer has closed, or after abort(). From its first
// failure on an end does nothing, quickly: what waits behind it on the stream runs, over buffers that nothing
// was received into. call check() before results are used. The peer's memory is not trusted.

#if defined(__cplusplus)
extern "C" {
#endif

#define LAMINA_CUDA_CHANNEL_PARTS 14

typedef struct lamina_cuda_channel_end lamina_cuda_channel_end;
typedef struct lamina_cuda_nic_end lamina_cuda_nic_end;  // of nic.h

typedef enum { LAMINA_CUDA_CHANNEL_SENDS = 0, LAMINA_CUDA_CHANNEL_RECEIVES = 1 } lamina_cuda_channel_side;

typedef struct {
  void* memory;  // the ring, beginning at a page; to stay until the end is destroyed
  size_t bytes;
  int32_t side;        // lamina_cuda_channel_side
  int32_t on_device;   // 1: it lies in the device's memory (ring.h), 0: in the host's, mapped in this process
  int64_t timeout_ns;  // the longest that a kernel waits, more than 0
  const char* peer;    // the other end's name, for check()'s sentences; copied
} lamina_cuda_channel;

// Device memory of any size and alignment, for one part of a message.
typedef struct {
  void* data;
  uint64_t bytes;
} lamina_cuda_channel_buffer;

// A received message, as kernels of the caller's may read it. What is in the ring was written by the peer.
typedef struct {
  uint64_t seqno;
  uint32_t count;  // of parts; 0 if receiving has failed
  uint32_t unused;
  uint64_t bytes[LAMINA_CUDA_CHANNEL_PARTS];
  const void* part[LAMINA_CUDA_CHANNEL_PARTS];  // in the ring, until given back
} lamina_cuda_channel_message;

// An end on the current device, from the ring's first message on. Pins the ring's memory and maps it for the
// device, if it is the host's; two ends in one process may use the same ring. Loads all kernels, so that no
// launch has to wait for a kernel that waits.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_channel_create(const lamina_cuda_channel* channel,
                                                              lamina_cuda_channel_end** end);

// From now on a NIC carries this end's messages: send() and recv() post to it by themselves. Its end (nic.h)
// lies over the same memory, sends if this one does, and is of the same device; once it is destroyed, nothing
// but check(), abort() and destroy() may be called.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_channel_attach(lamina_cuda_channel_end* end,
                                                              lamina_cuda_nic_end* nic);

// Ends of one stream that share a word of the device's memory, at first 0: once one has failed, or the NIC
// that is attached to it, none of them sends or receives, so that nothing is made of what has not come, and
// nothing waited for that cannot. It has to stay until they are destroyed.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_channel_share(lamina_cuda_channel_end* end, uint32_t* fate);

// Ends waits as abort() does, waits for the device, and closes the end, which the peer sees. No graph that
// uses it may be replayed afterwards.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_channel_destroy(lamina_cuda_channel_end* end);

// Sends the parts as one message when there is a free slot: one kernel, over a NIC too. They may be written
// again behind this on the stream.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_channel_send(lamina_cuda_channel_end* end,
                                                            const lamina_cuda_channel_buffer* parts,
                                                            int32_t count, lamina_cuda_stream stream);

// Waits for the next message and checks it. It stays in the ring until given back, and describe() returns
// where.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_channel_poll(lamina_cuda_channel_end* end,
                                                            lamina_cuda_stream stream);

// Copies the parts of the message that the latest poll() has found. There must be as many buffers as parts,
// none smaller than its part; what a buffer has beyond that is left as it is.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_channel_fetch(lamina_cuda_channel_end* end,
                                                             const lamina_cuda_channel_buffer* into,
                                                             int32_t count, lamina_cuda_stream stream);

// The sender may write where the oldest message lies that was not given back. Over a NIC it is notified by
// lamina_cuda_nic_post().
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_channel_give_back(lamina_cuda_channel_end* end,
                                                                 lamina_cuda_stream stream);

// poll(), fetch() and give_back() by one kernel, which notifies a NIC too; when no other message is held.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_channel_recv(lamina_cuda_channel_end* end,
                                                            const lamina_cuda_channel_buffer* into,
                                                            int32_t count, lamina_cuda_stream stream);

// Where, in device memory, poll() describes what it has found. It stays for as long as the end.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_channel_describe(lamina_cuda_channel_end* end,
                                                                const lamina_cuda_channel_message** message);

// Whether the end still works, as far as the device has come: one of LAMINA_CUDA_CHANNEL_* if not. Waits for
// nothing.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_channel_check(lamina_cuda_channel_end* end);

// The peer has ended: a wait for it ends soon, once everything it had published is received.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_channel_abort(lamina_cuda_channel_end* end);

#if defined(__cplusplus)
}
#endif

#endif
