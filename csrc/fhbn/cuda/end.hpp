#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/host_device.hpp"
#include "fhbn/cuda/channel.h"
#include "fhbn/cuda/nic_end.hpp"
#include "fhbn/wire.hpp"

// What an end of a channel on a device consists of. The ring is the one that engines on the host use.
namespace lamina::fhbn::cuda {

// Why an end does nothing any more.
enum class Fault : std::uint32_t {
  kNone = 0,
  kLate,
  kPeerLost,
  kClosed,
  kNicFailed,
  // The peer has written what no peer of ours writes.
  kFalseCredits,
  kTooMuchSent,
  kTakenBack,
  kOtherMessage,
  kOtherEpoch,
  kTooManyParts,
  kLargerThanMessages,
  // What was called does not fit what has arrived.
  kAllOutstanding,
  kNoneOutstanding,
  kOthersOutstanding,
  kOtherParts,
  kLargerThanBuffer,
};

inline constexpr Fault kLastCorruption = Fault::kLargerThanMessages;
inline constexpr Fault kLastFault = Fault::kLargerThanBuffer;

// What the first block of a kernel that comes by finds out for all of them. The last one that ends clears it.
struct Gate {
  std::int32_t arrivals;   // blocks that have come here
  std::uint32_t verdict;   // 0: not known yet; otherwise 1 more than a Fault
  std::uint64_t consumed;  // of a sender, behind its verdict: what the peer's line said
};

// In the device's memory, so that a captured graph finds the next message each time. Written only by the
// kernels of this end, which run one after the other: by the last block of one, when no other looks any more,
// or before a verdict by the first.
struct Cursor {
  std::uint64_t next;                   // the first message not yet sent or not yet received
  std::uint64_t consumed;               // the first one not given back; a sender's is as last looked at
  Fault fault;                          // other than kNone: the kernels do nothing
  std::int32_t arrivals;                // blocks that have come to the end of their work
  Gate gate;                            // in front of it
  lamina_cuda_channel_message message;  // the latest one received: before a verdict
};

// In the host's memory, where both can reach it. On lines of their own: a waiting kernel looks at the first.
struct Mailbox {
  alignas(kSeparation) std::uint32_t abort;  // the host's: 1 ends waits
  struct alignas(kSeparation) Report {       // the device's, written once; `fault` last
    Fault fault;
    std::uint32_t part;
    std::uint64_t seqno;
    std::uint64_t has;   // bytes of that part, or parts
    std::uint64_t room;  // what there was for it
  } report;
};

// Every kernel's arguments for its end: constant, so they may be part of a captured graph.
struct End {
  Ring* ring;        // as the device addresses it
  std::byte* slots;  // the first slot
  Cursor* cursor;
  Mailbox* mailbox;
  std::uint64_t message_bytes;
  std::uint64_t stride;
  std::uint64_t timeout_ns;
  std::uint32_t slot_count;
  std::uint32_t epoch;
  NicEnd nic;           // what carries the messages of a ring that is not shared
  std::uint32_t* fate;  // 1 once an end has failed of those that share it; none: this one shares it with none

  LAMINA_HD bool has_nic() const { return nic.cursor != nullptr; }
  LAMINA_HD SlotHeader* slot(std::uint64_t seqno) const {
    return reinterpret_cast<SlotHeader*>(slots + (seqno & (slot_count - 1)) * stride);
  }
};

// The parts that a call names.
struct Buffers {
  std::uint32_t count;
  lamina_cuda_channel_buffer part[kMostParts];
};

static_assert(kMostParts == LAMINA_CUDA_CHANNEL_PARTS);

}  // namespace lamina::fhbn::cuda
