#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace lamina::attention {

// How a number of Q, K and V is stored. Arithmetic on it is always float's.
enum class DType { kFloat32, kBFloat16, kFloat16 };

struct BFloat16 {
  std::uint16_t bits;
};

struct Float16 {
  std::uint16_t bits;
};

inline std::size_t bytes_of(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

inline DType dtype_named(std::string_view name) {
  if (name == "float32") return DType::kFloat32;
  if (name == "bfloat16") return DType::kBFloat16;
  if (name == "float16") return DType::kFloat16;
  throw std::invalid_argument("dtype is '" + std::string(name) +
                              "' but must be float32, bfloat16 or float16");
}

}  // namespace lamina::attention
