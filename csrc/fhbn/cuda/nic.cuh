#pragma once

#include <cstddef>
#include <cstdint>

#include "fhbn/cuda/device.cuh"
#include "fhbn/rdma/queue.hpp"
#include "fhbn/wire.hpp"

// Posting to an mlx5 NIC and hearing of it, by one thread of the device.
namespace lamina::fhbn::cuda {

// Why nothing is posted any more.
enum class NicTrouble : std::uint32_t {
  kNone = 0,
  kLate,     // the NIC has not done in time what it was asked to
  kAborted,  // the host has ended the wait
  kFailed,   // it says so: with a syndrome
};

// In the device's memory; written only by this end's kernels, which run one after the other.
struct NicCursor {
  rdma::SendState state;
  std::uint64_t told;  // the number that the peer's memory was given last
  NicTrouble trouble;
};

// In the host's memory, where both can reach it.
struct NicMailbox {
  alignas(kApart) std::uint32_t abort;  // the host's: 1 ends waits
  struct alignas(kApart) Report {       // the device's, written once; `trouble` last
    NicTrouble trouble;
    std::uint32_t syndrome;
    std::uint32_t vendor_syndrome;
  } report;
};

// What every kernel is told: it never changes, so it may lie in a captured graph. Pointers are as the device
// addresses them; `local_address` is as the NIC does.
struct NicEnd {
  rdma::SendQueue queue;
  rdma::CompletionQueue completions;
  std::byte* memory;
  NicCursor* cursor;
  NicMailbox* mailbox;
  std::uint64_t local_address;
  std::uint64_t remote_address;
  std::uint64_t stride;
  std::uint64_t timeout_ns;
  std::uint32_t local_key;
  std::uint32_t remote_key;
  std::uint32_t slot_count;
  bool sends;
};

// How a thread of a device reaches a queue (rdma/queue.hpp). A release orders memory and registers alike, so
// that nothing more is needed between the two.
struct DeviceOrder {
  static LAMINA_DEVICE void store_release(std::uint32_t* word, std::uint32_t value) {
    store_release_sys(word, value);
  }
  static LAMINA_DEVICE void store_register(std::uint64_t* word, std::uint64_t value) {
    store_release_sys(word, value);
  }
  static LAMINA_DEVICE void fence_registers() {}
  // With its neighbours, since there is no such load of a byte.
  static LAMINA_DEVICE std::uint8_t load_acquire(const std::uint8_t* byte) {
    const auto address = reinterpret_cast<std::uintptr_t>(byte);
    const std::uint32_t word =
        load_acquire_sys(reinterpret_cast<const std::uint32_t*>(address & ~std::uintptr_t{3}));
    return static_cast<std::uint8_t>(word >> (address & 3) * 8);
  }
};

LAMINA_DEVICE void fail(const NicEnd& end, NicTrouble trouble, const rdma::Completed& completed = {}) {
  end.cursor->trouble = trouble;
  NicMailbox::Report& report = end.mailbox->report;
  report.syndrome = static_cast<std::uint32_t>(completed.syndrome);
  report.vendor_syndrome = completed.vendor_syndrome;
  store_release_sys(reinterpret_cast<std::uint32_t*>(&report.trouble), static_cast<std::uint32_t>(trouble));
}

// Takes all completions that are there. False, for good, if the NIC has failed.
LAMINA_DEVICE bool take_completions(const NicEnd& end) {
  rdma::Completed completed;
  while (rdma::take_completion<DeviceOrder>(end.completions, end.cursor->state, completed)) {
    if (!completed.failed) continue;
    fail(end, NicTrouble::kFailed, completed);
    return false;
  }
  return true;
}

// Waits until all before `block` is done.
LAMINA_DEVICE bool wait_until_done(const NicEnd& end, std::uint32_t block) {
  const std::uint64_t start = global_timer();
  while (true) {
    const bool aborted = load_acquire_sys(&end.mailbox->abort) != 0;
    const bool late = global_timer() - start >= end.timeout_ns;
    if (!take_completions(end)) return false;
    if (static_cast<std::int32_t>(end.cursor->state.done - block) >= 0) return true;
    if (!aborted && !late) continue;
    fail(end, aborted ? NicTrouble::kAborted : NicTrouble::kLate);
    return false;
  }
}

LAMINA_DEVICE bool make_room(const NicEnd& end) {
  rdma::SendState& state = end.cursor->state;
  if (rdma::free_blocks(end.queue, state) > 0) return true;
  rdma::ring<DeviceOrder>(end.queue, state);
  return wait_until_done(end, state.next - (end.queue.blocks - 1));
}

// Of a slot, from its header on; rounded up as its parts are.
LAMINA_DEVICE std::uint64_t bytes_in_use(const SlotHeader& slot) {
  std::uint64_t bytes = sizeof(SlotHeader);
  const std::uint32_t parts = slot.parts < kMostParts ? slot.parts : kMostParts;
  for (std::uint32_t i = 0; i < parts; ++i) bytes += rounded_up(slot.bytes[i], kPartAlignment);
  return bytes;
}

LAMINA_DEVICE bool put_slot(const NicEnd& end, std::uint64_t seqno) {
  const std::uint64_t offset = kSlotsOffset + (seqno & (end.slot_count - 1)) * end.stride;
  const auto& slot = *reinterpret_cast<const SlotHeader*>(end.memory + offset);
  const std::uint64_t bytes = bytes_in_use(slot);
  for (std::uint64_t at = 0; at < bytes; at += rdma::kMostWriteBytes) {
    if (!make_room(end)) return false;
    const std::uint64_t size = bytes - at < rdma::kMostWriteBytes ? bytes - at : rdma::kMostWriteBytes;
    rdma::put_write(end.queue, end.cursor->state, end.local_address + offset + at, end.local_key,
                    {end.remote_address + offset + at, end.remote_key}, static_cast<std::uint32_t>(size));
  }
  return true;
}

// One kernel for either side: what its own line says goes to the same line of the peer's memory, behind the
// slots that a sender's line tells of.
LAMINA_KERNEL(1) post(const NicEnd end) {
  NicCursor& cursor = *end.cursor;
  if (cursor.trouble != NicTrouble::kNone || !take_completions(end)) return;
  const std::uint64_t line_offset = end.sends ? offsetof(Ring, published) : offsetof(Ring, consumed);
  const auto& line = *reinterpret_cast<const Side*>(end.memory + line_offset);
  const std::uint64_t seqno = load_acquire_sys(&line.seqno);
  if (seqno == cursor.told) return;
  for (std::uint64_t next = cursor.told; end.sends && next != seqno; ++next) {
    if (!put_slot(end, next)) return;
  }
  if (!make_room(end)) return;
  Side told{};
  told.seqno = seqno;
  told.unheard = 1;
  rdma::put_inline<rdma::kShortInline>(end.queue, cursor.state, &told,
                                       {end.remote_address + line_offset, end.remote_key}, kLineBytes);
  rdma::ring<DeviceOrder>(end.queue, cursor.state);
  cursor.told = seqno;
}

LAMINA_KERNEL(1) poll_nic(const NicEnd end) {
  NicCursor& cursor = *end.cursor;
  if (cursor.trouble != NicTrouble::kNone || !make_room(end)) return;
  rdma::put_nothing(end.queue, cursor.state);
  rdma::ring<DeviceOrder>(end.queue, cursor.state);
  wait_until_done(end, cursor.state.next);
}

}  // namespace lamina::fhbn::cuda
