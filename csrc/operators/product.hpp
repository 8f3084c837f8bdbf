#pragma once

#include <cstddef>

#include "attention/kernel.hpp"

// Rows of bfloat16 times a matrix of it that is read once, however many rows there are: where a processor
// multiplies by tiles. Sums are float's, in the order of the inputs whatever other rows there are, and
// rounded once.
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
  const BFloat16* x;  // for every 16 rows and 32 inputs a tile [16][32]; the last rows may be anything
  std::size_t rows;
  BFloat16* out;  // dense
};

// The function of an instruction set for the panels [first, last) of a task, or null.
using Product = void (*)(const ProductTask&, std::size_t first, std::size_t last);
Product product_for(Isa isa);

void amx_bf16_product(const ProductTask& task, std::size_t first, std::size_t last);

// On the threads of share(). Rows of x are `stride` numbers apart.
void multiply(Product product, const Matrix& matrix, const BFloat16* x, std::size_t stride, std::size_t rows,
              BFloat16* out);

}  // namespace lamina::operators
