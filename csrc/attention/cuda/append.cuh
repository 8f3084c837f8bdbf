#pragma once

#include <cstdint>

#include "attention/cuda/device.cuh"

namespace lamina::attention::cuda {

constexpr int kAppendThreads = 128;

struct AppendArgs {
  const void* new_k;  // [tokens][kv_heads][row], 16 bytes at a time
  const void* new_v;
  const std::int32_t* slots;  // [tokens]; a negative one is left out
  char* k;
  char* v;
  std::int32_t slot_bytes;
  std::int64_t head_bytes;
  std::int64_t tokens;
  std::int32_t kv_heads;
  std::int32_t row_bytes;
};

struct alignas(16) Chunk {
  std::uint32_t words[4];
};

// Stores tokens' keys and values in their slots. One thread moves a chunk of each.
LAMINA_KERNEL(kAppendThreads) append(const AppendArgs args) {
  const int chunks = args.kv_heads * (args.row_bytes / 16);  // of a token
  const std::int64_t i = static_cast<std::int64_t>(block_x()) * kAppendThreads + thread_index();
  const std::int64_t token = i / chunks;
  if (token >= args.tokens) return;
  const std::int32_t slot = args.slots[token];
  if (slot < 0) return;
  const int chunk = static_cast<int>(i % chunks);
  const int head = chunk / (args.row_bytes / 16);
  const int byte = chunk % (args.row_bytes / 16) * 16;
  const std::int64_t at = static_cast<std::int64_t>(slot) * args.slot_bytes + head * args.head_bytes + byte;
  *reinterpret_cast<Chunk*>(args.k + at) = static_cast<const Chunk*>(args.new_k)[i];
  *reinterpret_cast<Chunk*>(args.v + at) = static_cast<const Chunk*>(args.new_v)[i];
}

}  // namespace lamina::attention::cuda
