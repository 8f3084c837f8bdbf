#ifndef LAMINA_FHBN_CUDA_NIC_H
#define LAMINA_FHBN_CUDA_NIC_H

#include <stddef.h>
#include <stdint.h>

#include "cuda/library.h"

// What a NIC has to do for an end of a channel on an NVIDIA GPU, on request of kernels: work requests are put
// into an mlx5 send queue and rung from the device, and the host has no part in it. Not verified on hardware.
//
// The end itself is one of channel.h, to which this one is attached. A sender's lies over a mirror of the
// peer's ring; its send() has the message written into the ring, and then its number. A receiver's lies over
// the ring; its recv() has written into the mirror how much was consumed, and post() behind its give_back().
// All that they need lies in the device's memory, so they can be captured in a graph.

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct lamina_cuda_nic_end lamina_cuda_nic_end;

// A queue pair's memory, mapped in this process, as mlx5dv or a softnic gives it.
typedef struct {
  void* requests;
  uint32_t* send_record;
  uint64_t* registers;  // of the UAR page
  void* completions;
  uint32_t* completion_record;
  uint32_t blocks;  // of 64 bytes in the send queue, and as many completions or more; powers of two
  uint32_t completion_count;
  uint32_t qpn;
  uint32_t half_bytes;       // of the registers
  int32_t registers_are_io;  // 1: the page is a device's, 0: it is memory that a softnic looks at
  int32_t blueflame;  // 1: the registers take whole requests, and are to be given them if one is all there is
} lamina_cuda_nic_queues;

// How far the queues are, as the posting side keeps account of it (rdma::SendState).
typedef struct {
  uint32_t next;
  uint32_t rung;
  uint32_t latest;
  uint32_t signalled;
  uint32_t done;
  uint32_t taken;
  uint32_t half;
} lamina_cuda_nic_state;

typedef struct {
  lamina_cuda_nic_queues queues;
  lamina_cuda_nic_state state;  // where the host has left them
  void* memory;                 // the ring or its mirror, beginning at a page; registered with the NIC
  size_t bytes;
  uint32_t local_key;
  uint32_t remote_key;
  uint64_t remote_address;  // where the peer's ring or mirror begins, as its NIC knows it
  int32_t side;             // lamina_cuda_channel_side
  int32_t on_device;        // as the end's: where the memory is
  int64_t timeout_ns;       // the longest that a kernel waits for the NIC, more than 0
  const char* peer;         // the other end's name, for check()'s sentences; copied
} lamina_cuda_nic;

// What a device leaves to the host.
typedef struct {
  lamina_cuda_nic_state state;  // where the host may go on
  uint64_t notified;            // the last number sent to the peer
  int32_t works;                // 1: it may; 0: the NIC has failed, and nothing is to be posted
  int32_t closed;               // 1: the peer has closed its end, as far as it had said so by then
} lamina_cuda_nic_left;

// Pins the queues' memory, and the ring's if that is the host's, maps them and the registers for the current
// device. What they belong to has to stay until destroy().
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_nic_create(const lamina_cuda_nic* nic,
                                                          lamina_cuda_nic_end** end);

// Ends waits, waits for the device, and gives the queues back: the peer has not been notified that this was
// the end. Before it the channel's end should be ended by abort(), or its waits are waited for. No graph that
// uses this end may be replayed afterwards. `left` is filled in whatever the status is.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_nic_destroy(lamina_cuda_nic_end* end,
                                                           lamina_cuda_nic_left* left);

// Notifies the peer, through its memory, of all that a receiver has given back since the last time. An end
// that sends has nothing to report.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_nic_post(lamina_cuda_nic_end* end, lamina_cuda_stream stream);

// Waits until the NIC has done all that was posted, or has failed.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_nic_poll(lamina_cuda_nic_end* end, lamina_cuda_stream stream);

// Whether the NIC still works for this end, as far as the device has come: LAMINA_CUDA_NIC_FAILED or
// LAMINA_CUDA_CHANNEL_LATE if not, LAMINA_CUDA_CHANNEL_LOST if a wait was ended by abort(), and instead of
// any LAMINA_CUDA_CHANNEL_CLOSED if the peer had closed before. After that kernels post nothing more. Waits
// for nothing.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_nic_check(lamina_cuda_nic_end* end);

// Ends waits for the NIC.
LAMINA_CUDA_API lamina_cuda_status lamina_cuda_nic_abort(lamina_cuda_nic_end* end);

#if defined(__cplusplus)
}
#endif

#endif
