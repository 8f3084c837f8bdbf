#pragma once

#include <cstdint>

#include "fhbn/cuda/device.cuh"

namespace lamina::fhbn::cuda {

// Few enough that a block waiting for a message fits next to three of attention's on a multiprocessor:
// attention runs in one wave then, though others wait.
constexpr int kCopyThreads = 128;
// Chunks that a thread has under way at once: what the host's memory answers takes a microsecond to come.
constexpr int kUnderWay = 4;
// What a block is started for, and how many there are at most. Guessed: a bus is filled by a few blocks, and
// the rest of the device is for others.
constexpr std::uint64_t kBytesPerBlock = kCopyThreads * kUnderWay * sizeof(Chunk);
constexpr std::uint64_t kMostBlocks = 32;

LAMINA_DEVICE bool is_chunk_aligned(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % sizeof(Chunk) == 0;
}

template <bool kAligned>
LAMINA_DEVICE Chunk load_chunk(const std::uint8_t* from) {
  if constexpr (kAligned) {
    return load_once(reinterpret_cast<const Chunk*>(from));
  } else {
    Chunk chunk;
    LAMINA_UNROLL
    for (int word = 0; word < 4; ++word) {
      chunk.words[word] = 0;
      LAMINA_UNROLL
      for (int byte = 0; byte < 4; ++byte) {
        chunk.words[word] |= std::uint32_t{from[word * 4 + byte]} << (8 * byte);
      }
    }
    return chunk;
  }
}

template <bool kAligned>
LAMINA_DEVICE void store_chunk(std::uint8_t* to, const Chunk& chunk) {
  if constexpr (kAligned) {
    store_once(reinterpret_cast<Chunk*>(to), chunk);
  } else {
    LAMINA_UNROLL
    for (int word = 0; word < 4; ++word) {
      LAMINA_UNROLL
      for (int byte = 0; byte < 4; ++byte) {
        to[word * 4 + byte] = static_cast<std::uint8_t>(chunk.words[word] >> (8 * byte));
      }
    }
  }
}

// Every `step`th chunk from the first on. All loads of a round are on their way before the first store.
template <bool kFromAligned, bool kToAligned>
LAMINA_DEVICE void copy_chunks(std::uint8_t* to, const std::uint8_t* from, std::uint64_t first,
                               std::uint64_t step, std::uint64_t chunks) {
  for (std::uint64_t at = first; at < chunks; at += kUnderWay * step) {
    Chunk stored[kUnderWay];
    LAMINA_UNROLL
    for (int i = 0; i < kUnderWay; ++i) {
      const std::uint64_t chunk = at + static_cast<std::uint64_t>(i) * step;
      if (chunk < chunks) stored[i] = load_chunk<kFromAligned>(from + chunk * sizeof(Chunk));
    }
    LAMINA_UNROLL
    for (int i = 0; i < kUnderWay; ++i) {
      const std::uint64_t chunk = at + static_cast<std::uint64_t>(i) * step;
      if (chunk < chunks) store_chunk<kToAligned>(to + chunk * sizeof(Chunk), stored[i]);
    }
  }
}

// This thread's share of copying one part, when all threads of the grid call this. The ring's side is
// aligned, so that the bus carries whole chunks wherever the other side lies.
LAMINA_DEVICE void copy_share(void* target, const void* source, std::uint64_t bytes) {
  auto* const to = static_cast<std::uint8_t*>(target);
  const auto* const from = static_cast<const std::uint8_t*>(source);
  const std::uint64_t step = static_cast<std::uint64_t>(blocks_x()) * kCopyThreads;
  const std::uint64_t first =
      static_cast<std::uint64_t>(block_x()) * kCopyThreads + static_cast<std::uint64_t>(thread_index());
  const std::uint64_t chunks = bytes / sizeof(Chunk);
  if (!is_chunk_aligned(from)) {
    copy_chunks<false, true>(to, from, first, step, chunks);
  } else if (!is_chunk_aligned(to)) {
    copy_chunks<true, false>(to, from, first, step, chunks);
  } else {
    copy_chunks<true, true>(to, from, first, step, chunks);
  }
  const std::uint64_t rest = chunks * sizeof(Chunk) + first;
  if (rest < bytes) to[rest] = from[rest];
}

}  // namespace lamina::fhbn::cuda
