#pragma once

#include <cstddef>
#include <cstdint>

#include "fhbn/cuda/nic.h"
#include "fhbn/rdma/queue.hpp"
#include "fhbn/wire.hpp"

// What a NIC's end on a device consists of: the queues that its kernels post to, and how far they are.
namespace lamina::fhbn::cuda {

// Why nothing is posted any more.
enum class NicTrouble : std::uint32_t {
  kNone = 0,
  kLate,     // the NIC has not completed its requests in time
  kAborted,  // the host has ended the wait
  kFailed,   // it says so: with a syndrome
};

// In the device's memory; written only by this end's kernels, which run one after the other.
struct NicCursor {
  rdma::SendState state;
  std::uint64_t notified;  // the last number written to the peer's memory
  NicTrouble trouble;
};

// In the host's memory, where both can reach it.
struct NicMailbox {
  alignas(kSeparation) std::uint32_t abort;  // the host's: 1 ends waits
  struct alignas(kSeparation) Report {       // the device's, written once; `trouble` last
    NicTrouble trouble;
    std::uint32_t syndrome;
    std::uint32_t vendor_syndrome;
    std::uint32_t closed;  // 1: the peer had closed by then
  } report;
};

// Every kernel's arguments: constant, so they may be part of a captured graph. Pointers are as the device
// addresses them; `local_address` is as the NIC does.
struct NicEnd {
  rdma::SendQueue queue;
  rdma::CompletionQueue completions;
  std::byte* memory;
  NicCursor* cursor;
  NicMailbox* mailbox;
  std::uint32_t* fate;  // the channel's end's (end.hpp): a NIC that fails ends what others make of it, too
  std::uint64_t local_address;
  std::uint64_t remote_address;
  std::uint64_t stride;
  std::uint64_t timeout_ns;
  std::uint32_t local_key;
  std::uint32_t remote_key;
  std::uint32_t slot_count;
  bool sends;

  // What the peer says of itself, in the ring or mirror that its NIC writes to.
  LAMINA_HD const Side* peer_line() const {
    return reinterpret_cast<const Side*>(memory +
                                         (sends ? offsetof(Ring, consumed) : offsetof(Ring, published)));
  }
};

// Of what the library keeps of it.
NicEnd& end_of(lamina_cuda_nic_end& retained);

}  // namespace lamina::fhbn::cuda
