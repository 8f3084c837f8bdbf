#pragma once

#include <cstddef>

namespace lamina::attention {

// Attention over some tokens: outputs, normalised, and the logarithms of their softmaxes' denominators.
struct Attended {
  float* out;  // [rows][head_dim]
  float* lse;  // [rows], -infinity where there was no token
};

// Attention over the union of two disjoint sets of tokens. `to` may be one of the inputs.
void combine(const Attended& a, const Attended& b, const Attended& to, std::size_t rows,
             std::size_t head_dim);

}  // namespace lamina::attention
