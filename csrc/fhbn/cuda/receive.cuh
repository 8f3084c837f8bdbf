#pragma once

#include <cstdint>

#include "fhbn/cuda/copy.cuh"
#include "fhbn/cuda/wait.cuh"

// Receiving, by one kernel; or by poll, fetch and give_back, for a message that is looked at where it lies.
// What Receiver::receive() and give_back() do on the host.
namespace lamina::fhbn::cuda {

struct FetchArgs {
  End end;
  Buffers into;
};

// Copies a header that the peer may be changing: each of its words is read once, all at a time.
LAMINA_DEVICE SlotHeader copied(const SlotHeader* slot) {
  SlotHeader header;
  const auto* const words = reinterpret_cast<const std::uint64_t*>(slot);
  header.seqno = load_relaxed_sys(words);
  const std::uint64_t pair = load_relaxed_sys(words + 1);
  LAMINA_UNROLL
  for (std::uint32_t i = 0; i < kMostParts; ++i) header.bytes[i] = load_relaxed_sys(words + 2 + i);
  header.epoch = static_cast<std::uint32_t>(pair);
  header.parts = static_cast<std::uint32_t>(pair >> 32);
  return header;
}

// What is wrong with message `seqno`, and where its parts are if nothing is. Nothing of it is used before it
// is checked, and nothing is read twice.
LAMINA_DEVICE Fault check_message(const End& end, std::uint64_t seqno, std::uint64_t published,
                                  lamina_cuda_channel_message& message) {
  const std::uint64_t consumed = end.cursor->consumed;
  if (published - consumed > end.slot_count) return Fault::kTooMuchSent;
  // Else the message could be one whose slot holds another that was not given back.
  if (published - consumed <= seqno - consumed) return Fault::kTakenBack;
  const SlotHeader* const slot = end.slot(seqno);
  const SlotHeader header = copied(slot);
  if (header.seqno != seqno) return Fault::kOtherMessage;
  if (header.epoch != end.epoch) return Fault::kOtherEpoch;
  if (header.parts > kMostParts) return Fault::kTooManyParts;
  const auto* at = reinterpret_cast<const std::uint8_t*>(slot + 1);
  std::uint64_t left = end.message_bytes;
  LAMINA_UNROLL
  for (std::uint32_t i = 0; i < kMostParts; ++i) {
    if (i >= header.parts) break;
    if (header.bytes[i] > left) return Fault::kLargerThanMessages;
    message.bytes[i] = header.bytes[i];
    message.part[i] = at;
    at += rounded_up(header.bytes[i], kPartAlignment);
    left -= header.bytes[i];
  }
  message.seqno = seqno;
  message.count = header.parts;
  return Fault::kNone;
}

// Waits for message `seqno`, the next one, and describes it in the cursor. One thread, as in await_slot.
LAMINA_DEVICE Fault await_message(const End& end, std::uint64_t seqno) {
  Cursor& cursor = *end.cursor;
  Change change = {Fault::kNone, load_acquire_sys(&end.ring->published.seqno)};
  if (change.seqno == seqno) {
    // The sender would wait for us as we for it.
    const bool all_outstanding = seqno - cursor.consumed >= end.slot_count;
    change = all_outstanding ? Change{Fault::kAllOutstanding, seqno}
                             : wait_for_change(end, end.ring->published, seqno);
  }
  if (change.fault == Fault::kNone) change.fault = check_message(end, seqno, change.seqno, cursor.message);
  if (change.fault != Fault::kNone) cursor.message.count = 0;
  return change.fault;
}

LAMINA_KERNEL(1) poll(const End end) {
  Cursor& cursor = *end.cursor;
  if (is_over(end)) return;
  const Fault fault = await_message(end, cursor.next);
  if (fault != Fault::kNone) return fail(end, fault, cursor.next);
  ++cursor.next;
}

// What keeps a message from being fetched: how much it has of something, and what there is room for.
struct Misfit {
  Fault fault = Fault::kNone;
  std::uint32_t part = 0;
  std::uint64_t has = 0;
  std::uint64_t room = 0;
};

LAMINA_DEVICE Misfit misfit(const FetchArgs& args) {
  const lamina_cuda_channel_message& message = args.end.cursor->message;
  if (message.count != args.into.count) return {Fault::kOtherParts, 0, message.count, args.into.count};
  for (std::uint32_t i = 0; i < args.into.count; ++i) {
    const std::uint64_t room = args.into.part[i].bytes;
    if (message.bytes[i] > room) return {Fault::kLargerThanBuffer, i, message.bytes[i], room};
  }
  return {};
}

// This thread's share of copying the described message's parts, which fit.
LAMINA_DEVICE void scatter(const FetchArgs& args) {
  const lamina_cuda_channel_message& message = args.end.cursor->message;
  for (std::uint32_t i = 0; i < args.into.count; ++i) {
    copy_share(args.into.part[i].data, message.part[i], message.bytes[i]);
  }
}

// Waits for the next message, copies its parts and gives its slot back. All blocks find the same of what does
// not fit; the last one reports it, when no thread looks at the cursor any more.
LAMINA_KERNEL(kCopyThreads) recv(const FetchArgs args) {
  const End& end = args.end;
  Cursor& cursor = *end.cursor;
  if (is_over(end)) return;
  const std::uint64_t seqno = cursor.next;
  // Slots are given back in order, so this message's would have to wait for another call.
  const bool others_outstanding = seqno != cursor.consumed;
  const Fault fault = others_outstanding ? Fault::kOthersOutstanding
                                         : result_of_first(end, [&] { return await_message(end, seqno); });
  const Misfit match = fault != Fault::kNone ? Misfit{fault} : misfit(args);
  if (match.fault == Fault::kNone) scatter(args);
  if (!is_last(end)) return;
  const bool first = thread_index() == 0;
  if (match.fault != Fault::kNone) {
    if (first) fail(end, match.fault, seqno, match.part, match.has, match.room);
    return;
  }
  if (first) {
    cursor.next = cursor.consumed = seqno + 1;
    cursor.gate = {};
  }
  if (!end.has_nic()) {
    if (first) store_release_sys(&end.ring->consumed.seqno, seqno + 1);
    return;
  }
  if (first) end.ring->consumed.seqno = seqno + 1;  // where a later post() looks
  post_consumed(end.nic, seqno + 1);
}

LAMINA_KERNEL(kCopyThreads) fetch(const FetchArgs args) {
  const End& end = args.end;
  const Cursor& cursor = *end.cursor;
  if (is_over(end)) return;
  const bool stored = cursor.next != cursor.consumed;
  const Misfit match = stored ? misfit(args) : Misfit{Fault::kNoneOutstanding};
  if (match.fault == Fault::kNone) scatter(args);
  if (!is_last(end) || thread_index() != 0 || match.fault == Fault::kNone) return;
  fail(end, match.fault, cursor.next - (stored ? 1 : 0), match.part, match.has, match.room);
}

// Of the oldest message. It may be that of a NIC's end: what posts reads it there.
LAMINA_KERNEL(1) give_back(const End end) {
  Cursor& cursor = *end.cursor;
  if (is_over(end)) return;
  if (cursor.next == cursor.consumed) return fail(end, Fault::kNoneOutstanding, cursor.next);
  store_release_sys(&end.ring->consumed.seqno, ++cursor.consumed);
}

}  // namespace lamina::fhbn::cuda
