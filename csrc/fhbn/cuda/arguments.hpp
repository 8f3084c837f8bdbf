#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "cuda/runtime.hpp"
#include "fhbn/cuda/end.hpp"

// What a caller has given, checked before the device gets it.
namespace lamina::fhbn::cuda {

using lamina::cuda::Failure;
using lamina::cuda::require;

inline void require_channel(const lamina_cuda_channel* channel) {
  require(channel != nullptr && channel->memory != nullptr, "the channel's memory is missing");
  require(channel->side == LAMINA_CUDA_CHANNEL_SENDS || channel->side == LAMINA_CUDA_CHANNEL_RECEIVES,
          "an end either sends or receives");
  require(channel->timeout_ns > 0, "a kernel needs some time to wait");
  require(channel->peer != nullptr, "the peer's name is missing");
  require(reinterpret_cast<std::uintptr_t>(channel->memory) % kSlotsOffset == 0,
          "the channel's memory does not begin at a page");
}

// The ring's shape, of a copy: what lies in the memory itself may change.
inline Preamble checked_preamble(const lamina_cuda_channel& channel) {
  require(channel.bytes >= kSlotsOffset, "the channel's memory is too small for a ring");
  Preamble preamble;
  if (channel.on_device == 0) {
    std::memcpy(&preamble, channel.memory, sizeof preamble);
  } else {
    lamina::cuda::check(cudaMemcpy(&preamble, channel.memory, sizeof preamble, cudaMemcpyDeviceToHost),
                        "looking at a ring");
  }
  require(preamble.magic == kMagic, "the channel's memory holds no ring of this version");
  require(is_sound(preamble.message_bytes, preamble.slots), "the ring has an impossible shape");
  require(channel.bytes == ring_bytes(preamble.message_bytes, preamble.slots),
          "the ring is not as large as it says");
  return preamble;
}

inline Buffers checked_buffers(const lamina_cuda_channel_buffer* given, std::int32_t count) {
  require(count >= 0, "the number of parts is negative");
  if (count > static_cast<std::int32_t>(kMostParts)) {
    throw Failure{LAMINA_CUDA_BAD_ARGUMENT, "a message has up to " + std::to_string(kMostParts) +
                                                " parts, not " + std::to_string(count)};
  }
  require(count == 0 || given != nullptr, "the parts are missing");
  Buffers buffers{};
  buffers.count = static_cast<std::uint32_t>(count);
  for (std::int32_t i = 0; i < count; ++i) {
    require(given[i].data != nullptr || given[i].bytes == 0, "a part is missing");
    buffers.part[i] = given[i];
  }
  return buffers;
}

// Of all parts together; more than any message has if they are too many.
inline std::uint64_t message_bytes_of(const Buffers& parts) {
  std::uint64_t total = 0;
  for (std::uint32_t i = 0; i < parts.count; ++i) {
    if (parts.part[i].bytes > kMostMessageBytes) return kMostMessageBytes + 1;
    total += parts.part[i].bytes;
  }
  return total;
}

inline void require_room(const Buffers& parts, std::uint64_t message_bytes, const std::string& peer) {
  const std::uint64_t total = message_bytes_of(parts);
  if (total <= message_bytes) return;
  throw Failure{LAMINA_CUDA_BAD_ARGUMENT,
                "the parts have " + std::to_string(total) + " bytes together and a message to " + peer +
                    " holds " + std::to_string(message_bytes) + ": open the channel with larger messages"};
}

}  // namespace lamina::fhbn::cuda
