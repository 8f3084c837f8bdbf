#pragma once

#include <cstddef>

#include "attention/kernel.hpp"

// Rows of bfloat16 times a matrix of it that is read once, however many rows there are: where a processor
// multiplies by tiles, or has no products of bfloat16 that a library would use. Sums are float's, in the
// order of the inputs whatever other rows there are, and rounded once.
//
// The matrix lies in panels, one behind the other. Each has all weights of 32 outputs in the order in which
// they are read: for every 32 inputs two tiles of 16 outputs, [16 pairs of inputs][16 outputs][2].
namespace lamina::operators {

using attention::BFloat16;
using attention::Isa;

inline constexpr std::size_t kPanel = 32;
inline constexpr std::size_t kTileRows = 16;

struct Matrix {
  const BFloat16* panels;
  const BFloat16* bias;  // of each output, or null
  std::size_t inputs;    // whole panels, as outputs
  std::size_t outputs;
};

struct ProductTask {
  Matrix matrix;
  const std::byte* x;  // as the instruction set arranges it
  std::size_t rows;
  BFloat16* out;  // dense
};

// An instruction set's functions.
struct Product {
  std::size_t (*bytes)(std::size_t rows, std::size_t inputs);                               // of x, arranged
  void (*arrange)(const BFloat16* x, std::size_t row, std::size_t inputs, std::byte* all);  // one row
  void (*panels)(const ProductTask& task, std::size_t first, std::size_t last);  // those from first to last
};

extern const Product kAvx2Product;
extern const Product kAmxBf16Product;

// Or null: of others, a library's are as good.
const Product* product_for(Isa isa);

// On the threads of share(). Rows of x are `stride` numbers apart.
void multiply(const Product& product, const Matrix& matrix, const BFloat16* x, std::size_t stride,
              std::size_t rows, BFloat16* out);

}  // namespace lamina::operators
