#pragma once

// The ends of a channel for tests: the device's kernels, emulated, and the host's own Sender and Receiver,
// over one real segment.

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "expect.hpp"
#include "fhbn/cuda/outcome.hpp"
#include "fhbn/cuda/receive.cuh"
#include "fhbn/cuda/send.cuh"
#include "fhbn/ordered.hpp"
#include "fhbn/receiver.hpp"
#include "fhbn/sender.hpp"

namespace lamina::fhbn::cuda {

using Bytes = std::vector<std::uint8_t>;
using Random = std::mt19937_64;

inline constexpr std::uint64_t kLongWait = std::uint64_t{1} << 50;
inline constexpr std::uint64_t kShortWait = 1'000'000;
inline const std::function<bool()> kNoInterrupts = [] { return false; };

inline void expect_status(lamina_cuda_status wanted, lamina_cuda_status match, const std::string& words) {
  const std::string message = lamina_cuda_message();
  expect(match == wanted, words + ": the status is " + std::to_string(match) + ": " + message);
  expect(wanted == LAMINA_CUDA_OK ? message.empty() : message.find(words) != std::string::npos,
         "\"" + message + "\" does not say \"" + words + "\"");
}

inline void expect_ok(lamina_cuda_status match) { expect_status(LAMINA_CUDA_OK, match, "a sound call"); }

inline std::shared_ptr<const Peer> test_peer() { return std::make_shared<Peer>("worker 3"); }
inline Patience patience(std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
  return {timeout, kNoInterrupts};
}

// Device memory of exactly so many bytes, so that AddressSanitizer sees one too many, at any alignment.
class Memory {
public:
  explicit Memory(std::size_t bytes, std::size_t misaligned = 0)
      : misaligned_(misaligned), bytes_(bytes), memory_(new (std::align_val_t(64)) std::uint8_t[room()]) {
    std::memset(memory_.get(), 0xee, room());
  }
  std::uint8_t* data() const { return memory_.get() + misaligned_; }
  std::size_t size() const { return bytes_; }
  Bytes bytes() const { return {data(), data() + bytes_}; }
  void fill(Random& random) const {
    for (std::size_t i = 0; i < bytes_; ++i) data()[i] = static_cast<std::uint8_t>(random());
  }
  lamina_cuda_channel_buffer buffer() const { return {bytes_ == 0 ? nullptr : data(), bytes_}; }

private:
  struct Free {
    void operator()(std::uint8_t* memory) const { ::operator delete[](memory, std::align_val_t(64)); }
  };
  std::size_t room() const { return misaligned_ + bytes_; }
  std::size_t misaligned_;
  std::size_t bytes_;
  std::unique_ptr<std::uint8_t[], Free> memory_;
};

inline Buffers buffers_of(const std::vector<Memory>& memories) {
  Buffers buffers{};
  for (const Memory& memory : memories) buffers.part[buffers.count++] = memory.buffer();
  return buffers;
}

// A device's end as the library makes it, with calls that run the kernels to their end.
class DeviceEnd {
public:
  DeviceEnd(std::shared_ptr<Segment> segment, std::uint64_t timeout_ns = kLongWait)
      : segment_(std::move(segment)), cursor_(new Cursor{}), mailbox_(new Mailbox{}) {
    const Geometry& geometry = segment_->geometry();
    cursor_->next = cursor_->consumed = geometry.first_seqno;
    end_.ring = &segment_->ring();
    end_.slots = reinterpret_cast<std::byte*>(end_.ring) + kSlotsOffset;
    end_.cursor = cursor_.get();
    end_.mailbox = mailbox_.get();
    end_.message_bytes = geometry.message_bytes;
    end_.stride = slot_stride(geometry.message_bytes);
    end_.timeout_ns = timeout_ns;
    end_.slot_count = geometry.slots;
    end_.epoch = geometry.epoch;
  }

  void send(const Buffers& parts, int blocks = 2) {
    emulated::launch(cuda::send, blocks, 1, kCopyThreads, 0, SendArgs{end_, parts});
  }
  void poll() { emulated::launch(cuda::poll, 1, 1, 1, 0, end_); }
  void fetch(const Buffers& into, int blocks = 2) {
    emulated::launch(cuda::fetch, blocks, 1, kCopyThreads, 0, FetchArgs{end_, into});
  }
  void give_back() { emulated::launch(cuda::give_back, 1, 1, 1, 0, end_); }
  void recv(const Buffers& into, int blocks = 2) {
    emulated::launch(cuda::recv, blocks, 1, kCopyThreads, 0, FetchArgs{end_, into});
  }
  void abort() { store_release(mailbox_->abort, std::uint32_t{1}); }

  const End& end() const { return end_; }
  const Mailbox::Report& report() const { return mailbox_->report; }
  const Cursor& cursor() const { return *cursor_; }
  const lamina_cuda_channel_message& message() const { return cursor_->message; }
  void expect_sound(const char* when) const {
    expect(report().fault == Fault::kNone,
           std::string(when) + ": " + notified(report(), true, "the sender or receiver"));
    expect(cursor_->arrivals == 0 && cursor_->gate.arrivals == 0 && cursor_->gate.verdict == 0,
           std::string(when) + ": a block was not counted down");
  }

private:
  std::shared_ptr<Segment> segment_;
  std::unique_ptr<Cursor> cursor_;
  std::unique_ptr<Mailbox> mailbox_;
  End end_{};
};

inline bool send_from_host(Sender& sender, const std::vector<Bytes>& parts) {
  std::vector<std::span<const std::byte>> spans;
  for (const Bytes& part : parts) spans.push_back(std::as_bytes(std::span(part)));
  return sender.send(spans, patience());
}

inline std::vector<Bytes> copies_of(const Arrived& message) {
  std::vector<Bytes> parts;
  for (std::uint32_t i = 0; i < message.count; ++i) {
    const auto* data = reinterpret_cast<const std::uint8_t*>(message.parts[i].data());
    parts.emplace_back(data, data + message.parts[i].size());
  }
  return parts;
}

inline std::vector<Bytes> copies_of(const std::vector<Memory>& memories) {
  std::vector<Bytes> parts;
  for (const Memory& memory : memories) parts.push_back(memory.bytes());
  return parts;
}

// Of a host's end over memory or over a NIC.
template <typename T>
std::vector<Bytes> receive_on_host(T& receiver) {
  const Arrived message = *receiver.receive(patience());
  std::vector<Bytes> parts = copies_of(message);
  receiver.give_back(message.seqno);
  return parts;
}

}  // namespace lamina::fhbn::cuda
