#pragma once

#include <cstdint>

#include "attention/cuda/device.cuh"
#include "attention/cuda/softmax.hpp"

namespace lamina::attention::cuda {

constexpr int kAppendThreads = 128;

struct AppendArgs {
  const void* new_k;          // [tokens][kv_heads][row], 16 bytes at a time
  const void* new_v;          // null: there are none apart
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
  if (args.new_v != nullptr)
    *reinterpret_cast<Chunk*>(args.v + at) = static_cast<const Chunk*>(args.new_v)[i];
}

constexpr int kCombineThreads = 128;

struct CombineArgs {
  const float* first_out;  // [rows][value_dim]
  const float* first_lse;  // [rows]
  const float* second_out;
  const float* second_lse;
  float* out;  // may be one of the two, as may lse
  float* lse;
  std::int64_t rows;
  std::int32_t value_dim;
};

// [A, S] of the union of two disjoint sets of tokens. A warp does one row.
LAMINA_KERNEL(kCombineThreads) combine(const CombineArgs args) {
  const int lane = thread_index() % 32;
  const std::int64_t row =
      static_cast<std::int64_t>(block_x()) * (kCombineThreads / 32) + thread_index() / 32;
  if (row >= args.rows) return;
  const Merge merged = merge(args.first_lse[row], args.second_lse[row]);
  sync_warp();  // every lane has read what lane 0 may now overwrite
  if (lane == 0) args.lse[row] = merged.lse;
  for (int dim = lane; dim < args.value_dim; dim += 32) {
    const std::int64_t at = row * args.value_dim + dim;
    args.out[at] = merged.first * args.first_out[at] + merged.second * args.second_out[at];
  }
}

}  // namespace lamina::attention::cuda
