#include "operators/product.hpp"

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

const Product* product_for([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAmxBf16) return &kAmxBf16Product;
  if (isa == Isa::kAvx2) return &kAvx2Product;
#endif
  return nullptr;
}

void multiply(const Product& product, const Matrix& matrix, const BFloat16* x, std::size_t stride,
              std::size_t rows, BFloat16* out) {
  std::byte* arranged = scratch(product.bytes(rows, matrix.inputs));
  share(rows, matrix.inputs, [&](std::size_t first, std::size_t last) {
    for (std::size_t row = first; row < last; ++row) {
      product.arrange(x + row * stride, row, matrix.inputs, arranged);
    }
  });
  const ProductTask task{matrix, arranged, rows, out};
  share(matrix.outputs / kPanel, kPanel * matrix.inputs,
        [&](std::size_t first, std::size_t last) { product.panels(task, first, last); });
}

}  // namespace lamina::operators
