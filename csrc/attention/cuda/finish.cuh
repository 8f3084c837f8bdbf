#pragma once

#include <cstdint>

#include "attention/cuda/device.cuh"
#include "attention/cuda/softmax.hpp"

namespace lamina::attention::cuda {

constexpr int kFinishThreads = 128;
constexpr int kFinishHeads = 16;  // of a group, that a block does

struct FinishArgs {
  const void* q;              // [requests][heads][head_dim]
  const void* new_k;          // [requests][kv_heads][head_dim]
  const void* new_v;          // null: values are their keys' first numbers, and stored with them
  const std::int32_t* lists;  // [requests + 1]: where each request's index list begins
  const std::int32_t* slots;  // the lists, whose last entries are the new tokens'
  const float* out;           // the partial over the previous tokens
  const float* lse;
  const float* sinks;  // [heads], each a score of no value; or null
  void* result;        // [requests][heads][value_dim]
  char* k;             // the arena's
  char* v;
  std::int32_t slot_bytes;
  std::int64_t head_bytes;
  std::int32_t heads;
  std::int32_t group;
  std::int32_t head_dim;
  std::int32_t value_dim;
  Scoring scoring;
};

// Stores the new token's key and value and adds it to the partial: A(prev + new) from A(prev) and the new
// score. Block (x, y) does request x and kFinishHeads of the query heads of a KV head, a warp at a time one
// of them. Keys and values are taken from the input, not from the arena, so storing them needs no barrier.
template <typename Element>
LAMINA_KERNEL(kFinishThreads)
finish(const FinishArgs args) {
  using Storage = typename Element::Storage;
  const int request = block_x();
  const int slices = (args.group + kFinishHeads - 1) / kFinishHeads;
  const int kv_head = block_y() / slices;
  const int first = block_y() % slices * kFinishHeads;  // of the KV head's
  const int end = first + kFinishHeads < args.group ? first + kFinishHeads : args.group;
  const int lane = thread_index() % 32;
  const std::int32_t list_end = args.lists[request + 1];
  // A row without tokens is no request: it fills the batch up to the size of a captured graph.
  const std::int32_t slot = list_end > args.lists[request] ? args.slots[list_end - 1] : -1;
  const std::int64_t kv_heads = args.heads / args.group;
  const std::int64_t kv_row = (request * kv_heads + kv_head) * args.head_dim;
  const bool latent = args.new_v == nullptr;
  const auto* const k = static_cast<const Storage*>(args.new_k) + kv_row;
  const auto* const v = latent ? k : static_cast<const Storage*>(args.new_v) + kv_row;

  if (slot >= 0 && first == 0) {
    const std::int64_t at = static_cast<std::int64_t>(slot) * args.slot_bytes + kv_head * args.head_bytes;
    for (int dim = thread_index(); dim < args.head_dim; dim += kFinishThreads) {
      reinterpret_cast<Storage*>(args.k + at)[dim] = k[dim];
      if (!latent) reinterpret_cast<Storage*>(args.v + at)[dim] = v[dim];
    }
  }
  for (int member = first + thread_index() / 32; member < end; member += kFinishThreads / 32) {
    const std::int64_t head = static_cast<std::int64_t>(request) * args.heads + kv_head * args.group + member;
    const auto* const q = static_cast<const Storage*>(args.q) + head * args.head_dim;
    float dot = 0;
    for (int dim = lane; dim < args.head_dim; dim += 32) {
      dot += Element::load(q[dim]) * Element::load(k[dim]);
    }
    for (int mask = 1; mask < 32; mask *= 2) dot += shuffle_xor(dot, mask);
    Merge merged = merge(args.lse[head], args.scoring(dot) * kLn2);
    if (args.sinks != nullptr) {
      const float audible = merge(merged.lse, args.sinks[kv_head * args.group + member]).first;
      merged.first *= audible;
      merged.second *= audible;
    }
    const std::int64_t row = head * args.value_dim;
    for (int dim = lane; dim < args.value_dim; dim += 32) {
      const float both = merged.first * args.out[row + dim] + merged.second * Element::load(v[dim]);
      static_cast<Storage*>(args.result)[row + dim] = Element::store(slot >= 0 ? both : 0.0f);
    }
  }
}

}  // namespace lamina::attention::cuda
