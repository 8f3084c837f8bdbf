#pragma once

#include <cstddef>

#include "attention/dtype.hpp"
#include "attention/isa.hpp"
#include "core/index_buffer.hpp"

namespace lamina::attention {

inline constexpr int kMaxHeadDim = 256;

// Rows of partial outputs are padded to this many floats, the widest vector, so that kernels store whole
// ones.
inline constexpr int kRowFloats = 16;
constexpr int padded(int head_dim) { return (head_dim + kRowFloats - 1) / kRowFloats * kRowFloats; }

// What every call of a worker has in common.
struct Shape {
  int heads;
  int kv_heads;
  int head_dim;
  int group() const { return heads / kv_heads; }
};

// One layer's keys and values: where they lie, and how its scores are made. Strides in bytes.
struct Source {
  const std::byte* k;
  const std::byte* v;
  std::size_t slot_stride;
  std::size_t head_stride;
  float scale;
  float softcap;  // 0: none
};

// The softmax of one range of tokens and one query head, unfinished: sum of e^(score - max), and the values
// summed with these weights. Ranges are merged later, in a fixed order.
struct Partial {
  float max;
  float sum;
};

// Attention of one request's query heads over one range of its tokens, for the KV heads [first, last).
struct RangeTask {
  const Source* source;
  Shape shape;
  int first;
  int last;
  const std::byte* q;  // of the request's first query head
  const Slot* slots;
  int tokens;
  Partial* partials;  // [heads]
  float* rows;        // [heads][padded(head_dim)], weighted values
  float* scratch;     // scratch_floats() of them
};

// Tokens whose scores are made before their values are read: so many that softmax's bookkeeping is rare.
inline constexpr int kBlock = 64;

// What a task for so many KV heads needs to write while it runs: queries, a block's weights, and how they
// decay.
inline int scratch_floats(const Shape& shape, int kv_heads) {
  return kv_heads * shape.group() * (padded(shape.head_dim) + kBlock + 1);
}

// Partials of one request's consecutive ranges, for the query heads [first, last), into its output.
struct MergeTask {
  Shape shape;
  int first;
  int last;
  const Partial* partials;  // [ranges][heads]
  const float* rows;        // [ranges][heads][padded(head_dim)]
  int ranges;
  std::byte* out;  // [heads][head_dim] in the worker's dtype, or null
  float* out_f32;  // [heads][head_dim], or null
  float* lse;      // [heads], or null
};

// The functions of one instruction set and dtype.
struct Kernels {
  void (*attend)(const RangeTask&);
  void (*merge)(const MergeTask&);
  void (*read)(const std::byte* at, std::size_t size);  // every byte, once, and nothing else
};

Kernels kernels_for(Isa isa, DType dtype);

Kernels baseline_kernels(DType dtype);
Kernels avx2_kernels(DType dtype);
Kernels avx512_kernels(DType dtype);
Kernels avx512_bf16_kernels(DType dtype);

}  // namespace lamina::attention
