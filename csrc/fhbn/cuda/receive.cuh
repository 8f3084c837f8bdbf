#pragma once

#include <cstdint>

#include "fhbn/cuda/copy.cuh"
#include "fhbn/cuda/wait.cuh"

// Receiving: poll, fetch and give_back. What Receiver::receive() and give_back() do on the host.
namespace lamina::fhbn::cuda {

struct FetchArgs {
  End end;
  Buffers into;
  bool give_back;  // behind the copy
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

// Waits for the next message and describes it in the cursor. One thread, as in await_slot.
LAMINA_KERNEL(1) poll(const End end) {
  Cursor& cursor = *end.cursor;
  if (cursor.fault != Fault::kNone) return;
  const std::uint64_t seqno = cursor.next;
  Change change = {Fault::kNone, load_acquire_sys(&end.ring->published.seqno)};
  if (change.seqno == seqno) {
    // The sender would wait for us as we for it.
    const bool all_held = seqno - cursor.consumed >= end.slot_count;
    change = all_held ? Change{Fault::kAllHeld, seqno} : wait_for_change(end, end.ring->published, seqno);
  }
  if (change.fault == Fault::kNone) change.fault = check_message(end, seqno, change.seqno, cursor.message);
  if (change.fault != Fault::kNone) {
    cursor.message.count = 0;
    return fail(end, change.fault, seqno);
  }
  cursor.next = seqno + 1;
}

// What keeps a message from being fetched: how much it has of something, and what there is room for.
struct Misfit {
  Fault fault = Fault::kNone;
  std::uint32_t part = 0;
  std::uint64_t has = 0;
  std::uint64_t room = 0;
};

LAMINA_DEVICE Misfit misfit(const FetchArgs& args) {
  const Cursor& cursor = *args.end.cursor;
  const lamina_cuda_channel_message& message = cursor.message;
  const std::uint64_t held = cursor.next - cursor.consumed;
  if (held == 0) return {Fault::kNothingHeld};
  // Slots are given back in order, so this message's would have to wait for another call.
  if (args.give_back && held != 1) return {Fault::kOthersHeld};
  if (message.count != args.into.count) return {Fault::kOtherParts, 0, message.count, args.into.count};
  for (std::uint32_t i = 0; i < args.into.count; ++i) {
    const std::uint64_t room = args.into.part[i].bytes;
    if (message.bytes[i] > room) return {Fault::kLargerThanBuffer, i, message.bytes[i], room};
  }
  return {};
}

// For one thread, when the oldest message was read.
LAMINA_DEVICE void return_slot(const End& end) {
  Cursor& cursor = *end.cursor;
  if (cursor.next == cursor.consumed) return fail(end, Fault::kNothingHeld, cursor.next);
  store_release_sys(&end.ring->consumed.seqno, ++cursor.consumed);
}

// Copies the latest message's parts. All blocks find the same of what does not fit; the last one tells it,
// when no thread looks at the cursor any more.
LAMINA_KERNEL(kCopyThreads) fetch(const FetchArgs args) {
  const End& end = args.end;
  const Cursor& cursor = *end.cursor;
  if (cursor.fault != Fault::kNone) return;
  const Misfit found = misfit(args);
  if (found.fault == Fault::kNone) {
    for (std::uint32_t i = 0; i < args.into.count; ++i) {
      copy_share(args.into.part[i].data, cursor.message.part[i], cursor.message.bytes[i]);
    }
  }
  if (!is_last(end)) return;
  if (found.fault != Fault::kNone) {
    const std::uint64_t seqno = found.fault == Fault::kNothingHeld ? cursor.next : cursor.next - 1;
    fail(end, found.fault, seqno, found.part, found.has, found.room);
  } else if (args.give_back) {
    return_slot(end);
  }
}

LAMINA_KERNEL(1) give_back(const End end) {
  if (end.cursor->fault == Fault::kNone) return_slot(end);
}

}  // namespace lamina::fhbn::cuda
