#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "fhbn/cuda/device.cuh"
#include "fhbn/cuda/nic_end.hpp"

// Posting to an mlx5 NIC and hearing of it, by one thread of the device; its warp helps with BlueFlame.
namespace lamina::fhbn::cuda {

constexpr int kWarpThreads = 32;

// How a thread of a device reaches a queue (rdma/queue.hpp). A release orders both memory and registers.
struct DeviceOrder {
  static LAMINA_DEVICE void store_release(std::uint32_t* word, std::uint32_t value) {
    store_release_sys(word, value);
  }
  // With its neighbours, since there is no such load of a byte.
  static LAMINA_DEVICE std::uint8_t load_acquire(const std::uint8_t* byte) {
    const auto address = reinterpret_cast<std::uintptr_t>(byte);
    const std::uint32_t word =
        load_acquire_sys(reinterpret_cast<const std::uint32_t*>(address & ~std::uintptr_t{3}));
    return static_cast<std::uint8_t>(word >> (address & 3) * 8);
  }
};

// While a thread posts, in its registers: how far the queue is, and the latest request's doorbell. The queue
// itself would have to be read over the bus.
struct Posting {
  rdma::SendState state;
  std::uint64_t doorbell = 0;
};

// The request that was put last.
template <typename Request>
LAMINA_DEVICE Request noted(Posting& posting, const Request& request) {
  std::memcpy(&posting.doorbell, &request, sizeof posting.doorbell);
  return request;
}

LAMINA_DEVICE bool is_open(const Side& line) {
  const auto* const state = reinterpret_cast<const std::uint32_t*>(&line.state);
  return load_acquire_sys(state) == static_cast<std::uint32_t>(State::kOpen);
}

LAMINA_DEVICE void fail(const NicEnd& nic, NicTrouble trouble, const rdma::Completed& completed = {}) {
  nic.cursor->trouble = trouble;
  if (nic.fate != nullptr) *nic.fate = 1;
  NicMailbox::Report& report = nic.mailbox->report;
  report.syndrome = static_cast<std::uint32_t>(completed.syndrome);
  report.vendor_syndrome = completed.vendor_syndrome;
  // Its queue pair is destroyed then and no longer answers; its line arrived before.
  report.closed = is_open(*nic.peer_line()) ? 0 : 1;
  store_release_sys(reinterpret_cast<std::uint32_t*>(&report.trouble), static_cast<std::uint32_t>(trouble));
}

// Takes all completions that are there. False, for good, if the NIC has failed.
LAMINA_DEVICE bool take_completions(const NicEnd& nic, rdma::SendState& state) {
  rdma::Completed completed;
  while (rdma::take_completion<DeviceOrder>(nic.completions, state, completed)) {
    if (!completed.failed) continue;
    fail(nic, NicTrouble::kFailed, completed);
    return false;
  }
  return true;
}

// Waits until all before `block` is done.
LAMINA_DEVICE bool wait_until_done(const NicEnd& nic, rdma::SendState& state, std::uint32_t block) {
  const std::uint64_t start = global_timer();
  while (true) {
    const bool aborted = load_acquire_sys(&nic.mailbox->abort) != 0;
    const bool late = global_timer() - start >= nic.timeout_ns;
    if (!take_completions(nic, state)) return false;
    if (static_cast<std::int32_t>(state.done - block) >= 0) return true;
    if (!aborted && !late) continue;
    fail(nic, aborted ? NicTrouble::kAborted : NicTrouble::kLate);
    return false;
  }
}

// Whether it has not failed, as far as it says.
LAMINA_DEVICE bool works(const NicEnd& nic) {
  if (nic.cursor->trouble != NicTrouble::kNone) return false;
  rdma::SendState state = nic.cursor->state;
  const bool sound = take_completions(nic, state);
  nic.cursor->state = state;
  return sound;
}

// By the doorbell alone: the release puts the record before it.
LAMINA_DEVICE void ring(const NicEnd& nic, Posting& posting) {
  if (posting.state.rung == posting.state.next) return;
  store_release_sys(nic.queue.doorbell_record, rdma::big_endian(posting.state.next & 0xffff));
  store_release_sys(rdma::take_half(nic.queue, posting.state), posting.doorbell);
}

// For one more block. A look at the completions is a trip over the bus, and each stands for a quarter of the
// queue: there is none before half of it may be under way.
LAMINA_DEVICE bool make_room(const NicEnd& nic, Posting& posting) {
  rdma::SendState& state = posting.state;
  if (state.next - state.done < nic.queue.blocks / 2) return true;
  if (!take_completions(nic, state)) return false;
  if (rdma::free_blocks(nic.queue, state) > 0) return true;
  ring(nic, posting);
  return wait_until_done(nic, state, state.next - (nic.queue.blocks - 1));
}

// What an end's own line says now goes to the same line of the peer's memory.
LAMINA_DEVICE rdma::ShortInline put_line(const NicEnd& nic, Posting& posting, std::uint64_t seqno) {
  Side notified{};
  notified.seqno = seqno;
  notified.unheard = 1;
  const std::uint64_t offset = nic.sends ? offsetof(Ring, published) : offsetof(Ring, consumed);
  return noted(posting, rdma::put_inline<rdma::kShortInline>(nic.queue, posting.state, &notified,
                                                             {nic.remote_address + offset, nic.remote_key},
                                                             kLineBytes));
}

// For one thread: message `seqno`, which lies in the mirror and takes so much of its slot, and behind it its
// number, with one doorbell. False if it cannot be; the state is one to go on from all the same.
LAMINA_DEVICE bool put_message(const NicEnd& nic, Posting& posting, std::uint64_t seqno,
                               std::uint64_t bytes) {
  const std::uint64_t offset = kSlotsOffset + (seqno & (nic.slot_count - 1)) * nic.stride;
  for (std::uint64_t at = 0; at < bytes; at += rdma::kMostWriteBytes) {
    if (!make_room(nic, posting)) return false;
    const std::uint64_t size = bytes - at < rdma::kMostWriteBytes ? bytes - at : rdma::kMostWriteBytes;
    noted(posting, rdma::put_write(nic.queue, posting.state, nic.local_address + offset + at, nic.local_key,
                                   {nic.remote_address + offset + at, nic.remote_key},
                                   static_cast<std::uint32_t>(size)));
  }
  if (!make_room(nic, posting)) return false;
  put_line(nic, posting, seqno + 1);
  ring(nic, posting);
  return true;
}

LAMINA_DEVICE bool post_message(const NicEnd& nic, std::uint64_t seqno, std::uint64_t bytes) {
  NicCursor& cursor = *nic.cursor;
  if (cursor.trouble != NicTrouble::kNone) return false;
  Posting posting{cursor.state};
  const bool posted = put_message(nic, posting, seqno, bytes);
  cursor.state = posting.state;
  if (posted) cursor.notified = seqno + 1;
  return posted;
}

// Rings for the one request that was put since the last time, of one block. All lanes of a warp call this;
// what they are given counts in the first one. With BlueFlame four lanes store the request at once, so that
// the bus may carry it as one write.
template <typename Request>
LAMINA_DEVICE void ring_for_one(const NicEnd& nic, Posting& posting, const Request& request, bool rings) {
  static_assert(sizeof(Request) == rdma::kBlockBytes);
  if (!nic.queue.blueflame) {
    if (rings) ring(nic, posting);
    return;
  }
  constexpr int kChunks = rdma::kBlockBytes / sizeof(Chunk);
  constexpr int kNoHalf = -1;
  int half = kNoHalf;
  if (rings) {
    half = static_cast<int>(posting.state.half);
    store_release_sys(nic.queue.doorbell_record, rdma::big_endian(posting.state.next & 0xffff));
    fence_sys();  // the stores below are other threads'
    rdma::take_half(nic.queue, posting.state);
  }
  Chunk chunks[kChunks], own{};
  std::memcpy(chunks, &request, sizeof chunks);
  LAMINA_UNROLL
  for (int i = 0; i < kChunks * 4; ++i) {
    const std::uint32_t word = shuffle(chunks[i / 4].words[i % 4], 0);
    if (thread_index() == i / 4) own.words[i % 4] = word;
  }
  half = shuffle(half, 0);
  sync_warp();
  if (half == kNoHalf || thread_index() >= kChunks) return;
  auto* const there = reinterpret_cast<std::byte*>(nic.queue.registers) + half;
  store_together(reinterpret_cast<Chunk*>(there) + thread_index(), own);
}

// For the first warp of a block, of which `seqno` counts in the first lane: reports to the sender what was
// consumed, unless it was notified before.
LAMINA_DEVICE void post_consumed(const NicEnd& nic, std::uint64_t seqno) {
  const bool first = thread_index() == 0;
  NicCursor& cursor = *nic.cursor;
  Posting posting;
  rdma::ShortInline request{};
  bool rings = first && cursor.trouble == NicTrouble::kNone && cursor.notified != seqno;
  if (first) posting.state = cursor.state;
  if (rings) rings = make_room(nic, posting);
  if (rings) request = put_line(nic, posting, seqno);
  ring_for_one(nic, posting, request, rings);
  if (first) cursor.state = posting.state;
  if (rings) cursor.notified = seqno;
}

}  // namespace lamina::fhbn::cuda
