#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cuda/host_device.hpp"
#include "fhbn/rdma/wqe.hpp"
#include "fhbn/wire.hpp"

// A function for either side; its `Order` says how to reach the memory; an order may be for one
// side only, of which nvcc would warn.
#ifdef __CUDACC__
#define LAMINA_HD_OF_ORDER _Pragma("nv_exec_check_disable") template <typename Order>
#else
#define LAMINA_HD_OF_ORDER template <typename Order>
#endif

// A send queue as an mlx5 NIC and the posting side share it. None of it owns anything or knows its maker (a
// driver or a softnic), and all of it can be among a kernel's arguments.
//
// The NIC is notified in three steps, each visible after the one before: the request in the queue, the number
// of blocks in the doorbell record, and the request's first 8 bytes (its doorbell) in a register of the UAR
// page. An `Order` has the accesses that it takes:
//   store_release(word, value)   to memory: what was written before is seen before
//   store_register(word, value)  to the UAR page, in one piece
//   fence_registers()            between the two: none overtakes the other, or stays in a processor's buffer
namespace lamina::fhbn::rdma {

// Of one request: what an mlx5 NIC moves at once. More would be too much for drivers that take lengths for
// signed numbers, too.
inline constexpr std::uint64_t kMostWriteBytes = std::uint64_t{1} << 30;

// An end's own.
struct LocalMemory {
  const std::byte* memory;
  std::uint64_t bytes;
  std::uint32_t key;
};

// The peer's, as the peer's NIC knows it: from the handshake.
struct RemoteMemory {
  std::uint64_t address;
  std::uint64_t bytes;
  std::uint32_t key;
};

struct SendQueue {
  std::byte* requests;             // blocks * kBlockBytes
  std::uint32_t* doorbell_record;  // the number of blocks posted, 16 bits of it, big-endian
  std::uint64_t* registers;        // two halves, one behind the other, used in turn
  std::uint32_t blocks;            // is_sound()
  std::uint32_t qpn;
  std::uint32_t half_bytes;  // of the registers, a power of two
  bool blueflame;            // a half takes a whole request; otherwise only its doorbell
};

struct CompletionQueue {
  CompletionEntry* entries;
  std::uint32_t* doorbell_record;  // how many were taken, 24 bits of it, big-endian
  std::uint32_t count;             // a power of two, not less than the send queue's blocks
};

// The doorbell record counts blocks in 16 bits, and a full queue must not look like an empty one. In a queue
// of fewer than 8 a request of four might wait for completions that no request asks for: see moderated().
inline constexpr std::uint32_t kLeastQueueBlocks = 8;
inline constexpr std::uint32_t kMostQueueBlocks = 32768;

LAMINA_HD constexpr bool is_sound(std::uint32_t blocks) {
  return is_power_of_two(blocks) && blocks >= kLeastQueueBlocks && blocks <= kMostQueueBlocks;
}

// Each block may get a completion of its own, and the NIC must never find their queue full.
LAMINA_HD constexpr bool is_sound(const SendQueue& send, const CompletionQueue& completions) {
  return is_sound(send.blocks) && is_power_of_two(completions.count) && completions.count >= send.blocks;
}

// How far a queue is, for the posting side. Numbers of blocks go on beyond the queue's end.
struct SendState {
  std::uint32_t next = 0;       // the first block not yet written
  std::uint32_t rung = 0;       // the first one that the NIC was not notified of
  std::uint32_t latest = 0;     // where the latest request begins
  std::uint32_t signalled = 0;  // behind the latest request with a completion
  std::uint32_t done = 0;       // all before it are done
  std::uint32_t taken = 0;      // completions
  std::uint32_t half = 0;       // of the registers, in bytes: where the next doorbell goes
};

LAMINA_HD constexpr std::uint32_t free_blocks(const SendQueue& queue, const SendState& state) {
  return queue.blocks - (state.next - state.done);
}

// A completion costs the NIC a write over the bus and the host a cache miss, so one stands for a quarter of a
// queue. Once all of them have come, less than that is left, and up to three blocks of the last
// request whose completion is that of its first only: there is room for another one.
LAMINA_HD constexpr Completion moderated(const SendQueue& queue, const SendState& state,
                                         std::uint32_t blocks) {
  return state.next + blocks - state.signalled >= queue.blocks / 4 ? Completion::kRequested
                                                                   : Completion::kWithLater;
}

// Puts a request behind the others; there has to be room. At the queue's end it goes on at its beginning,
// between any two segments. The NIC does not look before ring(). Returns it, for callers that would have to
// read the queue over a bus.
template <typename Request>
LAMINA_HD Request put(const SendQueue& queue, SendState& state, const Request& request,
                      std::uint32_t segments) {
  const std::uint32_t first = state.next * kSegmentsPerBlock;
  const std::uint32_t mask = queue.blocks * kSegmentsPerBlock - 1;
  const auto* const bytes = reinterpret_cast<const std::byte*>(&request);
  for (std::uint32_t i = 0; i < segments; ++i) {
    // A GPU would write single bytes, each by itself over the bus, to what may lie anywhere.
    void* const to = queue.requests + std::size_t{(first + i) & mask} * kSegmentBytes;
    std::memcpy(__builtin_assume_aligned(to, kSegmentBytes), bytes + std::size_t{i} * kSegmentBytes,
                kSegmentBytes);
  }
  state.latest = state.next;
  state.next += blocks_of(segments);
  if (request.control.flags == static_cast<std::uint8_t>(Completion::kRequested))
    state.signalled = state.next;
  return request;
}

struct Remote {
  std::uint64_t address;
  std::uint32_t key;
};

LAMINA_HD WriteRequest put_write(const SendQueue& queue, SendState& state, std::uint64_t local,
                                 std::uint32_t local_key, Remote remote, std::uint32_t bytes) {
  WriteRequest request{};
  request.control = control_segment(Opcode::kRdmaWrite, state.next, queue.qpn, WriteRequest::kSegments,
                                    moderated(queue, state, 1));
  request.remote = remote_address_segment(remote.address, remote.key);
  request.data = data_segment(local, local_key, bytes);
  return put(queue, state, request, WriteRequest::kSegments);
}

// `kRoom`: kShortInline or kLongInline, not less than `bytes`.
template <std::uint32_t kRoom>
LAMINA_HD InlineRequest<kRoom> put_inline(const SendQueue& queue, SendState& state, const void* local,
                                          Remote remote, std::uint32_t bytes) {
  const std::uint32_t segments = inline_segments(bytes);
  InlineRequest<kRoom> request{};
  request.control = control_segment(Opcode::kRdmaWrite, state.next, queue.qpn, segments,
                                    moderated(queue, state, blocks_of(segments)));
  request.remote = remote_address_segment(remote.address, remote.key);
  request.inline_bytes = big_endian(bytes | kInline);
  std::memcpy(request.bytes, local, bytes);
  return put(queue, state, request, segments);
}

LAMINA_HD NothingRequest put_nothing(const SendQueue& queue, SendState& state) {
  NothingRequest request{};
  request.control = control_segment(Opcode::kNothing, state.next, queue.qpn, NothingRequest::kSegments,
                                    Completion::kRequested);
  return put(queue, state, request, NothingRequest::kSegments);
}

// Where the doorbell of all that was put goes. Halves are used in turn, since a half's bytes may still be on
// their way.
LAMINA_HD std::uint64_t* take_half(const SendQueue& queue, SendState& state) {
  std::uint64_t* const half = queue.registers + state.half / sizeof(std::uint64_t);
  state.half ^= queue.half_bytes;
  state.rung = state.next;
  return half;
}

// Notifies the NIC of all that was put since the last time. A single request that fits goes into the register
// whole, so that the NIC need not fetch it: BlueFlame. The NIC may miss that, and then finds it in the queue.
LAMINA_HD_OF_ORDER
LAMINA_HD void ring(const SendQueue& queue, SendState& state) {
  if (state.rung == state.next) return;
  Order::store_release(queue.doorbell_record, big_endian(state.next & 0xffff));
  Order::fence_registers();
  constexpr std::uint32_t kWordsPerBlock = kBlockBytes / sizeof(std::uint64_t);
  const std::uint32_t blocks = state.next - state.latest;
  const bool whole =
      queue.blueflame && state.latest == state.rung && blocks * kBlockBytes <= queue.half_bytes;
  const std::uint32_t words = whole ? blocks * kWordsPerBlock : 1;
  const auto* const requests = reinterpret_cast<const std::uint64_t*>(queue.requests);
  std::uint64_t* const half = take_half(queue, state);
  for (std::uint32_t i = 0; i < words; ++i) {
    const std::uint32_t word = state.latest * kWordsPerBlock + i;
    Order::store_register(half + i, requests[word & (queue.blocks * kWordsPerBlock - 1)]);
  }
  Order::fence_registers();
}

// What the NIC has said.
struct Completed {
  bool failed = false;
  Syndrome syndrome = Syndrome::kNone;
  std::uint8_t vendor_syndrome = 0;
};

// Takes the next completion if there is one. `Order` needs load_acquire(byte) here, besides.
LAMINA_HD_OF_ORDER
LAMINA_HD bool take_completion(const CompletionQueue& queue, SendState& state, Completed& completed) {
  const CompletionEntry& entry = queue.entries[state.taken & (queue.count - 1)];
  const std::uint8_t kind_owner = Order::load_acquire(&entry.kind_owner);
  if (!is_ours(kind_owner, state.taken, queue.count)) return false;
  completed = {};
  if (kind_of(kind_owner) != CompletionKind::kRequest) {
    completed = {true, static_cast<Syndrome>(entry.syndrome), entry.vendor_syndrome};
  }
  // The request's first block, of which 16 bits are reported: at least that one is done. The NIC's word is
  // believed as far as it can be true.
  const auto ahead = static_cast<std::uint16_t>(big_endian(entry.block) - state.done);
  if (ahead < state.next - state.done) state.done += ahead + 1u;
  ++state.taken;
  // Nothing of the entry is read after this, and the NIC may write there again.
  Order::store_release(queue.doorbell_record, big_endian(state.taken & 0xffffff));
  return true;
}

}  // namespace lamina::fhbn::rdma
