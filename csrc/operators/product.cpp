#include "operators/product.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

#include "operators/team.hpp"

namespace lamina::operators {

namespace {

constexpr std::size_t kLine = 64;  // bytes, of a row of a tile

// Memory for a thread's own use, which it keeps. A tile's rows do not cross lines.
std::byte* scratch(std::size_t bytes) {
  thread_local std::unique_ptr<std::byte[]> memory;
  thread_local std::size_t size = 0;
  if (size < bytes) {
    memory.reset(new std::byte[bytes + kLine]);
    size = bytes;
  }
  void* at = memory.get();
  std::size_t room = size + kLine;
  return static_cast<std::byte*>(std::align(kLine, size, at, room));
}

}  // namespace

Product product_for([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAmxBf16) return &amx_bf16_product;
#endif
  return nullptr;
}

void multiply(Product product, const Matrix& matrix, const BFloat16* x, std::size_t stride, std::size_t rows,
              BFloat16* out) {
  const std::size_t row_bytes = matrix.inputs * sizeof(BFloat16);
  const std::size_t tile_rows = (rows + kTileRows - 1) / kTileRows;
  std::byte* tiles = scratch(tile_rows * kTileRows * row_bytes);
  share(rows, matrix.inputs, [&](std::size_t first, std::size_t last) {
    for (std::size_t row = first; row < last; ++row) {
      const auto* from = reinterpret_cast<const std::byte*>(x + row * stride);
      std::byte* to = tiles + row / kTileRows * kTileRows * row_bytes + row % kTileRows * kLine;
      for (std::size_t at = 0; at < row_bytes; at += kLine)
        std::memcpy(to + at * kTileRows, from + at, kLine);
    }
  });
  const ProductTask task{matrix, reinterpret_cast<const BFloat16*>(tiles), rows, out};
  share(matrix.outputs / kPanel, kPanel * matrix.inputs,
        [&](std::size_t first, std::size_t last) { product(task, first, last); });
}

}  // namespace lamina::operators
