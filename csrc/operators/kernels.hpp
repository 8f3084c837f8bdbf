#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/kernel.hpp"

// What lies between a slice's matrix products, a few of torch's operators in one pass over the rows of a
// batch. Every step is rounded as torch rounds it: the results are those of the operators one by one, to the
// last bit.
namespace lamina::operators {

using attention::BFloat16;
using attention::DType;
using attention::Float16;
using attention::Isa;

// Rows that lie one behind the other in blocks, and blocks at a distance: what is left of a product that
// others share. Distances are counted in bytes.
struct Rows {
  const std::byte* at;
  std::size_t block_rows;  // of each block
  std::size_t row_stride;
  std::size_t block_stride;
  const std::byte* row(std::size_t number) const {
    return at + number / block_rows * block_stride + number % block_rows * row_stride;
  }
};

// x / sqrt(mean(x^2) + eps) x weight: RMSNorm; of x - mean(x) if it is centred: LayerNorm without a bias.
struct NormShape {
  std::size_t width;
  float eps;
  bool centred;
  bool rounds_first;  // to the dtype before the weight, as the weight's product is, else only after it
  bool wide_weight;   // float32 whatever the dtype
  int lanes;          // of the vectors whose order torch's sums go by: 4, 8 or 16
};

struct NormTask {
  NormShape shape;
  Rows x;
  const std::byte* added;   // to x first, dense rows; or null
  std::byte* sum;           // where that goes, rounded
  const std::byte* weight;  // [width], or null
  std::byte* out;           // dense rows
};

// x cos + rotated(x) sin over the first numbers of each head; those behind them are copied.
struct RotaryShape {
  std::size_t heads;  // of a row
  std::size_t head_dim;
  std::size_t rotated;
  bool pairs;        // rotates neighbours into each other, else the two halves
  bool interleaved;  // the halves alternate in x, and are contiguous in the result
  bool half_tables;  // with one number for both halves
  bool wide;         // nothing is rounded before the sum
  bool wide_tables;  // cos and sin are float32
};

inline constexpr std::size_t kMostInterleaved = 1024;  // numbers of a head

struct RotaryTask {
  RotaryShape shape;
  Rows x;
  const std::byte* cos;  // of each row of the batch, `table_stride` bytes apart
  const std::byte* sin;
  std::size_t table_stride;
  std::byte* out;  // dense
};

// activation(gate) x up, for numbers of 16 bits: `table` has the activation of each of them.
struct GateTask {
  const std::uint16_t* table;
  std::size_t width;
  Rows gate;
  Rows up;
  std::byte* out;  // dense rows
};

// The first of a row's largest numbers; of a row with a NaN, the first NaN.
struct ChoiceTask {
  std::size_t width;
  const std::byte* x;  // dense rows
  std::int64_t* out;
};

// The functions of one instruction set and dtype, each for the rows [first, last) of a task.
struct Functions {
  void (*norm)(const NormTask&, std::size_t first, std::size_t last);
  void (*rotary)(const RotaryTask&, std::size_t first, std::size_t last);
  void (*gate)(const GateTask&, std::size_t first, std::size_t last);  // null for float32
  void (*choice)(const ChoiceTask&, std::size_t first, std::size_t last);
};

Functions functions_for(Isa isa, DType dtype);

Functions baseline_functions(DType dtype);
Functions avx2_functions(DType dtype);
Functions avx512_functions(DType dtype);

}  // namespace lamina::operators
