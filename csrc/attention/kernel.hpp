#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/index_buffer.hpp"

namespace lamina::attention {

// How a number of Q, K and V is stored. Arithmetic on it is always float's.
enum class DType { kFloat32, kBFloat16, kFloat16 };

struct BFloat16 {
  std::uint16_t bits;
};

struct Float16 {
  std::uint16_t bits;
};

// A number of K or V that is stored as something else than a query's.
struct Fp8 {
  std::uint8_t bits;
};

struct Int8 {
  std::int8_t number;
};

inline std::size_t bytes_of(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

inline DType dtype_named(std::string_view name) {
  if (name == "float32") return DType::kFloat32;
  if (name == "bfloat16") return DType::kBFloat16;
  if (name == "float16") return DType::kFloat16;
  throw std::invalid_argument("dtype is '" + std::string(name) +
                              "' but must be float32, bfloat16 or float16");
}

// How the arena holds a number of K and V: in the worker's dtype, as float8_e4m3fn, or as a whole number of
// -127 to 127 times a float that a token and KV head has for its key and another one for its value.
enum class Stored { kAsIs, kFp8, kInt8 };

inline Stored stored_named(std::string_view name) {
  if (name == "auto") return Stored::kAsIs;
  if (name == "fp8") return Stored::kFp8;
  if (name == "int8") return Stored::kInt8;
  throw std::invalid_argument("kv_dtype is '" + std::string(name) + "' but must be auto, fp8 or int8");
}

inline std::size_t bytes_of(Stored stored, DType dtype) {
  return stored == Stored::kAsIs ? bytes_of(dtype) : 1;
}

// Instruction sets that there are kernels for; of one kind of processor, each contains those before it.
enum class Isa { kBaseline, kAvx2, kAvx512, kAvx512Bf16, kAmxBf16, kNeonBf16 };

// What this processor has, from the least to the best.
std::vector<Isa> available_isas();

// The instruction set to use: `name`, or if that is empty $LAMINA_ISA, or the fastest one of this processor.
// Throws std::invalid_argument for a name that means nothing or that this processor lacks.
Isa choose_isa(std::string_view name);

std::string name_of(Isa isa);

// The cache of a core into which a kernel fetches what it reads next.
// Both: early into L2, and from there into L1 shortly before. Short: so, but for tokens whose rows are 2 KiB
// or longer and are read one after the other, which the processor fetches ahead by itself. Slots: into L2,
// and where tokens lie in order and a key and its value are 2 KiB or less together, both at once and a block
// ahead: they are one run of memory, which the processor notices.
enum class Prefetch { kNone, kL1, kL2, kBoth, kShort, kSlots };

// Where to: `name`, none, l1, l2, both, short or slots, or if that is empty $LAMINA_PREFETCH, or what is best
// on this processor. No result depends on it. Throws std::invalid_argument for a name that means nothing.
Prefetch choose_prefetch(std::string_view name);

std::string name_of(Prefetch prefetch);

inline constexpr int kMaxHeadDim = 1024;

// Rows of partial outputs are padded to this many floats, the widest vector, so that kernels store whole
// ones.
inline constexpr int kRowFloats = 16;
constexpr int padded(int head_dim) { return (head_dim + kRowFloats - 1) / kRowFloats * kRowFloats; }

// What every call of a worker has in common.
struct Shape {
  int heads;
  int kv_heads;
  int head_dim;    // of queries and keys
  int latent = 0;  // a value is its key's first so many numbers, and stored once with it; 0: it is apart
  int group() const { return heads / kv_heads; }
  int value_dim() const { return latent != 0 ? latent : head_dim; }
};

// One layer's keys and values: where they lie, and how its scores are made. Strides in bytes.
struct Source {
  const std::byte* k;
  const std::byte* v;
  std::size_t slot_stride;
  std::size_t head_stride;
  float scale;
  float softcap;                        // 0: none
  const std::byte* k_scales = nullptr;  // of slot 0: a float for each KV head; null: numbers have none
  const std::byte* v_scales = nullptr;
};

// Rows of numbers as they are stored, to rows of the worker's dtype. No number is rounded.
struct NarrowRows {
  const std::byte* at;
  const std::size_t* offsets;
  int rows;
  int numbers;             // of each, a multiple of 8
  std::size_t row_stride;  // bytes from one wide row to the next
};
using Widen = void (*)(const NarrowRows& from, std::byte* to);

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
  float* rows;        // [heads][padded(value_dim)], weighted values
  float* scratch;     // scratch_floats() of them
  Prefetch prefetch;
  std::size_t number_bytes;  // of K and V, as they lie in memory
  Widen widen;               // null: they are of the worker's dtype
};

// Tokens whose scores are made before their values are read: so many that softmax's bookkeeping is rare.
inline constexpr int kBlock = 64;

inline constexpr std::size_t kLineBytes = 64;  // of a cache

// Kernels that work on 4 or 8 query heads whether there are so many or not have room for them.
constexpr int filled_up(int group) { return (group + 3) / 4 * 4; }

// What a task for so many KV heads needs to write while it runs: queries, a block's weights, how they decay,
// and from the next cache line on a copy of half a block's rows of one head, and if rows are `widened` all of
// them.
inline int scratch_floats(const Shape& shape, int kv_heads, bool widened) {
  constexpr int kLineFloats = kLineBytes / sizeof(float);
  return kv_heads * (shape.group() * (padded(shape.head_dim) + 1) + filled_up(shape.group()) * kBlock) +
         kLineFloats + (kBlock / 4 + (widened ? kBlock : 0)) * padded(shape.head_dim);
}

// Partials of one request's consecutive ranges, for the query heads [first, last), into its output. A head's
// sink is one more score in the softmax's denominator, of no value.
struct MergeTask {
  Shape shape;
  int first;
  int last;
  const Partial* partials;  // [ranges][heads]
  const float* rows;        // [ranges][heads][padded(value_dim)]
  int ranges;
  const float* sinks;  // [heads], or null
  std::byte* out;      // [heads][value_dim] in the worker's dtype, or null
  float* out_f32;      // [heads][value_dim], or null
  float* lse;          // [heads], or null
};

// The functions of one instruction set and dtype.
struct Kernels {
  void (*attend)(const RangeTask&);
  void (*merge)(const MergeTask&);
  void (*read)(const std::byte* at, std::size_t size);  // every byte, once, and nothing else
};

using Attend = void (*)(const RangeTask&);

Kernels kernels_for(Isa isa, DType dtype);

// What widens keys and values in registers, for heads with which that is quicker than to memory first; or
// null.
Attend narrow_attend(Isa isa, DType dtype, Stored stored, const Shape& shape);

Kernels baseline_kernels(DType dtype);
Kernels avx2_kernels(DType dtype);
Kernels avx512_kernels(DType dtype);
Kernels avx512_bf16_kernels(DType dtype);
Kernels amx_bf16_kernels(DType dtype);
Kernels neon_bf16_kernels(DType dtype);

}  // namespace lamina::attention
